"""Lightning's Trainer: it drives a copy of the loader, in the loader's own order, and its checkpoints resume exactly.

Lightning builds a torch loader from the attributes of the one it is given. Here it gets a copy instead, changed as
the Trainer wants it: for a rank, for overfit_batches, for predict. The user's own loader shows where the copy is.
"""

from __future__ import annotations

import os
import sys
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

from stoker.errors import ArgumentError, StateError
from stoker.integrations.loaders import check_share, has_share, is_ours
from stoker.loader import DataLoader
from stoker.loader.state.loader_state import new_progress
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import Progress, differing
from stoker.loader.state.sampler_progress import SamplerProgress
from stoker.trainers import redirect

_L = TypeVar("_L", bound=DataLoader[Any])
_Function = Callable[..., Any]

_TESTED = "2.6"
_STATES_OF_RANKS = "stoker_states_of_ranks"
_IS_OVER = "is_epoch_over"
"""Set in a state that begins an epoch while Lightning is still in the one before."""


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
    replace(import_module(f"{package}.loops.training_epoch_loop"), "_TrainingEpochLoop.on_run_start", _counting)
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


def shared_out(loader: DataLoader[Any], ranks: dict[str, Any] | None, switch: str) -> dict[str, Any]:
    """Return the changes that give a loader its share, by the arguments that Lightning has for a `DistributedSampler`.

    Without `ranks` nothing is shared out. A loader that was given its rank stays as it is, if Lightning agrees.
    """
    is_whole = loader.shard is None if loader._is_stream else not loader._is_planned
    if ranks is None or is_whole:
        return {}
    rank, num_ranks = int(ranks["rank"]), int(ranks["num_replicas"])
    if has_share(loader):
        check_share(loader, rank, num_ranks, tool="Lightning", instead=f"or pass {switch}")
        return {}
    seed = {"seed": int(os.environ.get("PL_GLOBAL_SEED", 0))} if loader.generator is None else {}
    return {"rank": rank, "num_ranks": num_ranks, **seed}


def agree(loader: DataLoader[Any], switch: str) -> None:
    """Refuse a loader that other ranks have made otherwise, because together they would not read each sample once."""
    if not (loader._is_planned and loader.num_ranks > 1 and torch.distributed.is_initialized()):
        return
    schedule = loader._schedule
    plan = schedule.planned(len(loader.dataset), seed=schedule.seed)  # type: ignore[arg-type]
    ours = plan.identity() | {"batch_size": loader.batch_size, "skip": plan.skip}
    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, ours)
    for rank, theirs in enumerate(ranks):
        if differences := differing(ranks[0], theirs):
            shown = ", ".join(f"{name} {first!r} and {other!r}" for name, (first, other) in differences.items())
            raise ArgumentError(
                f"ranks that share out a loader have to make it alike, but ranks 0 and {rank} have {shown}",
                hint=f"pass the same arguments on every rank; if each rank has data of its own, pass {switch}",
            )


def sampler_changes(module: str, loader: DataLoader[Any], sampler: Any, *mode: Any) -> dict[str, Any]:
    """Return the change that gives a loader with a sampler of the user's own the one that Lightning made of it."""
    resolve = import_module(module)._dataloader_init_kwargs_resolve_sampler
    arguments = resolve(loader, sampler, *mode)
    name = "sampler" if arguments.get("batch_sampler") is None else "batch_sampler"
    return {name: arguments[name]}


