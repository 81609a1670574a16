"""The arguments of `DataLoader`: each one once, with its default, its check, its meaning, and how stats record it.

A new argument is an entry here and in the signature of `DataLoader.__init__`. The attribute of the loader, the entry in
`loader.stats().config` and the row of `docs/reference/arguments.md` follow from this list; tests compare all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import ref

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from stoker.errors import ArgumentError
from stoker.plan import Order, Tail
from stoker.tuning.parallelism import AUTO, Choice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stoker.batch.ledger import Policy
    from stoker.deliver import Normalize, To
    from stoker.loader.sharing.mesh import Mesh

Record = Callable[[Any], Any]
"""Turns the value of an argument into plain data, for `stats().config`."""


# ------------------------------------------------------------ how values are recorded


def to_plain(value: Any) -> Any:
    """Return a value as plain data: numbers and text as they are, functions by their name, other objects as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(to_plain(name)): to_plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, torch.device | torch.dtype):
        return str(value)
    return getattr(value, "__qualname__", None) or type(value).__name__


def _class_name(value: Any) -> str:
    return type(value).__name__


def _own_function(value: Any) -> Any:
    """Return the name of a collate function; None for torch's defaults."""
    return None if value in (default_collate, default_convert) else to_plain(value)


# ------------------------------------------------------------ checks of one argument by itself


def _check_batch_size(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ArgumentError(
            f"{name}={value!r} is not a positive integer",
            hint="give the number of samples in a batch, or None to get samples without batching",
        )


def _check_choice(name: str, value: Any) -> None:
    if isinstance(value, str) and value != AUTO:
        raise ArgumentError(f"{name}={value!r} is not known", hint='give a number, or "auto" to have it measured')


def _check_num_threads(name: str, value: Any) -> None:
    _check_choice(name, value)
    if value == AUTO:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"{name}={value!r} is not an integer", hint="give a number of threads")
    if value < 0:
        raise ArgumentError(f"{name}={value} is negative", hint="0 loads without threads")


