"""Accelerate: `accelerator.prepare(loader)` keeps the loader, and `save_state` saves where it is.

Accelerate builds a torch loader from the attributes of the one it is given. A `stoker.DataLoader` stays what it is: it
takes its rank from the accelerator, puts batches on its device, and reports the end of an epoch. What Accelerate can do
and this loader cannot is refused by name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate import checkpointing
from accelerate.data_loader import DataLoaderStateMixin, SeedableRandomSampler
from accelerate.state import GradientState, PartialState
from accelerate.utils import DistributedType, broadcast_object_list, send_to_device, synchronize_rng_states
from torch.utils.data import BatchSampler, RandomSampler
from torch.utils.data import DataLoader as TorchDataLoader

from stoker.errors import ArgumentError, StateError, StateMismatch
from stoker.integrations.loaders import check_share, is_ours
from stoker.loader import DataLoader
from stoker.loader.iterator import LoaderIterator
from stoker.loader.order.rebuilt_loader import describe_class
from stoker.loader.state.progress import readable
from stoker.plan import Recipe, Tail
from stoker.trainers import named_arguments, redirect

_original: dict[str, Callable[..., Any]] = {}


def install(module: ModuleType) -> None:
    """Redirect Accelerate's functions that rebuild loaders and that save and load their states."""
    for place, name, hook in (
        (module, "prepare_data_loader", _prepare),
        (module, "skip_first_batches", _skip_first_batches),
        (checkpointing, "save_accelerator_state", _save_state),
        (checkpointing, "load_accelerator_state", _load_state),
    ):
        function = getattr(place, name, None)
        if function is None:
            warnings.warn(
                f"this version of accelerate has no {place.__name__}.{name}, so accelerator.prepare may replace a "
                "stoker.DataLoader by torch's, and save_state may not save its state\n"
                "hint: use a version of accelerate that is tested, such as 1.15, or do not pass the loader to prepare",
                stacklevel=2,
            )
            continue
        _original[name] = redirect(function, partial(_call, name, hook))


def _call(name: str, hook: Callable[[dict[str, Any]], Any], *args: Any, **kwargs: Any) -> Any:
    """Call `hook` in the place of Accelerate's function, with the arguments by name."""
    return hook(named_arguments(_original[name], args, kwargs))


# ---------------------------------------------------------------- preparing


def _prepare(call: dict[str, Any]) -> Any:
    """Return the Stoker loader itself, from now on driven by Accelerate."""
    loader = call["dataloader"]
    if not is_ours(loader):
        return _original["prepare_data_loader"](**call)
    if isinstance(loader, PreparedLoader):
        return loader
    state = PartialState()
    if call["dispatch_batches"] or call["slice_fn_for_dispatch"] is not None:
        raise ArgumentError(
            "dispatch_batches=True or a slice function for it lets process 0 read for all others, but every process "
            "reads its own share of a stoker.DataLoader",
            hint="leave it out; iterable datasets are shared among processes without it",
        )
    if state.distributed_type == DistributedType.XLA:
        raise ArgumentError("a stoker.DataLoader does not support XLA devices", hint="use torch's DataLoader on XLA")
    rank, num_ranks = _data_parallel(call, state)
    given_tail, drops_last = loader.tail, bool(loader.drop_last)
    generator, rng_types = None, [kind for kind in call["rng_types"] or () if kind != "generator"]
    is_shared_here = False
    if loader._is_planned or loader._is_stream:
        if state.num_processes > 1:
            check_share(
                loader,
                rank,
                num_ranks,
                tool="Accelerate",
                instead="for tensor or context parallelism pass parallelism_config= to the Accelerator",
            )
        is_shared_here = num_ranks > 1
        changes = _changes_for_share(loader, rank, num_ranks, call) if is_shared_here else {}
        seed, is_drawn = _common_seed(loader, call, state)
        if changes or seed is not None:
            loader.adapt(seed=seed, **changes)
        if is_drawn:
            loader._schedule.is_seed_drawn = True
        generator, rng_types = _stream_generator(loader, rng_types, call) if is_shared_here else (None, rng_types)
    else:
        generator, rng_types = _share_sampler(loader, rank, num_ranks, call)
    device = call["device"] if call["put_on_device"] else None
    if device is not None and device.type == "cuda" and loader.device is None:
        loader.adapt(device=device)
    kind: Any = type(loader)
    loader.__class__ = _prepared_class(kind)
    loader._drive(
        _Driver(
            device=device,
            non_blocking=call["non_blocking"],
            rng_types=rng_types,
            generator=generator,
            tail=given_tail,
            drops_last=drops_last,
            shares=is_shared_here,
        ),
        even_batches=call["even_batches"],
    )
    return loader


