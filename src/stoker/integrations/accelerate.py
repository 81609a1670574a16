"""Accelerate: `accelerator.prepare(loader)` keeps the loader, and `skip_first_batches` lets it skip by its order.

Accelerate builds a torch loader from the attributes of the one it is given. A `stoker.DataLoader` stays what it is: it
takes its rank from the accelerator, puts batches on its device, and says when an epoch ends. What Accelerate can do
and this loader cannot is refused by name.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState, PartialState
from accelerate.utils import (
    DistributedType,
    broadcast_object_list,
    send_to_device,
    synchronize_rng_states,
)
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from stoker.errors import ArgumentError
from stoker.loader import DataLoader
from stoker.plan import Tail
from stoker.trainers import redirect

_original: dict[str, Callable[..., Any]] = {}


def install(module: ModuleType) -> None:
    """Let Accelerate's functions that build loaders anew leave ours as they are."""
    for name, to in (("prepare_data_loader", _prepare), ("skip_first_batches", _skip_first_batches)):
        function = getattr(module, name, None)
        if function is None:
            warnings.warn(
                f"this version of accelerate has no {module.__name__}.{name}, so accelerator.prepare may take a "
                "stoker.DataLoader apart without notice\n"
                "hint: use a version of accelerate that is tested, such as 1.15, or do not pass the loader to prepare",
                stacklevel=2,
            )
            continue
        _original[name] = redirect(function, to)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """What an accelerator wants of a loader."""

    device: torch.device | None
    non_blocking: bool
    rng_types: list[Any] | None
    generator: torch.Generator | None
    """One that all processes have in common, for samplers of the user's own."""


def _prepare(*args: Any, **kwargs: Any) -> Any:
    original = _original["prepare_data_loader"]
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    loader = call.arguments["dataloader"]
    if not is_ours(loader):
        return original(*args, **kwargs)
    return prepare(loader, **{name: value for name, value in call.arguments.items() if name != "dataloader"})


def is_ours(loader: Any) -> bool:
    """Return whether a loader is one of ours, and not over torch's DataPipes, which it leaves to torch."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterDataPipe | MapDataPipe)


def prepare(
    loader: DataLoader[Any],
    *,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Any = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    torch_device_mesh: Any = None,
    **_: Any,
) -> DataLoader[Any]:
    """Return `loader` itself, driven by Accelerate from now on. The arguments are those of Accelerate's function."""
    state = PartialState()
    if dispatch_batches or slice_fn_for_dispatch is not None:
        raise ArgumentError(
            "dispatch_batches=True (and a slice function for it) lets process 0 read for all others, and a "
            "stoker.DataLoader is read by every process itself: each reads its own share only",
            hint="leave out dispatch_batches; iterable datasets are shared out by stoker.DataLoader(..., shard='auto')",
        )
    if state.distributed_type == DistributedType.XLA:
        raise ArgumentError(
            "a stoker.DataLoader cannot be prepared for XLA devices", hint="pass torch's DataLoader on XLA"
        )
    num_ranks = state.num_processes if num_processes is None else num_processes
    rank = state.process_index if process_index is None else process_index
    if torch_device_mesh is not None:
        rank, num_ranks = _data_parallel(torch_device_mesh, rank, num_ranks, state)
    if isinstance(loader, PreparedLoader):
        return loader
    settled = None
    if num_ranks > 1:
        _share_out(loader, rank, num_ranks, split_batches=split_batches, even_batches=even_batches)
    if loader.plan is None and not isinstance(loader.dataset, IterableDataset):
        settled = _wrap_sampler(
            loader, rank, num_ranks, split_batches, even_batches, use_seedable_sampler, data_seed, rng_types
        )
    elif loader.seed is None:
        seed = data_seed
        if seed is None and num_ranks > 1 and state.num_processes > 1:
            # as Accelerate does for torch's sampler: every process draws, and the first one's counts
            drawn = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
            seed = broadcast_object_list([drawn])[0]
        if seed is not None:
            loader.adapt(seed=seed)
    generator, rng_types = settled or (None, None)
    loader.__class__ = _prepared_class(type(loader))  # type: ignore[arg-type]  # a class can be hashed
    assert isinstance(loader, PreparedLoader)
    loader.drive(
        _Driver(
            device=device if put_on_device else None,
            non_blocking=non_blocking,
            rng_types=rng_types,
            generator=generator,
        ),
        even_batches=even_batches,
    )
    return loader