def _check_seed(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise ArgumentError(f"{name}={value!r} is not an integer", hint="any integer will do")


def _check_tail(name: str, value: Any) -> None:
    if value is not None and value not in get_args(Tail):
        raise ArgumentError(f"{name}={value!r} is not known", hint=f"choose one of {', '.join(get_args(Tail))}")


def _check_shard(name: str, value: Any) -> None:
    if value not in (None, "auto"):
        raise ArgumentError(f"{name}={value!r} is not known", hint="pass shard='auto' or nothing")


# ------------------------------------------------------------ the list

_RECORD, _CHECK = "record", "check"
SECTION, GUIDES, MEANING = "section", "guides", "meaning"

_DATA, _BATCHES, _PARALLEL = "Data and order", "Batches", "Parallelism"
_RANKS, _DEVICE, _ERRORS = "Ranks", "Device", "Errors and state"


def _argument(
    section: str,
    guides: tuple[str, ...],
    meaning: str,
    *,
    default: Any = MISSING,
    check: Callable[[str, Any], None] | None = None,
    record: Record | None = to_plain,
) -> Any:
    """Return the entry of one argument; `record=None` leaves it out of `stats().config`."""
    about = {SECTION: section, GUIDES: guides, MEANING: meaning, _CHECK: check, _RECORD: record}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a loader, each checked by itself. What cannot work together is refused by `check_together`."""

    dataset: Any = _argument(
        _DATA,
        ("guides/switching.md",),
        "Map-style dataset (`__len__` and `__getitem__`) or iterable dataset.",
        record=_class_name,
    )
    shuffle: bool | None = _argument(
        _DATA,
        ("concepts/plan.md",),
        '`True` shuffles all samples, differently in each epoch; same as `order="shuffle"`.',
        default=None,
    )
    order: str | Order | None = _argument(
        _DATA,
        ("concepts/plan.md",),
        '`"sequential"`, `"shuffle"`, `"window"` (near-sequential, for disks and object stores) or '
        "`stoker.Window(size=..., block=...)`. By default `shuffle` decides.",
        default=None,
        record=None,  # stats record the order that results, whichever argument it comes from
    )
    seed: int | None = _argument(
        _DATA,
        ("guides/randomness.md",),
        "Integer from which the order and all random numbers are derived. By default it is drawn from `generator` or "
        "torch's global generator and saved in the state; with several ranks it is 0.",
        default=None,
        check=_check_seed,
    )
    generator: torch.Generator | None = _argument(
        _DATA,
        ("guides/randomness.md",),
        "Torch generator from which the seed is drawn when `seed` is not given.",
        default=None,
    )
    sampler: Any = _argument(
        _DATA, ("guides/resuming.md",), "Your own order of positions, instead of `shuffle` and `order`.", default=None
    )
    batch_sampler: Any = _argument(
        _DATA, ("guides/resuming.md",), "Your own lists of positions, one for each batch.", default=None
    )
    skip: tuple[tuple[int, int], ...] = _argument(
        _DATA,
        ("guides/resuming.md",),
        "Ranges `(first, stop)` of steps to skip, for example after a loss spike. They are saved in the state.",
        default=(),
    )
    expect: Mapping[str, Any] | None = _argument(
        _DATA,
        ("guides/stores.md",),
        'Settings that the data must have been prepared with, such as `{"tokenizer": "tokenizer.json"}`; a mismatch is '
        "an error. For stores and datasets built from them.",
        default=None,
    )
    batch_size: int | None = _argument(
        _BATCHES,
        ("guides/ranks.md",),
        "Samples per batch on this rank; the global batch has `batch_size * num_ranks`. `None` turns batching off.",
        default=1,
        check=_check_batch_size,
    )
    drop_last: bool = _argument(
        _BATCHES,
        ("concepts/plan.md",),
        '`True` drops the incomplete batch at the end of an epoch; same as `tail="drop"`.',
        default=False,
    )
    tail: Tail | None = _argument(
        _BATCHES,
        ("guides/ranks.md",),
        'What happens to the incomplete batch at the end of an epoch: `"keep"` it short (the default), `"drop"` it, or '
        '`"pad"` it with samples marked in `loader.recipe.padding`.',
        default=None,
        check=_check_tail,
    )
    collate_fn: Callable[[Any], Any] | None = _argument(
        _BATCHES,
        ("guides/workers.md",),
        "Function that makes a batch from a list of samples. By default tensors, arrays and numbers are stacked, as in "
        "torch.",
        default=None,
        record=_own_function,
    )
    num_workers: Choice = _argument(
        _PARALLEL,
        (
            "guides/workers.md",
            "guides/auto.md",
        ),
        'Worker processes, or `"auto"`: measured at the start and adjusted while training. `0` loads in the calling '
        "process.",
        default=0,
        check=_check_choice,
    )
    num_threads: Choice = _argument(
        _PARALLEL,
        (
            "guides/workers.md",
            "guides/auto.md",
        ),
        "Threads in each worker process, or in the calling process without workers; the samples of a batch are spread "
        'over them. Without `num_workers`, `stoker.images` runs them in one worker process. `"auto"` measures, for '
        "datasets that several threads may read at once.",
        default=0,
        check=_check_num_threads,
    )
    prefetch_factor: Choice | None = _argument(
        _PARALLEL,
        (
            "guides/workers.md",
            "guides/auto.md",
        ),
        'Batches loaded ahead for each worker process, or in total with threads only: a number or `"auto"`. The '
        "default is 2. With a GPU as `device`, it also limits the batches copied ahead.",
        default=None,
        check=_check_choice,
    )
    persistent_workers: bool = _argument(
        _PARALLEL, ("guides/workers.md",), "`True` keeps worker processes alive between epochs.", default=False
    )
    worker_init_fn: Callable[[int], Any] | None = _argument(
        _PARALLEL,
        ("guides/workers.md",),
        "Function called with the worker's number when a worker process starts.",
        default=None,
    )
    multiprocessing_context: Any = _argument(
        _PARALLEL,
        ("guides/workers.md",),
        'How worker processes start: `"fork"`, `"spawn"`, `"forkserver"` or a context.',
        default=None,
        record=None,  # recorded as start_method
    )
    in_order: bool = _argument(
        _PARALLEL,
        ("guides/workers.md",),
        "`False` yields batches from worker processes as they are finished.",
        default=True,
    )
    timeout: float = _argument(
        _PARALLEL,
        ("guides/workers.md",),
        "Seconds to wait for a batch before raising an error; `0` waits without limit. Needs workers or threads.",
        default=0,
    )
    distributed: bool = _argument(
        _RANKS,
        ("guides/ranks.md",),
        "`True` reads rank and number of ranks from torch.distributed or the launcher (torchrun, Slurm, MPI).",
        default=False,
    )
    rank: int | None = _argument(
        _RANKS,
        ("guides/ranks.md",),
        "Rank of this process, from 0. Pass it together with `num_ranks`.",
        default=None,
        record=None,  # Stats has a field for it
    )
    num_ranks: int | None = _argument(
        _RANKS,
        ("guides/ranks.md",),
        "Number of ranks that split each global batch.",
        default=None,
        record=None,  # Stats has a field for it
    )
    mesh: DeviceMesh | Mapping[str, int] | Mesh | None = _argument(
        _RANKS,
        ("guides/ranks.md",),
        "Torch `DeviceMesh`, dict of dimension sizes, or `stoker.Mesh`: for tensor, context or pipeline parallelism, "
        "where some ranks need the same batch.",
        default=None,
    )
    shard: Literal["auto"] | None = _argument(
        _RANKS,
        ("guides/streams.md",),
        '`"auto"` splits an iterable dataset across workers and ranks, so that each sample is read once. By default, '
        "as in torch, every worker reads all of it unless the dataset splits itself.",
        default=None,
        check=_check_shard,
    )
    device: str | int | torch.device | None = _argument(
        _DEVICE,
        ("guides/device.md",),
        'Device for the batches, such as `"cuda"`: they are copied ahead of time from pinned memory, on a separate '
        "CUDA stream.",
        default=None,
        record=lambda value: None if value is None else str(value),
    )
    to: To | None = _argument(
        _DEVICE,
        ("guides/device.md",),
        "Dtype to convert to after the copy, or a dict from dtypes or field names to dtypes; tokens then travel as "
        "uint16, images as uint8.",
        default=None,
    )
    normalize: Normalize | Iterable[Any] | None = _argument(
        _DEVICE,
        ("guides/device.md",),
        "`(mean, std)` per channel, or `stoker.Normalize`: computes `(x / 255 - mean) / std` of uint8 images on the "
        "device.",
        default=None,
    )
    pin_memory: bool = _argument(
        _DEVICE,
        ("guides/device.md",),
        "`True` yields batches in pinned (page-locked) memory, for you to copy. Not needed with `device`.",
        default=False,
    )
    pin_memory_device: str = _argument(
        _DEVICE, ("guides/device.md",), "Deprecated and ignored, as in torch.", default=""
    )
    on_error: str | Policy = _argument(
        _ERRORS,
        ("guides/bad-samples.md",),
        'What to do about a sample that cannot be read: `"raise"`, `"skip"`, or a `stoker.Policy` with limits. Skipped '
        "samples are listed in `loader.ledger`.",
        default="raise",
        record=lambda value: value if isinstance(value, str) else value.action,
    )
    snapshot_every_n_steps: int | None = _argument(
        _ERRORS,
        ("guides/resuming.md",),
        "Accepted for scripts written for torchdata's `StatefulDataLoader`; no effect, because the state is exact "
        "after every batch.",
        default=None,
    )

    def __post_init__(self) -> None:
        for name, check in _CHECKS:
            check(name, getattr(self, name))
        object.__setattr__(self, "skip", tuple(self.skip))
        if self.seed is not None:
            object.__setattr__(self, "seed", operator.index(self.seed))

    @classmethod
    def of(cls, names: Mapping[str, Any]) -> Arguments:
        """Return the arguments among other names, such as `locals()` of `DataLoader.__init__`."""
        return cls(**{name: names[name] for name in ARGUMENT_NAMES})


ARGUMENTS: tuple[Field[Any], ...] = fields(Arguments)
"""The list itself: one dataclass field for each argument."""

ARGUMENT_NAMES = tuple(argument.name for argument in ARGUMENTS)

_CHECKS = tuple((each.name, check) for each in ARGUMENTS if (check := each.metadata[_CHECK]) is not None)


class RecordedArguments:
    """Returns a loader's arguments as plain data, as they are now, or were last when it is gone. Does not keep it."""

    def __init__(self, loader: Any) -> None:
        self._loader = ref(loader)
        self._last: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        """Return the arguments by name."""
        loader = self._loader()
        if loader is not None:
            self._last = _record(loader)
        return dict(self._last)


def _record(loader: Any) -> dict[str, Any]:
    recorded = {
        argument.name: argument.metadata[_RECORD](getattr(loader, argument.name))
        for argument in ARGUMENTS
        if argument.metadata[_RECORD] is not None
    }
    if loader._is_planned:  # the loader's own
        recorded |= {"sampler": None, "batch_sampler": None}
    context = loader.multiprocessing_context
    order = type(loader._schedule.order).__name__.lower()
    return recorded | {
        "order": order if loader.plan is not None else "stream" if loader._is_stream else "own",
        "start_method": None if context is None else context.get_start_method(),
        "is_iterable": loader._is_stream,
    }