def _data_parallel(call: dict[str, Any], state: PartialState) -> tuple[int, int]:
    """Return the rank among processes that read different data, and their number, as Accelerate counts them."""
    rank = state.process_index if call["process_index"] is None else call["process_index"]
    num_ranks = state.num_processes if call["num_processes"] is None else call["num_processes"]
    mesh = call["torch_device_mesh"]
    if mesh is not None:
        sizes = {name: mesh[name].size() for name in mesh.mesh_dim_names or ()}
        is_deepspeed = state.distributed_type == DistributedType.DEEPSPEED
        num_same = sizes.get("tp", 1) * (1 if is_deepspeed else sizes.get("cp", 1))
        rank, num_ranks = rank // num_same, num_ranks // num_same
    return rank, num_ranks


def _changes_for_share(loader: DataLoader[Any], rank: int, num_ranks: int, call: dict[str, Any]) -> dict[str, Any]:
    """Return what has to change for this process to read its share alone."""
    is_shared = loader.num_ranks > 1
    batch_size = None
    if call["split_batches"]:
        if is_shared:
            raise ArgumentError(
                f"split_batches=True makes batch_size={loader.batch_size} that of all processes together, but this "
                "loader was given its rank, and its batch_size is that of one process",
                hint="leave out distributed=, rank=, num_ranks= and mesh=",
            )
        if loader.batch_size is None or loader.batch_size % num_ranks:
            raise ArgumentError(
                f"split_batches=True expects a batch_size that is a multiple of the {num_ranks} processes, got "
                f"{loader.batch_size}",
                hint=f"pass a multiple of {num_ranks}",
            )
        batch_size = loader.batch_size // num_ranks
    if loader._is_stream and loader.shard is None and loader.num_workers > 1:
        raise ArgumentError(
            f"each of the {loader.num_workers} workers would read all of the iterable dataset",
            hint="pass shard='auto' to stoker.DataLoader: every sample then comes once, over all processes and workers",
        )
    if call["even_batches"] and loader.tail == "keep":
        raise ArgumentError(
            "tail='keep' gives processes batches of different sizes at the end of an epoch, but even_batches=True "
            "promises batches of the same size",
            hint="leave out tail=, or pass DataLoaderConfiguration(even_batches=False)",
        )
    return {
        "rank": rank,
        "num_ranks": num_ranks,
        "batch_size": batch_size,
        "tail": _tail(loader.tail, bool(loader.drop_last), call["even_batches"]),
        "layout": "blocks",
        "shard": "auto" if loader._is_stream else None,
    }


def _tail(given: Tail | None, drops_last: bool, even_batches: bool) -> Tail:
    """Return what happens to the last, incomplete batch of several processes."""
    if drops_last or given == "drop":
        return "drop"
    return "pad" if even_batches or given == "pad" else "keep"


def _common_seed(loader: DataLoader[Any], call: dict[str, Any], state: PartialState) -> tuple[int | None, bool]:
    """Return a seed that all processes agree on, None to leave it as it is, and whether it was drawn."""
    if loader.seed is not None or loader.is_resumed:
        return None, False
    if call["data_seed"] is not None:
        return call["data_seed"], False
    if state.num_processes == 1 and not call["use_seedable_sampler"]:
        return None, False
    schedule = loader._schedule
    seed = torch.initial_seed() if call["use_seedable_sampler"] else schedule.seed
    is_drawn = schedule.is_seed_drawn and not call["use_seedable_sampler"]
    # processes may have different generators: that of the first one counts, as for torch's samplers
    return broadcast_object_list([seed])[0], is_drawn