def changed_copy(loader: _L, changes: dict[str, Any]) -> _L:
    """Return a loader like this one but for `changes`, which counts where this one counts."""
    if loader._is_planned and "rank" not in changes:
        _ = loader._schedule.seed  # drawn by now, and the same for all copies
    changed = loader.adapted(**changes)
    changed.ledger = loader.ledger
    if loader.auto is None:  # otherwise the counters describe arguments that the copy chooses for itself
        changed.counters = loader.counters
        changed.counters.rank, changed.counters.num_ranks = changed.rank, changed.num_ranks
    return changed  # type: ignore[return-value]


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
    _is_late: bool
    """An iteration has begun, and does not show it before its first batch, as the generator of a subclass."""
    _held: deque[Progress | dict[str, Any]]
    """Where the loader was before each of the last batches, and before its end."""
    _is_stopped: bool
    """The iteration has come to its end."""
    _is_over: bool
    """A state was loaded after which nothing of Lightning's epoch is to come."""
    _first_epoch: int | None
    """The epoch of ours with which that of Lightning begins."""
    _inner: Any
    """The iterator over the epoch, for the loader that is trained on."""
    _num_drawn: int
    """Batches drawn since Lightning began this epoch, or went on with it."""
    _num_before: int
    """Batches that Lightning had trained on by then."""
    _is_counted: bool
    """Lightning trains on each batch that it draws; otherwise `training_step` draws as it likes."""

    def drive(self, origin: DataLoader[Any], loop: Any, *, is_fixed: bool) -> None:
        """Take orders from a Trainer."""
        self._origin, self._loop, self._is_fixed = origin, loop, is_fixed
        self._is_pending = self._is_late = self._is_stopped = self._is_over = self._is_counted = False
        self._first_epoch = self._inner = None
        self._num_drawn = self._num_before = 0
        self._held = deque(maxlen=3)

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
        self._is_pending, self._is_stopped = True, False
        self._num_drawn, self._num_before = 0, self._num_trained
        self._held.clear()
        if self._is_over and not self._is_fixed:  # the state is that of the beginning of this epoch
            self._is_over, self._chosen_epoch = False, epoch
            return
        self._leave_epoch()
        self._inner, self._is_over = None, False
        self._first_epoch = 0 if self._is_fixed else epoch
        self._resume = None  # it may name this epoch: overfit_batches repeats it, a CombinedLoader may have begun it
        self.set_epoch(self._first_epoch)
        self._chosen_epoch = epoch

    def _leave_epoch(self) -> None:
        """Let a sampler of the user's draw what a loop would have let it draw, because its next epoch begins there.

        Lightning takes as many batches as there are, and does not ask for the end.
        """
        place = self._resume or self._progress
        if not isinstance(place, SamplerProgress) or self._is_over:
            return
        try:
            is_at_end = place.num_batches == len(self)
        except TypeError:
            is_at_end = False
        rest: Any = self._inner if self._resume is None else place.recipes()
        if is_at_end and rest is not None:
            next(rest, None)

    def __len__(self) -> int:
        """Return the number of batches of the epoch that comes next or has begun; of all epochs, the most."""
        plan = self.plan
        if plan is None or not plan.skip:
            return super().__len__()
        whole = plan.steps_in(plan.origin.epoch + 1)
        if self._loop is None:  # Lightning asks once, and would cut later epochs
            return whole
        is_begun = self._progress is not None and not self._is_pending
        epoch = self._progress.epoch if self._progress is not None and is_begun else self.next_epoch
        return whole - plan.steps_in(epoch) + plan.num_steps(epoch)

    def __iter__(self) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").endswith(".utilities.combined_loader"):
            # a callback that looks at a batch of `trainer.train_dataloader` takes none from the training
            return iter(self._look())
        self._is_pending = True
        return _Iteration(self)

    def _look(self) -> DataLoader[Any]:
        plain = copy(self)
        plain.__class__ = type(self._origin)  # type: ignore[assignment]
        return plain

    def begin(self) -> Any:
        """Return an iterator over the epoch that comes next."""
        self._is_pending = False
        if self._is_stopped:  # once more from the beginning, beside a longer loader
            self._held.pop()
            self._is_stopped = False
        elif self._loop is not None:
            self._held.clear()
            self._num_drawn, self._num_before = 0, self._num_trained
            self._is_counted = hasattr(self._loop._data_fetcher, "batches")
            if self._resume is None and self._first_epoch is not None:  # perhaps begun before, and nothing made of it
                self._schedule.next_epoch = self._first_epoch
        if self._indices is not None:
            self._indices.seen_batch_indices = []
        before = self._progress
        inner = super().__iter__()
        self._is_late = self._progress is before and self._resume is None
        self._inner = None if self._loop is None else inner
        return inner

    def _show_place(self) -> None:
        """Let the user's loader show where this one is, and later copies of it continue with the same seed."""
        origin = self._origin
        origin._progress, origin._resume = self._progress, None
        origin._schedule.dataset, origin._schedule.next_epoch = self._schedule.dataset, self._schedule.next_epoch
        origin._schedule.follow(None, self._schedule.drawn_seed)

    def draw(self, inner: Any) -> Any:
        """Return the next batch of an iterator."""
        is_noted = self._loop is not None and not self._is_stopped
        if is_noted:
            # before it is drawn: a checkpoint may be saved at any moment, by the handler of a signal
            self._held.append(self._snapshot())
            self._num_drawn += 1
        try:
            batch = next(inner)
        except StopIteration:
            if is_noted:
                self._is_stopped = True
                self._num_drawn -= 1
            raise
        except BaseException:
            if is_noted:
                self._num_drawn -= 1
                self._held.pop()
            raise
        self._is_late = False
        if self._loop is not None and self._origin._progress is not self._progress:
            self._show_place()
        if self._indices is not None:
            recipe = self.recipe
            assert recipe is not None
            if recipe.padding is not None and recipe.padding.all():  # there are fewer samples left than ranks
                return self.draw(inner)
            self._indices.seen_batch_indices.append(recipe.positions.tolist())
        return batch

    def _snapshot(self) -> Progress | dict[str, Any]:
        progress = self._first_place() if self._is_late else self._progress
        if isinstance(progress, PlanProgress) and not progress.ahead:
            before = copy(progress)
            before.ahead = set()
            return before
        return super().state_dict() if progress is None or progress is self._progress else progress

    def _first_place(self) -> Progress:
        """Return the beginning of the epoch that comes next."""
        first = new_progress(self, self._schedule.next_epoch)
        if self._progress is not None:
            first.go_on_from(self._progress)
        return first

    @property
    def _num_trained(self) -> int:
        """Batches that Lightning has trained on, in all epochs."""
        return 0 if self._loop is None else int(self._loop.epoch_loop.batch_progress.total.processed)

    @property
    def _num_behind(self) -> int:
        """Batches that Lightning has drawn and not yet trained on."""
        if not self._is_counted:
            return 0
        return max(0, self._num_drawn - (self._num_trained - self._num_before))

    @property
    def _reads_ahead(self) -> bool:
        return self._num_behind > 0 or super()._reads_ahead

    def state_dict(self) -> dict[str, Any]:
        """Return where training is, whatever Lightning has drawn ahead of it."""
        num_behind = self._num_behind
        if num_behind and len(self._held) >= num_behind + self._is_stopped:
            held = self._held[-num_behind - self._is_stopped]
            return dict(held) if isinstance(held, dict) else self._state_at(held)
        if self._is_over or self._is_stopped:
            return super().state_dict() | {_IS_OVER: True}
        if self._is_pending and self._resume is None:
            return self._state_at(self._first_place())
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any], *, grown: bool = False) -> None:
        """Let the next iteration go on where `state` was taken."""
        super().load_state_dict(state, grown=grown)
        self._is_over = bool(state.get(_IS_OVER))

    def _state_at(self, place: Progress) -> dict[str, Any]:
        progress, self._progress = self._progress, place
        try:
            return super().state_dict()
        finally:
            self._progress = progress

    @property
    def is_at_start(self) -> bool:
        """Whether a state was loaded with which an epoch begins."""
        resume: Any = self._resume
        return resume is not None and bool(resume.is_at_start) and not self._is_over

    def stop(self) -> None:
        """End worker processes that would stay for the next iteration."""
        self._processes = self._inner = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_inner": None}


