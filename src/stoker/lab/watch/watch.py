"""Watch a loader of any kind in this process: its batches are delivered unchanged, and timed on the way."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import finalize

from stoker.engine.stats import Stats
from stoker.errors import ArgumentError
from stoker.foundation.machine import described
from stoker.lab.watch.collector import Collector
from stoker.lab.watch.hook import install, recording, stoker_loader, watched_iteration
from stoker.lab.watch.hook.periodic_thread import PeriodicThread
from stoker.lab.watch.monitor import Monitor
from stoker.lab.watch.run import Run
from stoker.lab.watch.shared_folder import SharedFolder, new_folder

if TYPE_CHECKING:
    from stoker.lab.diagnose.diagnosis import Diagnosis

T = TypeVar("T")


class Watch(Generic[T]):
    """A watched loader: iterate over it instead of the loader itself.

    Its batches, its length and its attributes are the loader's. Watching ends with `close`, at the end of a `with`
    block, or when the last reference is gone.
    """

    def __init__(self, loader: Iterable[T], *, name: str = "") -> None:
        if not hasattr(loader, "__iter__"):
            raise ArgumentError(
                f"{type(loader).__name__} cannot be watched: it is not iterable",
                hint="pass a loader, a generator or any other iterable of batches",
            )
        self._loader, self._name = loader, name
        self._session: WatchSession | None = None
        self._end: Any = None
        self._last: Run | None = None
        """What was recorded before it was closed."""
        self._kind = _kind_of(loader)

    def __iter__(self) -> Iterator[T]:
        session = self._session
        if session is None:
            session = self._session = join_session()
            self._end = finalize(self, leave_session, session)
        return _WatchingIterator(self._loader, self._kind, session)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def run(self) -> Run:
        """Return what was recorded so far. Works at any time, also in the middle of an epoch and after `close`."""
        session = self._session
        if session is None and self._last is not None:
            return self._last
        title = self._name or f"{type(self._loader).__module__.partition('.')[0]}.{type(self._loader).__name__}"
        stats = None if session is None else session.stats_of(watched_iteration.number_of(self._loader))
        if session is None or stats is None:
            return Run(title=title, machine=described())
        if self._name:
            stats = replace(stats, name=self._name)
        return Run(
            title=title,
            machine=described(),
            seconds=session.seconds,
            began=session.monitor.began,
            loaders=[stats],
            moments=list(session.monitor.moments),
        )

    def diagnosis(self) -> Diagnosis:
        """Return what slows the training down, as far as it was recorded."""
        from stoker.lab.diagnose.verdict import diagnose

        return diagnose(self.run())

    def close(self) -> None:
        """Stop watching. What was recorded remains available until the next iteration."""
        if self._session is not None:
            with suppress(Exception):  # must not hide an error of the training that led here
                self._last = self.run()
        if self._end is not None:
            self._end()
        self._session = self._end = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def watch(loader: Iterable[T], *, name: str = "") -> Watch[T]:
    """Return a loader that delivers the same batches and knows what holds them up: `watched.diagnosis()`.

    >>> watched = watch([[1, 2], [3, 4]])
    >>> for batch in watched: pass
    >>> watched.run().loaders[0].num_batches
    2
    """
    return Watch(loader, name=name)


class _WatchingIterator(Generic[T]):
    """One iteration over a watched loader."""

    def __init__(self, loader: Iterable[T], kind: str, session: WatchSession) -> None:
        self._now, self._loader = session.now, loader
        self._iteration: watched_iteration.WatchedIteration | None = None
        """Where this object records; None if the hook in the loader records, or is expected to."""
        session.enter()
        self._end = finalize(self, session.leave)
        try:
            if kind == "iterable":
                self._iteration = self._begin()
                self._now.probe.start()
            began = perf_counter()
            num_before = self._num_recorded()
            with self._inside():
                self._iterator = iter(loader)
            self._num_before = num_before if self._iteration is None else None
            """Iterations recorded before this one; None once it is known who records this one."""
            if self._iteration is not None:
                self._iteration.setup_seconds = perf_counter() - began
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            if self._iteration is not None:
                return self._record_next(self._iteration)
            batch: T = next(self._iterator)
            # the hook is not in the iterators of some loaders that derive from torch's
            if self._num_before is not None:
                if self._num_recorded() == self._num_before and recording.current is self._now:
                    self._iteration = self._begin()
                self._num_before = None
            return batch
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self._end()
            raise

    def _begin(self) -> watched_iteration.WatchedIteration:
        return watched_iteration.begin(self._now, self._loader, kind="iterable", config=_config_of(self._loader))

    def _num_recorded(self) -> int:
        """Return how many iterations over the loader are recorded."""
        number = str(watched_iteration.number_of(self._loader))
        return int(self._now.trainer_note.get("loaders", {}).get(number, {}).get("iterations", 0))

    def _record_next(self, iteration: watched_iteration.WatchedIteration) -> T:
        """Return and record the next batch of a loader that the hook does not know."""
        self._try(iteration.ask)
        is_begun = self._now.begin_work()
        try:
            with self._inside():
                batch: T = next(self._iterator)
        except BaseException:
            self._now.here.is_asking = False
            raise
        finally:
            if is_begun:
                self._now.end_work()
        self._try(iteration.hand, batch)
        return batch

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Mark loaders iterated in this block as parts of this one, if it is watched as a whole."""
        here = self._now.here
        before = here.within
        if self._iteration is not None:
            here.within = self._iteration.loader
        try:
            yield
        finally:
            here.within = before

    def _try(self, record: Callable[..., None], *args: Any) -> None:
        """Record something; if that fails, watching ends and the loop continues."""
        if recording.current is self._now:
            with recording.giving_up_on_errors:
                record(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_iterator" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _kind_of(loader: Any) -> str:
    ours = sys.modules.get("stoker.loader.dataloader")
    # by its own type: a wrapper, such as accelerate's, may claim to be of the loader's class
    if ours is not None and issubclass(type(loader), ours.DataLoader) and not loader._is_foreign:
        return "stoker"
    torch_data = sys.modules.get("torch.utils.data")
    return "torch" if torch_data is not None and issubclass(type(loader), torch_data.DataLoader) else "iterable"


def _config_of(loader: Any) -> dict[str, Any]:
    """Return the arguments that any loader might have."""
    names = ("batch_size", "num_workers", "num_threads", "prefetch_factor", "pin_memory", "persistent_workers")
    found = {name: getattr(loader, name, None) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


# -------------------------------------------------------------------- what all watched loaders of a process share


class WatchSession:
    """The watching of this process, from the first watched loader to the last: one hook, one folder, one thread.

    The thread runs only during iterations. A doctor that started this process is not disturbed: it and the session
    then read the same folder.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        started_by_doctor = recording.current
        folder = None if started_by_doctor is not None else new_folder()
        path = Path(started_by_doctor.folder) if folder is None else folder.path  # type: ignore[union-attr]
        self._end = finalize(self, _end_session, folder, self.process)
        self.now = install.attach(str(path))
        self._collector = Collector(path, is_owner=folder is not None)
        self.monitor = Monitor([self.process], lambda: self._collector.trainers)
        self._lock = threading.RLock()
        self._thread = PeriodicThread("stoker-monitor", lambda: self.monitor.every_seconds, lambda _: self._sample())
        self._num_iterating = 0
        self.num_users = 0
        self._active_seconds = 0.0

    def enter(self) -> None:
        """Note that an iteration begins."""
        with self._lock:
            self._num_iterating += 1
            if self._num_iterating == 1:
                self.monitor.sample()
        self._thread.start()

    def leave(self) -> None:
        """Note that an iteration is over, or was abandoned."""
        if os.getpid() != self.process:  # a worker forked in the middle of it, perhaps while the lock was held
            return
        with self._lock:
            self._num_iterating -= 1
            is_last = not self._num_iterating
            if is_last:
                self._active_seconds = perf_counter() - self.monitor.began
        if is_last:
            self._thread.stop()
            self.now.probe.stop()
            self._sample()

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last iteration, or to now."""
        return perf_counter() - self.monitor.began if self._num_iterating else self._active_seconds

    def stats_of(self, number: int) -> Stats | None:
        """Return the counters of a loader; None if it delivered no batch."""
        with self._lock:
            if recording.current is self.now:
                stoker_loader.stats_file.write(self.now.folder)
                self.now.write_trainer_note()
            self._collector.drain()
            return self._collector.stats_of(self.process, number, self.monitor.memory)

    @property
    def failures(self) -> list[str]:
        """Tracebacks of what failed in watching."""
        return self._collector.failures

    def _sample(self) -> None:
        with self._lock:
            self.monitor.sample()
            self._collector.drain()

    def close(self) -> None:
        """Remove the hook and the folder."""
        self._thread.stop()
        with self._lock:
            self._collector.close()
        self._end()


def _end_session(folder: SharedFolder | None, process: int) -> None:
    if folder is not None and os.getpid() == process:
        install.detach()
        folder.remove()


_shared: WatchSession | None = None
_lock = threading.RLock()


def join_session() -> WatchSession:
    """Return the session of this process, for one more user. Several threads may call this at the same time."""
    global _shared
    with _lock:
        if _shared is None or _shared.process != os.getpid():
            _shared = WatchSession()
        install.install()  # for modules imported since
        _shared.num_users += 1
        return _shared


def leave_session(session: WatchSession) -> None:
    """End the use of a session; it is closed with its last user."""
    global _shared
    with _lock:
        session.num_users -= 1
        if session.num_users > 0:
            return
        if _shared is session:
            _shared = None
        if session.process == os.getpid():
            session.close()


def _after_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held the other one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