def _stream_generator(
    loader: DataLoader[Any], rng_types: list[Any], call: dict[str, Any]
) -> tuple[torch.Generator | None, list[Any]]:
    """Return the generator of a stream that processes share, and what they synchronize: all have to read one order."""
    generator = getattr(loader.dataset, "generator", None) if loader._is_stream else None
    if not isinstance(generator, torch.Generator):
        return None, rng_types
    if "generator" not in (call["rng_types"] or ()):
        raise ArgumentError(
            f"{describe_class(loader.dataset)} draws from a generator of its own, which rng_types={rng_types} leaves "
            "out: processes would split different orders of it",
            hint="add 'generator' to the rng_types of the Accelerator, or leave them out",
        )
    return generator, [*rng_types, "generator"]


def _share_sampler(
    loader: DataLoader[Any], rank: int, num_ranks: int, call: dict[str, Any]
) -> tuple[torch.Generator | None, list[Any]]:
    """Let Accelerate split the user's own sampler, as in torch's loader; return what it synchronizes."""
    own: Any = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    rng_types = list(call["rng_types"] or ())
    inside = getattr(own, "sampler", None)
    is_random = isinstance(inside, RandomSampler)
    if num_ranks == 1 and not (call["use_seedable_sampler"] and is_random):
        return None, [kind for kind in rng_types if kind != "generator"]
    if own is None:
        raise ArgumentError(
            "batch_size=None with a sampler of your own is not supported with several processes",
            hint="pass a sampler of batches as sampler=, or leave out the sampler",
        )
    for sampler in (own, inside):
        if num_ranks > 1 and getattr(sampler, "num_replicas", 1) != 1:
            raise ArgumentError(
                f"{describe_class(sampler)} already gives this process its share of the data, and Accelerate would "
                "share that out again: most samples would never be read",
                hint="leave out the sampler and pass shuffle=True: accelerator.prepare splits the data",
            )
    stand_in = _original["prepare_data_loader"](
        TorchDataLoader(loader.dataset, batch_sampler=own),
        num_processes=num_ranks,
        process_index=rank,
        split_batches=call["split_batches"],
        rng_types=rng_types,
        even_batches=call["even_batches"],
        use_seedable_sampler=call["use_seedable_sampler"],
        data_seed=call["data_seed"],
    )
    if isinstance(loader.sampler, BatchSampler):
        loader.adapt(sampler=stand_in.batch_sampler)
    else:
        loader.adapt(batch_sampler=stand_in.batch_sampler)
    return stand_in.synchronized_generator, stand_in.rng_types


# ---------------------------------------------------------------- driving


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """What an accelerator wants of a loader."""

    device: torch.device | None
    non_blocking: bool
    rng_types: list[Any]
    """Random number generators to synchronize at the start of an epoch."""
    generator: torch.Generator | None
    """That of the user's own sampler, which is one of them."""
    tail: Tail | None
    """The loader's, as its user has given it."""
    drops_last: bool
    shares: bool
    """Whether several processes read shares of the loader's own order, or of a stream."""