def _data_parallel(mesh: Any, rank: int, num_ranks: int, state: PartialState) -> tuple[int, int]:
    """Return the rank among processes that read different data, of processes on a mesh, as Accelerate counts it."""
    sizes = {name: mesh[name].size() for name in mesh.mesh_dim_names or ()}
    if state.distributed_type == DistributedType.DEEPSPEED:
        same = sizes.get("tp", 1)
        return rank // same, num_ranks // same
    same = sizes.get("tp", 1) * sizes.get("cp", 1)
    return rank // same, sizes.get("dp_shard", 1) * sizes.get("dp_replicate", 1)


def _share_out(loader: DataLoader[Any], rank: int, num_ranks: int, *, split_batches: bool, even_batches: bool) -> None:
    """Let a loader whose order is known, or a stream, read only what is for this process."""
    is_stream = isinstance(loader.dataset, IterableDataset)
    if loader.plan is None and not is_stream:
        return
    is_shared = loader.num_ranks is not None and loader.num_ranks > 1
    if is_shared and (loader.rank, loader.num_ranks) != (rank, num_ranks):
        raise ArgumentError(
            f"this loader already reads only the part of rank {loader.rank} of {loader.num_ranks}, and Accelerate "
            f"would share it out as rank {rank} of {num_ranks}",
            hint="leave out distributed=, rank=, num_ranks= and mesh=: accelerator.prepare sets the rank",
        )
    if is_stream and loader.shard is None and loader.num_workers > 1:
        raise ArgumentError(
            f"each of the {loader.num_workers} workers would read all of the iterable dataset",
            hint="pass shard='auto' to stoker.DataLoader: every sample then comes once, over all processes and workers",
        )
    batch_size = None
    if split_batches and not is_shared:
        if loader.batch_size is None or loader.batch_size % num_ranks:
            raise ArgumentError(
                f"split_batches=True needs a batch_size that {num_ranks} processes can share evenly, and it is "
                f"{loader.batch_size}",
                hint=f"pass a multiple of {num_ranks}",
            )
        batch_size = loader.batch_size // num_ranks
    if even_batches and loader.tail == "keep":
        raise ArgumentError(
            "tail='keep' gives processes batches of different sizes at the end of an epoch, and even_batches=True "
            "promises that they are the same",
            hint="leave out tail, or pass DataLoaderConfiguration(even_batches=False)",
        )
    loader.adapt(
        rank=rank,
        num_ranks=num_ranks,
        batch_size=batch_size,
        tail=_even_tail(loader, even_batches),
        layout="blocks",
        shard="auto" if is_stream else None,
    )


def _even_tail(loader: DataLoader[Any], even_batches: bool) -> Tail | None:
    if loader.drop_last or loader.tail == "drop":
        return None
    return "pad" if even_batches or loader.tail == "pad" else "keep"


def _wrap_sampler(
    loader: DataLoader[Any],
    rank: int,
    num_ranks: int,
    split_batches: bool,
    even_batches: bool,
    use_seedable_sampler: bool,
    data_seed: int | None,
    rng_types: list[Any] | None,
) -> tuple[torch.Generator | None, list[Any] | None] | None:
    """Let Accelerate share out a sampler of the user's own, as in torch's loader; return what it synchronizes."""
    own: Any = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    if own is None:
        if num_ranks > 1:
            raise ArgumentError(
                "batch_size=None with a sampler of your own cannot be shared out among processes",
                hint="pass a sampler of batches as sampler=, or leave the order to the loader",
            )
        return None
    is_random = isinstance(getattr(own, "sampler", None), RandomSampler)
    if num_ranks == 1 and not (use_seedable_sampler and is_random):
        return None
    stand_in = _original["prepare_data_loader"](
        TorchDataLoader(loader.dataset, batch_sampler=own),
        num_processes=num_ranks,
        process_index=rank,
        split_batches=split_batches,
        rng_types=None if rng_types is None else list(rng_types),
        dispatch_batches=False,
        even_batches=even_batches,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
    )
    if isinstance(loader.sampler, BatchSampler):
        loader.adapt(sampler=stand_in.batch_sampler)
    else:
        loader.adapt(batch_sampler=stand_in.batch_sampler)
    return stand_in.synchronized_generator, stand_in.rng_types