class _Iteration:
    """An iteration of a loader, begun when its first batch is asked for."""

    def __init__(self, loader: LightningLoader) -> None:
        self._loader = loader
        self._inner: Any = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if self._loader._is_over:
            raise StopIteration
        if self._inner is None:
            self._inner = self._loader.begin()
        return self._loader.draw(self._inner)


@lru_cache(maxsize=64)
def _driven_class(kind: Any) -> type[LightningLoader]:
    bases = (LightningLoader,) if kind is DataLoader else (LightningLoader, kind)
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _preparing(original: _Function, package: str) -> _Function:
    """Return what a Trainer does to each loader before it uses it."""

    def prepare(connector: Any, dataloader: Any, shuffle: bool, mode: Any) -> Any:
        if not is_ours(dataloader):
            return original(connector, dataloader, shuffle, mode)
        trainer, loader = connector.trainer, dataloader
        if isinstance(loader, LightningLoader):  # as in a CombinedLoader that has been used before
            loader = loader._origin
        switch = "use_distributed_sampler=False to Trainer"
        is_predicting = mode == "predict"
        is_fixed = trainer.state.fn == "fit" and trainer.overfit_batches > 0
        changes: dict[str, Any] = {}
        ranks = None
        if loader._is_planned or loader._is_stream:
            is_distributed = trainer._accelerator_connector.use_distributed_sampler
            ranks = trainer.distributed_sampler_kwargs if is_distributed else None
            changes = shared_out(loader, ranks, switch)
            if loader._is_planned and "rank" in changes and "seed" not in changes and loader.seed is None:
                changes["seed"] = trainer.strategy.broadcast(loader._schedule.seed)  # each rank has its own generator
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
        if loader._is_planned and ranks is not None:
            agree(driven, switch)
        kind: Any = type(driven)
        driven.__class__ = _driven_class(kind)
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
            if dataloader._loop is not None:
                _begin_epoch(dataloader._loop)
            dataloader.follow_epoch(epoch)
        else:
            original(dataloader, epoch)

    return follow