class PreparedLoader(DataLoader[Any], DataLoaderStateMixin):  # type: ignore[misc]
    """A loader that an accelerator drives. Made by `accelerator.prepare`, never by hand."""

    _driver: _Driver
    _held: tuple[dict[str, Any] | StateError, Recipe | None] | None = None
    """State and recipe of the batch that training has, when the next one was read to see whether it is the last."""

    def _drive(self, driver: _Driver, *, even_batches: bool) -> None:
        self._driver = driver
        self._is_accelerate_prepared = True
        if driver.shares and self.batch_sampler is not None:
            # where Accelerate looks for it, and changes it in join_uneven_inputs
            self.batch_sampler.even_batches = even_batches  # type: ignore[attr-defined]

    def _set_planned_sampler(self) -> None:
        even_batches = getattr(self.batch_sampler, "even_batches", None)
        super()._set_planned_sampler()
        if even_batches is not None:
            self.batch_sampler.even_batches = even_batches  # type: ignore[union-attr]

    @property
    def gradient_state(self) -> GradientState:
        """Accelerate's, which is one for the whole process."""
        return GradientState()

    @property
    def _drop_last(self) -> bool:
        return self._driver.drops_last

    @property
    def total_batch_size(self) -> int:
        """Samples in a batch of all processes together."""
        if self._is_planned or self._is_stream:
            return self._schedule.batch_size * self._schedule.num_ranks
        own = self._own_batches
        is_split = getattr(own, "split_batches", False)
        return int(own.batch_size if is_split else own.batch_size * getattr(own, "num_processes", 1))

    @property
    def total_dataset_length(self) -> int:
        """Samples of the dataset, over all processes."""
        return int(getattr(self.dataset, "total_length", None) or len(self.dataset))  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        driver = self._driver
        synchronize_rng_states(driver.rng_types, driver.generator)
        even_batches = getattr(self.batch_sampler, "even_batches", None)
        if driver.shares and even_batches is not None:
            tail = _tail(driver.tail, driver.drops_last, even_batches)
            if tail != self.tail:
                self.adapt(tail=tail)
        self._held = None
        self.set_epoch(self.next_epoch)
        return self._drive_epoch(super().__iter__())

    def _drive_epoch(self, batches: Any) -> Iterator[Any]:
        """Yield the batches of one epoch on the accelerator's device; before the last one, note that it is the last."""
        number = self._num_iterations
        is_known = self._is_planned and isinstance(batches, LoaderIterator)
        self.begin()
        try:
            for batch in self._until_known_end(batches) if is_known else self._looking_ahead(batches):
                device = self._driver.device
                yield batch if device is None else send_to_device(batch, device, self._driver.non_blocking)
        finally:
            if self._num_iterations == number:  # an iterator that was left behind ends nothing
                self.end()

    def _until_known_end(self, batches: LoaderIterator) -> Iterator[Any]:
        for batch in batches:
            if batches.is_at_end:
                assert batches.recipe is not None
                assert self.plan is not None
                num_samples = self.plan.samples_in(batches.recipe.step)
                following = next(batches, None)  # ends the iteration: the state is now the beginning of the next epoch
                assert following is None, "a batch after the last one"
                self._note_last(num_samples % self.total_batch_size)
            yield batch

    def _looking_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        batches = iter(batches)
        end = object()
        following = next(batches, end)
        while following is not end:
            batch, held = following, self._position()
            following = next(batches, end)
            self._held = held
            if following is end:
                self._held = None
                self._note_last(self._remainder(held[0]))
            yield batch

    def _position(self) -> tuple[dict[str, Any] | StateError, Recipe | None]:
        try:
            return super().state_dict(), super().recipe
        except StateError as error:  # the state of a stream that has none was requested
            return error, super().recipe

    def _remainder(self, last: dict[str, Any] | StateError) -> int:
        """Return how many samples the last batch has beyond full ones; -1 if that is not known."""
        if not self._is_stream:
            return self.remainder  # Accelerate's, from the dataset's length
        if isinstance(last, StateError) or last["sharing"] != "whole":
            return -1
        return int(readable(last)["place"]["samples"]) % self.total_batch_size

    def _note_last(self, remainder: int) -> None:
        self.end_of_dataloader = True
        self.remainder = -1 if self._drop_last else remainder

    @property
    def recipe(self) -> Recipe | None:
        """What is in the batch that was yielded last: its step, positions and padding."""
        return super().recipe if self._held is None else self._held[1]

    def state_dict(self) -> dict[str, Any]:
        """Return where training is. Behind the last batch of an epoch, that is the beginning of the next one."""
        if self._held is None:
            state = super().state_dict()
        elif isinstance(self._held[0], StateError):
            raise self._held[0]
        else:
            state = dict(self._held[0])
        seedable = self._seedable
        return state | {
            # a user's own sampler is counted in batches of one process
            "num_processes": getattr(self._own_batches, "num_processes", 1),
            "sampler_seed": None if seedable is None else seedable.initial_seed,
        }

    def load_state_dict(self, state: dict[str, Any], *, grown: bool = False) -> None:
        """Continue the next iteration where `state` was taken."""
        seedable = self._seedable
        if isinstance(state, dict) and state.get("kind") == "sampler":
            theirs, ours = state.get("num_processes", 1), getattr(self._own_batches, "num_processes", 1)
            if theirs != ours:
                raise StateMismatch({"num_processes": (theirs, ours)})
            if (state.get("sampler_seed") is None) != (seedable is None):
                raise StateMismatch({"use_seedable_sampler": (seedable is None, seedable is not None)})
        super().load_state_dict(state, grown=grown)
        if seedable is not None:
            seedable.initial_seed = state["sampler_seed"]
        self._held = None

    def _set_epoch_of_parts(self, epoch: int) -> None:
        super()._set_epoch_of_parts(epoch)
        inside = getattr(self._own_batches, "batch_sampler", None)  # what Accelerate splits
        parts: tuple[Any, ...] = (inside, getattr(inside, "sampler", None))
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    @property
    def _own_batches(self) -> Any:
        """The sampler of batches, the user's or Accelerate's around it."""
        return self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler

    @property
    def _seedable(self) -> SeedableRandomSampler | None:
        """Accelerate's sampler in the place of a random one, whose seed is that of the process."""
        own = self._own_batches
        parts = (getattr(part, "sampler", None) for part in (own, getattr(own, "batch_sampler", None)))
        return next((part for part in parts if isinstance(part, SeedableRandomSampler)), None)

    def __reduce__(self) -> Any:
        return _unpickle, (type(self).__bases__[1], self.__getstate__())