class PreparedLoader(DataLoader[Any], DataLoaderStateMixin):  # type: ignore[misc]
    """A loader that an accelerator drives. Made by `accelerator.prepare`, never by hand."""

    use_stateful_dataloader = True
    """Read by Accelerate: `save_state` and `load_state` save and load the place."""

    _driver: _Driver
    _held_state: dict[str, Any] | None = None
    """Of the batch that training has, when the one behind it was drawn to see whether it is the last."""

    def drive(self, driver: _Driver, *, even_batches: bool) -> None:
        """Take orders from an accelerator."""
        self._driver = driver
        self.gradient_state = GradientState()
        self.reset()
        device = driver.device
        if device is not None and device.type == "cuda" and self.device is None:
            self.adapt(device=device)
        if self.plan is not None and self.batch_sampler is not None:
            self.__dict__["batch_sampler"] = _EvenBatchSampler(self, even_batches)

    @property
    def _drop_last(self) -> bool:
        return bool(self.drop_last)

    @property
    def total_batch_size(self) -> int:
        """Samples in a batch of all processes together."""
        if self.plan is not None:
            return self.plan.batch_size
        own: Any = self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler
        if own is None:
            return int(self.batch_size or 1) * (self.num_ranks or 1)
        is_split = getattr(own, "split_batches", False)
        return int(own.batch_size if is_split else own.batch_size * getattr(own, "num_processes", 1))

    @property
    def total_dataset_length(self) -> int:
        """Samples of the dataset, over all processes."""
        return int(getattr(self.dataset, "total_length", None) or len(self.dataset))  # type: ignore[arg-type]

    @property
    def iteration(self) -> int:
        """The epoch that the next iteration gives."""
        return self.next_epoch

    def get_sampler(self) -> Any:
        """Return the sampler, which may be inside a batch sampler."""
        return self.sampler

    def __iter__(self) -> Any:
        driver = self._driver
        if driver.rng_types is not None:
            synchronize_rng_states(driver.rng_types, driver.generator)
        self._held_state = None
        self.set_epoch(self.next_epoch)
        inner = super().__iter__()
        self.begin()
        return _PreparedIterator(self, inner)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is. Behind the last batch of an epoch, that is the beginning of the next one."""
        return super().state_dict() if self._held_state is None else dict(self._held_state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken."""
        self._held_state = None
        super().load_state_dict(state)


@lru_cache(maxsize=64)
def _prepared_class(kind: type[DataLoader[Any]]) -> type[PreparedLoader]:
    bases = (PreparedLoader,) if kind is DataLoader else (PreparedLoader, kind)
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": kind.__doc__})


class _PreparedIterator:
    """One iteration: tells Accelerate about the last batch before it is trained on."""

    def __init__(self, loader: PreparedLoader, inner: Any) -> None:
        self._loader, self._inner = loader, inner
        self._is_known = loader.plan is not None
        """Where an epoch ends is known without looking."""
        self._ahead: list[Any] = []
        self._is_drawn = self._is_last = self._is_over = False

    def __iter__(self) -> _PreparedIterator:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        loader = self._loader
        if self._is_over or self._is_last:
            self._end()
            raise StopIteration
        try:
            batch = self._next_known() if self._is_known else self._next_looking()
        except BaseException:
            self._end()
            raise
        driver = loader._driver
        return batch if driver.device is None else send_to_device(batch, driver.device, driver.non_blocking)

    def _next_known(self) -> Any:
        batch = next(self._inner)
        if self._inner.is_at_end:
            step = self._inner.recipe.step
            loader = self._loader
            assert loader.plan is not None
            num_samples = loader.plan.samples_in(step)
            for _ in self._inner:  # nothing comes: the epoch is over, and the state is the beginning of the next
                raise AssertionError("a batch behind the last one")
            self._is_last = loader.end_of_dataloader = True
            loader.remainder = num_samples % loader.total_batch_size if not loader._drop_last else -1
        return batch

    def _next_looking(self) -> Any:
        loader = self._loader
        if not self._is_drawn:
            self._is_drawn = True
            self._ahead.append(next(self._inner))
        batch = self._ahead.pop()
        loader._held_state = None
        held = loader.state_dict()
        try:
            self._ahead.append(next(self._inner))
            loader._held_state = held
        except StopIteration:
            self._is_last = loader.end_of_dataloader = True
        return batch

    def close(self) -> None:
        """End the iteration now."""
        self._inner.close()
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._ahead.clear()
            self._loader.end()

    def __del__(self) -> None:
        self._end()


class _EvenBatchSampler(BatchSampler):
    """What Accelerate looks at and sets to say whether processes get batches of the same size."""

    def __init__(self, loader: PreparedLoader, even_batches: bool) -> None:
        assert loader.batch_size is not None
        super().__init__(loader.sampler, loader.batch_size, loader.drop_last)
        self._loader, self._even_batches = loader, even_batches

    @property
    def even_batches(self) -> bool:
        """Whether the last batch is filled up, so that all processes have the same number of samples."""
        return self._even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        if value == self._even_batches:
            return
        loader = self._loader
        self._even_batches = value
        if (loader.num_ranks or 1) > 1:
            loader.adapt(tail=_even_tail(loader, value))
            loader.__dict__["batch_sampler"] = self


def _skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    if not is_ours(dataloader):
        return _original["skip_first_batches"](dataloader, num_batches)
    dataloader.skip_first(num_batches)
    return dataloader