def _begin_epoch(loop: Any) -> None:
    """Let Lightning count the epoch that begins after a checkpoint that was saved behind the last batch of an epoch.

    It takes itself to be in the middle of the old epoch, so it neither counts the new one nor calls
    `on_train_epoch_start`, and a checkpoint of the new one would be resumed in the wrong epoch.
    """
    count = loop.epoch_progress.current
    if loop.restarted_mid_epoch and count.ready == count.processed:
        loop.reset_restart_stage()


def _limit(loop: Any) -> None:
    """Let Lightning count the batches of the epoch anew, where steps are left out: it has counted those of another."""
    limit = loop.trainer.limit_train_batches
    limits = list(loop._combined_loader.limits)
    for number, loader in enumerate(loop._combined_loader.flattened):
        if isinstance(loader, LightningLoader) and loader.plan is not None and loader.plan.skip:
            limits[number] = min(len(loader), limit) if isinstance(limit, int) else int(len(loader) * limit)
    loop._combined_loader.limits = limits


def _counting(original: _Function) -> _Function:
    """Return what begins with the batches of an epoch, after `on_train_epoch_start`."""

    def begin(epoch_loop: Any, data_fetcher: Any) -> None:
        trainer = epoch_loop.trainer
        loop, combined = trainer.fit_loop, trainer.fit_loop._combined_loader
        limits = combined.limits
        _limit(loop)
        if combined.limits != limits and loop.max_batches != float("inf"):
            iter(data_fetcher)
            loop.max_batches = len(combined)
            is_by_batches = getattr(trainer, "_val_check_time_interval", None) is None
            if is_by_batches and isinstance(trainer.val_check_interval, float):
                trainer.val_check_batch = max(1, int(loop.max_batches * trainer.val_check_interval))
        is_drawn_ahead = hasattr(data_fetcher, "batches") and data_fetcher.length is None
        is_begun = trainer.current_epoch > 0 and not loop.is_resuming and not epoch_loop.restarting  # by Lightning
        ours = [loader for loader in combined.flattened if isinstance(loader, LightningLoader)]
        if is_drawn_ahead and not is_begun and any(loader._is_pending for loader in ours):
            iter(data_fetcher)  # what was drawn when the loop was set up is of another epoch
        original(epoch_loop, data_fetcher)

    return begin