@lru_cache(maxsize=64)
def _prepared_class(kind: Any) -> type[PreparedLoader]:
    """Return `kind` as a class of prepared loaders."""
    return type(kind.__name__, (PreparedLoader, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _unpickle(kind: Any, state: dict[str, Any]) -> PreparedLoader:
    loader = object.__new__(_prepared_class(kind))
    loader.__setstate__(state)
    return loader


# ---------------------------------------------------------------- skipping, saving and loading


def _skip_first_batches(call: dict[str, Any]) -> Any:
    loader = call["dataloader"]
    if not is_ours(loader):
        return _original["skip_first_batches"](**call)
    loader.skip_first(call["num_batches"])
    return loader


def _state_paths(folder: str | Path, number: int) -> dict[int, Path]:
    """Return the files with the states of a loader, by the process that saved them."""
    found = Path(folder).glob(f"stoker_loader_{number}_*.bin")
    return dict(sorted((int(path.stem.rpartition("_")[2]), path) for path in found))


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a state to a file, which stays as it was if the process is killed meanwhile."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def _save_state(call: dict[str, Any]) -> Any:
    """Save the states of Stoker's loaders with the others, each process its own."""
    result = _original["save_accelerator_state"](**call)
    for number, loader in enumerate(call["dataloaders"]):
        if isinstance(loader, PreparedLoader):
            path = Path(call["output_dir"], f"stoker_loader_{number}_{call['process_index']}.bin")
            write_state(loader.state_dict(), path)
            for process, other in _state_paths(call["output_dir"], number).items():
                if process >= PartialState().num_processes:  # of an earlier save, when there were more
                    other.unlink(missing_ok=True)
    return result


def _check_same_save(first: dict[str, Any], own: dict[str, Any], folder: str | Path) -> None:
    """Refuse states that processes have saved at different steps, where the processes take their steps together."""
    is_together = own["kind"] == "plan" or own.get("sharing") == "whole"
    places = [(state["epoch"], state["step"]) for state in (first, own)]
    if is_together and places[0] != places[1] and not (first.get("ahead") or own.get("ahead")):
        (epoch, step), (own_epoch, own_step) = places
        raise StateError(
            f"{folder} has states of different saves: one process was at step {step} in epoch {epoch}, this one at "
            f"step {own_step} in epoch {own_epoch}\n"
            "hint: a save into this folder was interrupted; load an earlier one, and save each to a folder of its own"
        )


def _load_state(call: dict[str, Any]) -> Any:
    """Load what `_save_state` has saved; a process that was not there yet takes the state of another one."""
    for number, loader in enumerate(call["dataloaders"]):
        if not isinstance(loader, PreparedLoader):
            continue
        paths = _state_paths(call["input_dir"], number)
        if paths:
            state = torch.load(next(iter(paths.values())), weights_only=True)
            if call["process_index"] in paths:
                first, state = state, torch.load(paths[call["process_index"]], weights_only=True)
                _check_same_save(first, state, call["input_dir"])
            loader.load_state_dict(state)
            continue
        warnings.warn(
            f"{call['input_dir']} has no state of the stoker.DataLoader that was prepared as number {number}, so that "
            "loader starts a new epoch\n"
            "hint: accelerator.skip_first_batches leaves out batches that an earlier run was trained on",
            stacklevel=2,
        )
    return _original["load_accelerator_state"](**call)
