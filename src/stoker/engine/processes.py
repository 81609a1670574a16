"""Worker processes: torch's own, run behind our door.

Each recipe travels to a worker, where `make` turns it into a result, which travels back. Recipes say everything a
worker needs to know, so it does not matter which worker makes which; torch hands them out in turn and delivers in
order.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from weakref import finalize

import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import DataLoader, Sampler

from stoker.errors import NotPicklable, WorkerDied, WorkerError, WorkerStuck

T = TypeVar("T")


class _Failure:
    """An exception on its way from a worker."""

    def __init__(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.traceback = text
        try:
            self.pickled: bytes | None = pickle.dumps(error)
            pickle.loads(self.pickled)  # some pickle well and fail on the way back
        except Exception:
            self.pickled = None
        self.summary = f"{type(error).__qualname__}: {error}"
        self.notes = list(getattr(error, "__notes__", ()))

    def error(self) -> BaseException:
        if self.pickled is None:
            error: BaseException = WorkerError(f"{self.summary}\n(the original exception could not be pickled)")
        else:
            error = pickle.loads(self.pickled)
        if self.notes and not getattr(error, "__notes__", None):
            for note in self.notes:
                error.add_note(note)
        error.__cause__ = _WorkerTraceback(self.traceback)
        return error


class _WorkerTraceback(Exception):
    """Shows the worker's own traceback above the error, as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker process\n\n{self.text}"


class _Info(torch_worker.WorkerInfo):
    """torch's WorkerInfo with the user's dataset in it, and a note of whether anyone looked at it."""

    def __init__(self, info: Any, dataset: Any) -> None:
        names = [name for name in ("id", "num_workers", "seed", "rng", "worker_method") if hasattr(info, name)]
        told = {name: getattr(info, name) for name in names} | {"dataset": dataset}
        object.__setattr__(self, "_told", told)
        object.__setattr__(self, "_has_looked", False)

    def __getattribute__(self, name: str) -> Any:
        told = object.__getattribute__(self, "_told")
        if name not in told:
            return object.__getattribute__(self, name)
        object.__setattr__(self, "_has_looked", True)
        return told[name]


class _Work(Generic[T]):
    """Runs in the workers: stands where torch expects a dataset, and makes recipes into results."""

    def __init__(self, make: Callable[[Any], T], dataset: Any, worker_init_fn: Callable[[int], Any] | None) -> None:
        self.make, self.dataset, self.worker_init_fn = make, dataset, worker_init_fn

    def start(self, worker: int) -> None:
        torch_worker._worker_info = _Info(torch_worker._worker_info, self.dataset)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)

    def __getitem__(self, recipe: Any) -> Any:
        try:
            return self.make(recipe)
        except Exception as error:
            return _Failure(error)


class _Feed(Sampler[Any]):
    """The recipes of the iteration that is on, where torch expects a sampler."""

    def __init__(self) -> None:
        self.recipes: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.recipes


class Processes(Generic[T]):
    """Worker processes for one loader. `run` starts them, or reuses them if they are persistent."""

    def __init__(
        self,
        make: Callable[[Any], T],
        dataset: Any,
        *,
        worker_init_fn: Callable[[int], Any] | None,
        persistent: bool,
        **arguments: Any,
    ) -> None:
        self._work = _Work(make, dataset, worker_init_fn)
        self._feed = _Feed()
        self._parts = {"the dataset": dataset, "worker_init_fn": worker_init_fn, "the collate function": make}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our loader has said it already
            self._loader: DataLoader[Any] = DataLoader(
                self._work,  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._feed,
                collate_fn=_unchanged,
                worker_init_fn=self._work.start,
                persistent_workers=persistent,
                **arguments,
            )
        self.is_persistent, self.timeout = persistent, float(arguments.get("timeout", 0))
        self.is_broken = False
        """A worker has died: new ones are needed."""
        self._is_ending = False
        self.lease = 0
        """Which run the workers belong to: with persistent workers, the last one."""

    def run(self, recipes: Iterator[Any]) -> Run[T]:
        """Make `recipes`, in order."""
        self._feed.recipes = recipes
        self.lease += 1
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=r"Got pickle error|'pin_memory' argument|pin_memory_device")
                warnings.filterwarnings("ignore", message=r"This DataLoader will create")
                iterator = iter(self._loader)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise self._unpicklable(error) from error
        if self.is_persistent and not self._is_ending:
            self._is_ending = True
            finalize(self, _end_workers, iterator)
        return Run(self, iterator, self.lease)

    def _unpicklable(self, error: Exception) -> Exception:
        context = self._loader.multiprocessing_context
        method = context.get_start_method() if context is not None else torch_worker_start_method()
        for what, part in self._parts.items():
            try:
                pickle.dumps(part)
            except Exception as reason:
                return NotPicklable(what, reason=f"{type(reason).__name__}: {reason}", start_method=method)
        return error


class Run(Generic[T]):
    """One iteration's results."""

    def __init__(self, processes: Processes[T], iterator: Any, lease: int) -> None:
        self._processes, self._iterator, self._lease = processes, iterator, lease
        self._failure: WorkerDied | None = None
        if not processes.is_persistent:
            self._ending: Callable[[], Any] = finalize(self, _end_workers, iterator)
        else:
            self._ending = _nothing  # they are only borrowed

    def __next__(self) -> T:
        if self._failure is not None:
            raise self._failure  # not the end of the epoch, however often it is asked for
        if self._iterator is None:
            raise StopIteration
        if self._lease != self._processes.lease and self._processes.is_persistent:
            raise WorkerError(
                "a newer iterator has taken over the persistent workers\n"
                "hint: use one iterator at a time, or persistent_workers=False"
            )
        try:
            result = next(self._iterator)
        except RuntimeError as error:
            if "timed out" in str(error):  # perhaps only slow: the next call waits on
                stacks = "(the stacks of worker processes cannot be seen from here)"
                raise WorkerStuck(seconds=self._processes.timeout, stacks=stacks) from error
            if "exited unexpectedly" not in str(error) and "is killed by signal" not in str(error):
                raise
            self._failure = WorkerDied(str(error))
            self._processes.is_broken = True
            self.close()
            raise self._failure from error
        if isinstance(result, _Failure):
            raise result.error()
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the workers, unless they are persistent."""
        self._iterator = None
        self._ending()


def _end_workers(iterator: Any) -> None:
    """End torch's workers. One that is ended in the middle of sending may crash, which is an end, too."""
    with contextlib.suppress(RuntimeError):
        iterator._shutdown_workers()


def _nothing() -> None:
    pass


def torch_worker_start_method() -> str:
    """Return the start method that torch's workers use by default."""
    import multiprocessing

    return multiprocessing.get_start_method()


def act_as(worker: int) -> None:
    """Let the user's code in this worker see `worker` as its number: after a resume another one may take its turn."""
    info: Any = torch_worker._worker_info
    if isinstance(info, _Info):
        info._told["id"] = worker


def has_looked() -> bool:
    """Return whether the user's code has looked at which worker it runs in."""
    info: Any = torch_worker._worker_info
    return not isinstance(info, _Info) or bool(info._has_looked)


def _unchanged(result: Any) -> Any:
    return result