def _loading(original: _Function) -> _Function:
    """Return what loads the states of a checkpoint. Lightning leaves them out at the end of an epoch: not the seed."""

    def load(loop: Any) -> None:
        loaders, states = _stateful(loop), loop._combined_loader_states_to_load
        if len(states) == len(loaders):
            states = [_own(state) for state in states]
            loop._combined_loader_states_to_load = states
        original(loop)
        if len(states) == len(loaders):
            for loader, state in zip(loaders, states):
                if isinstance(loader, LightningLoader) and loop._combined_loader_states_to_load:
                    loader.load_state_dict(state)
            loop._combined_loader_states_to_load = []
            if states:
                _limit(loop)
                _recount(loop, dict(zip(loaders, states)))
        elif (
            not states
            and loop.restarting
            and loop.epoch_loop.batch_progress.current.ready
            and any(isinstance(loader, LightningLoader) for loader in loaders)
        ):
            warnings.warn(
                "the checkpoint was saved in the middle of an epoch and has no state of the loader, as it was "
                "trained with another one: Lightning goes on in the middle, and the loader at the beginning",
                stacklevel=2,
            )

    return load


def _recount(loop: Any, states: dict[Any, Any]) -> None:
    """Let Lightning count the batches behind it as they are now.

    It would end the epoch too early or too late where the global batch size has changed, and after a batch where the
    checkpoint was saved by `on_train_epoch_start`, because it then counts those of the epoch before.
    """
    ours = [loader for loader in states if isinstance(loader, LightningLoader) and loader._resume is not None]
    planned = [loader for loader in ours if loader.plan is not None]
    progress = loop.epoch_loop.batch_progress
    current = progress.current
    if ours and all(loader.is_at_start for loader in ours):
        current.reset()
        progress.is_last_batch = False
    elif planned:
        choose = min if loop._combined_loader._mode == "min_size" else max
        loader = choose(planned, key=len)  # the one that ends the epoch
        plan, place = loader.plan, loader._resume
        assert plan is not None
        assert isinstance(place, PlanProgress)
        if states[loader]["batch_size"] == plan.batch_size:
            return
        stop = plan.first_step(place.epoch) + plan.steps_in(place.epoch)
        num_left = sum(not plan.is_skipped(step) for step in range(place.step, stop)) - len(place.ahead)
        limit = loop._combined_loader.limits[loop._combined_loader.flattened.index(loader)]
        shift = int(min(len(loader) - num_left, limit)) - current.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(current, name, max(0, getattr(current, name) + shift))


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
    if num_ranks == len(states):
        return states[rank]
    if states[0].get("num_ranks", 1) == 1:
        raise StateError(
            f"the checkpoint was saved by {len(states)} processes whose loaders read different data, each with a place "
            f"of its own, which fits no other number of processes, and now there are {num_ranks}\n"
            "hint: resume with as many processes, or let the loader share out the data: leave out the sampler, or pass "
            "shard='auto' for a stream"
        )
    return states[0]  # of a stream that is shared out by the loader, which knows whether that fits


def _saving(original: _Function) -> _Function:
    """Return what a checkpoint has of the loaders: the place of each rank, unless it follows from that of the first."""

    def save(loop: Any) -> dict[str, Any]:
        saved: dict[str, Any] = original(loop)
        is_alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
        for number, state in enumerate(() if is_alone else saved.get("combined_loader", ())):
            loader = _stateful(loop)[number]
            if not isinstance(loader, LightningLoader) or (loader._is_planned and loader.num_ranks > 1):
                continue
            states: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(states, state)
            if any(other != state for other in states):
                saved["combined_loader"][number] = {_STATES_OF_RANKS: states}
        return saved

    return save
