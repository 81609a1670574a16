"""Lightning's Trainer: it drives a copy of the loader, in the loader's own order, and its checkpoints resume exactly.

Lightning builds a torch loader from the attributes of the one it is given. Here it gets a copy instead, changed as
the Trainer wants it: for a rank, for overfit_batches, for predict. The user's own loader shows where the copy is.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

import torch.distributed
from torch.utils.data import SequentialSampler
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from stoker.errors import ArgumentError, StateError
from stoker.loader import DataLoader
from stoker.loader.plan_progress import PlanProgress
from stoker.loader.progress import Progress
from stoker.trainers import redirect

_L = TypeVar("_L", bound=DataLoader[Any])
_Function = Callable[..., Any]

_TESTED = "2.6"
_STATES_OF_RANKS = "stoker_states_of_ranks"


def install(module: ModuleType) -> None:
    """Let a Trainer take our loaders as they are. `module` is Lightning's `fit_loop`, which imports the others."""
    package = module.__name__.removesuffix(".loops.fit_loop")
    connectors = import_module(f"{package}.trainer.connectors.data_connector")
    combined = import_module(f"{package}.utilities.combined_loader")
    replace(connectors, "_DataConnector._prepare_dataloader", lambda original: _preparing(original, package))
    replace(connectors, "_update_dataloader", _keeping)
    replace(combined, "_shutdown_workers_and_reset_iterator", _stopping)
    replace(module, "_set_sampler_epoch", _following)
    replace(module, "_FitLoop._load_combined_loader_states", _loading)
    replace(module, "_FitLoop.on_advance_start", _beginning)
    replace(module, "_FitLoop.on_save_checkpoint", _saving)


def replace(module: ModuleType, name: str, make: Callable[[_Function], _Function]) -> None:
    """Put what `make` returns, given the original, in the place of a function or method of Lightning."""
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    original = getattr(owner, last, None)
    if original is None:
        warnings.warn(
            f"this version of Lightning has no {module.__name__}.{name}, so it may take a stoker.DataLoader apart "
            f"without notice, or not resume it exactly\nhint: use a version of Lightning that is tested, such as "
            f"{_TESTED}",
            stacklevel=2,
        )
    elif path:
        setattr(owner, last, make(original))
    else:
        kept: list[_Function] = []
        kept.append(redirect(original, make(lambda *args, **kwargs: kept[0](*args, **kwargs))))


def is_ours(loader: Any) -> bool:
    """Return whether a loader is one of ours, and not over torch's DataPipes, which it leaves to torch."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterDataPipe | MapDataPipe)


def shared_out(loader: DataLoader[Any], ranks: dict[str, Any] | None, switch: str) -> dict[str, Any]:
    """Return the changes that give a loader its share, by the arguments that Lightning has for a `DistributedSampler`.

    Without `ranks` nothing is shared out. A loader that was told its rank stays as it is, if Lightning agrees.
    """
    is_whole = loader.shard is None if loader._is_stream else not loader._is_planned
    if ranks is None or loader.mesh is not None or is_whole:
        return {}
    rank, num_ranks = int(ranks["rank"]), int(ranks["num_replicas"])
    if loader.num_ranks > 1:
        if (loader.rank, loader.num_ranks) != (rank, num_ranks):
            raise ArgumentError(
                f"this loader already reads only the part of rank {loader.rank} of {loader.num_ranks}, and Lightning "
                f"would share it out as rank {rank} of {num_ranks}",
                hint=f"leave out distributed=, rank= and num_ranks=, which Lightning sets, or pass {switch}",
            )
        return {}
    seed = {"seed": int(os.environ.get("PL_GLOBAL_SEED", 0))} if loader.generator is None else {}
    return {"rank": rank, "num_ranks": num_ranks, **seed}


def sampler_changes(module: str, loader: DataLoader[Any], sampler: Any, *mode: Any) -> dict[str, Any]:
    """Return the change that gives a loader with a sampler of the user's own the one that Lightning made of it."""
    resolve = import_module(module)._dataloader_init_kwargs_resolve_sampler
    arguments = resolve(loader, sampler, *mode)
    name = "sampler" if arguments.get("batch_sampler") is None else "batch_sampler"
    return {name: arguments[name]}


def changed_copy(loader: _L, changes: dict[str, Any]) -> _L:
    """Return a loader like this one but for `changes`, which counts where this one counts."""
    if loader._is_planned and "rank" not in changes:
        _ = loader._course.seed  # drawn by now, and the same for all copies
    twin = loader.adapted(**changes)
    twin.ledger = loader.ledger
    if loader.auto is None:  # otherwise the counters describe arguments that the copy chooses for itself
        twin.counters = loader.counters
        twin.counters.rank, twin.counters.num_ranks = twin.rank, twin.num_ranks
    return twin  # type: ignore[return-value]


class LightningLoader(DataLoader[Any]):
    """A loader that a Trainer drives. Made by the Trainer from the user's, never by hand.

    An iteration begins with its first batch: Lightning makes iterators before it says which epoch it is in.
    """

    _origin: DataLoader[Any]
    _loop: Any
    """Lightning's loop over epochs, for the loader that is trained on; otherwise None."""
    _is_fixed: bool
    """Every epoch gives the batches of the first one."""
    _indices: Any = None
    """Where Lightning looks for the positions of each batch, while it predicts."""
    _is_pending: bool
    """The next batch is the first one of another iteration."""
    _held: deque[Progress | dict[str, Any]]
    """Where the loader was before each of the last batches."""
    _is_stopped: bool

    def drive(self, origin: DataLoader[Any], loop: Any, *, is_fixed: bool) -> None:
        """Take orders from a Trainer."""
        self._origin, self._loop, self._is_fixed = origin, loop, is_fixed
        self._is_pending, self._is_stopped, self._held = False, False, deque(maxlen=2)

    def note_positions(self, wrapper: Any) -> None:
        """Tell Lightning which positions each batch has, in a batch sampler that it has made for this."""
        self._indices = self.__dict__["batch_sampler"] = wrapper

    def follow_epoch(self, epoch: int) -> None:
        """Give `epoch` of Lightning next, or go on in its middle if that is where a state was taken."""
        if self._resume is not None or self._num_behind:
            loaded = self._resume or self._progress
            assert loaded is not None
            place = loaded.epoch if self._chosen_epoch is None else self._chosen_epoch
            if place == epoch:
                self._chosen_epoch = epoch
                return
            if self._resume is not None and place != epoch - 1:
                raise StateError(
                    f"a state was loaded into this loader, which goes on in epoch {place}, but Lightning begins with "
                    f"epoch {epoch}\nhint: let Lightning load it, with trainer.fit(..., ckpt_path=...): its "
                    "checkpoints contain the state of the loader"
                )
        self.set_epoch(0 if self._is_fixed else epoch)
        self._chosen_epoch = epoch
        self._is_pending = True

    def __iter__(self) -> Any:
        self._is_pending = True
        return _Iteration(self)

    def begin(self) -> Any:
        """Return an iterator over the epoch that comes next."""
        self._is_pending = False
        if self._is_stopped:
            self._held.pop()
            self._is_stopped = False
        if self._indices is not None:
            self._indices.seen_batch_indices = []
        inner = super().__iter__()
        if self._loop is not None:
            self._show_place()
        return inner

    def _show_place(self) -> None:
        """Let the user's loader show where this one is, and later copies of it continue with the same seed."""
        origin = self._origin
        origin._progress, origin._resume = self._progress, None
        origin._course.dataset = self._course.dataset
        origin._course.follow(None, self._course.drawn_seed)

    def draw(self, inner: Any) -> Any:
        """Return the next batch of an iterator."""
        if self._loop is not None:
            self._held.append(self._snapshot())
        try:
            batch = next(inner)
        except StopIteration:
            self._is_stopped = bool(self._held)
            raise
        if self._indices is not None:
            recipe = inner.recipe
            if recipe.padding is not None and recipe.padding.all():  # there are fewer samples left than ranks
                return self.draw(inner)
            self._indices.seen_batch_indices.append(recipe.positions.tolist())
        return batch

    def _snapshot(self) -> Progress | dict[str, Any]:
        progress = self._progress
        if isinstance(progress, PlanProgress) and not progress.ahead:
            before = copy(progress)
            before.ahead = set()
            return before
        return super().state_dict()

    @property
    def _num_behind(self) -> int:
        """Batches that Lightning has drawn and not yet trained on."""
        batches = None if self._loop is None else getattr(self._loop._data_fetcher, "batches", None)
        if batches is None:
            return 0
        current = self._loop.epoch_loop.batch_progress.current
        return len(batches) + (current.ready > current.processed)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is, whatever Lightning has drawn ahead of it."""
        num_behind = self._num_behind
        if num_behind and len(self._held) >= num_behind:
            held = self._held[-num_behind]
            return dict(held) if isinstance(held, dict) else self._state_at(held)
        if self._is_pending and self._resume is None:
            first = self._new_progress(self._course.next_epoch)
            if self._progress is not None:
                first.go_on_from(self._progress)
            return self._state_at(first)
        return super().state_dict()

    def _state_at(self, place: Progress) -> dict[str, Any]:
        progress, self._progress = self._progress, place
        try:
            return super().state_dict()
        finally:
            self._progress = progress

    def stop(self) -> None:
        """End worker processes that would stay for the next iteration."""
        self._processes = None


class _Iteration:
    """An iteration of a loader, begun when its first batch is asked for."""

    def __init__(self, loader: LightningLoader) -> None:
        self._loader = loader
        self._inner: Any = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if self._inner is None:
            self._inner = self._loader.begin()
        return self._loader.draw(self._inner)


@lru_cache(maxsize=64)
def _driven_class(kind: type[DataLoader[Any]]) -> type[LightningLoader]:
    if issubclass(kind, LightningLoader):
        return kind
    bases = (LightningLoader,) if kind is DataLoader else (LightningLoader, kind)
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _preparing(original: _Function, package: str) -> _Function:
    """Return what a Trainer does to each loader before it uses it."""

    def prepare(connector: Any, dataloader: Any, shuffle: bool, mode: Any) -> Any:
        if not is_ours(dataloader):
            return original(connector, dataloader, shuffle, mode)
        trainer, loader = connector.trainer, dataloader
        is_predicting = mode == "predict"
        is_fixed = trainer.state.fn == "fit" and trainer.overfit_batches > 0
        changes: dict[str, Any] = {}
        if loader._is_planned or loader._is_stream:
            is_distributed = trainer._accelerator_connector.use_distributed_sampler
            ranks = trainer.distributed_sampler_kwargs if is_distributed else None
            changes = shared_out(loader, ranks, "use_distributed_sampler=False to Trainer")
            if loader._is_planned and is_fixed:
                changes["order"] = "sequential"
            if loader._is_planned and is_predicting:
                changes["tail"] = "keep"
        elif is_fixed or is_predicting or connector._requires_distributed_sampler(loader):
            sampler = connector._resolve_sampler(loader, shuffle=shuffle, mode=mode)
            if is_fixed and sampler is loader.sampler:
                sampler = SequentialSampler(loader.dataset)
            changes = sampler_changes(f"{package}.utilities.data", loader, sampler, mode)
        driven = changed_copy(loader, changes)
        driven.__class__ = _driven_class(type(driven))
        driven.drive(loader, trainer.fit_loop if mode == "train" else None, is_fixed=is_fixed)
        if is_predicting and driven._is_planned and driven.batch_sampler is not None:
            wrapper = import_module(f"{package}.overrides.distributed")._IndexBatchSamplerWrapper
            driven.note_positions(wrapper(driven.batch_sampler))
        return driven

    return prepare


def _keeping(original: _Function) -> _Function:
    """Return what makes a loader with another sampler: not of ours, which have been, or will be, prepared."""

    def update(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        return dataloader if is_ours(dataloader) else original(dataloader, *args, **kwargs)

    return update


def _stopping(original: _Function) -> _Function:
    def stop(dataloader: Any) -> None:
        if isinstance(dataloader, LightningLoader):
            dataloader.stop()
        else:
            original(dataloader)

    return stop


def _following(original: _Function) -> _Function:
    def follow(dataloader: Any, epoch: int) -> None:
        if isinstance(dataloader, LightningLoader):
            dataloader.follow_epoch(epoch)
        else:
            original(dataloader, epoch)

    return follow


def _loading(original: _Function) -> _Function:
    """Return what loads the states of a checkpoint. Lightning leaves them out at the end of an epoch: not the seed."""

    def load(loop: Any) -> None:
        states = loop._combined_loader_states_to_load = [_own(state) for state in loop._combined_loader_states_to_load]
        original(loop)
        loaders = _stateful(loop)
        if loop._combined_loader_states_to_load and len(states) == len(loaders):
            for loader, state in zip(loaders, states):
                if isinstance(loader, LightningLoader):
                    loader.load_state_dict(state)
            loop._combined_loader_states_to_load = []
        elif not states and loop.restarting and loop.epoch_loop.batch_progress.current.ready:
            if any(isinstance(loader, LightningLoader) for loader in loaders):
                warnings.warn(
                    "the checkpoint was saved in the middle of an epoch and has no state of the loader, as it was "
                    "trained with another one: Lightning goes on in the middle, and the loader at the beginning",
                    stacklevel=2,
                )

    return load


def _stateful(loop: Any) -> list[Any]:
    """Return the loaders that Lightning saves the states of, in that order."""
    return [loader for loader in loop._combined_loader.flattened if hasattr(loader, "load_state_dict")]


def _own(state: Any) -> Any:
    """Return this rank's state, where each rank has one of its own."""
    if not isinstance(state, dict) or _STATES_OF_RANKS not in state:
        return state
    states = state[_STATES_OF_RANKS]
    is_alone = not torch.distributed.is_initialized()
    rank, num_ranks = (0, 1) if is_alone else (torch.distributed.get_rank(), torch.distributed.get_world_size())
    return states[rank if num_ranks == len(states) else 0]


def _beginning(original: _Function) -> _Function:
    """Return what begins an epoch. A batch that was drawn ahead of it may be of another one."""

    def begin(loop: Any) -> None:
        original(loop)
        loaders = [loader for loader in loop._combined_loader.flattened if isinstance(loader, LightningLoader)]
        if getattr(loop._data_fetcher, "batches", None) and any(loader._is_pending for loader in loaders):
            iter(loop._data_fetcher)

    return begin


def _saving(original: _Function) -> _Function:
    """Return what a checkpoint has of the loaders: of a stream that is shared out, the place of each rank."""

    def save(loop: Any) -> dict[str, Any]:
        saved: dict[str, Any] = original(loop)
        for number, state in enumerate(saved.get("combined_loader", ())):
            loader = _stateful(loop)[number]
            if isinstance(loader, LightningLoader) and loader._is_stream and loader.num_ranks > 1:
                states: list[Any] = [None] * torch.distributed.get_world_size()
                torch.distributed.all_gather_object(states, state)
                saved["combined_loader"][number] = {_STATES_OF_RANKS: states}
        return saved

    return save
