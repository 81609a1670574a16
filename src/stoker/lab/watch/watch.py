"""Watching a loader, anyone's, in this process: its batches come as they would, and are timed on the way."""

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
from stoker.lab.watch.hook import install, recording, stoker_loader
from stoker.lab.watch.hook import watched_iteration as courses
from stoker.lab.watch.hook.periodic_thread import PeriodicThread
from stoker.lab.watch.monitor import Monitor
from stoker.lab.watch.run import Run
from stoker.lab.watch.shared_folder import Folder, new_folder

if TYPE_CHECKING:
    from stoker.lab.diagnose.diagnosis import Diagnosis

T = TypeVar("T")


class Watch(Generic[T]):
    """A loader that is watched: iterate over it in the place of the loader itself.

    Its batches, its length and its attributes are the loader's. Ends with `close`, as a context manager, or when
    nobody holds it any more.
    """

    def __init__(self, loader: Iterable[T], *, name: str = "") -> None:
        if not hasattr(loader, "__iter__"):
            raise ArgumentError(
                f"{type(loader).__name__} cannot be watched: it cannot be iterated over",
                hint="give a loader, a generator or any other iterable of batches",
            )
        self._loader, self._name = loader, name
        self._session: Session | None = None
        self._end: Any = None
        self._last: Run | None = None
        """What was seen before it was closed."""
        self._kind = _kind_of(loader)

    def __iter__(self) -> Iterator[T]:
        session = self._session
        if session is None:
            session = self._session = join()
            self._end = finalize(self, part, session)
        return _Watched(self._loader, self._kind, session)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def run(self) -> Run:
        """Return what was seen so far, as a record. It may be asked for at any time, also in the middle of an epoch and
        when it was closed.
        """
        session = self._session
        if session is None and self._last is not None:
            return self._last
        stats = None if session is None else session.stats_of(courses.number_of(self._loader))
        if session is None or stats is None:
            return Run(title=self._title, machine=described())
        if self._name:
            stats = replace(stats, name=self._name)
        return Run(
            title=self._title,
            machine=described(),
            seconds=session.seconds,
            began=session.monitor.began,
            loaders=[stats],
            moments=list(session.monitor.moments),
        )

    def diagnosis(self) -> Diagnosis:
        """Return what holds the training back, as far as it was seen."""
        from stoker.lab.diagnose.verdict import diagnose

        return diagnose(self.run())

    @property
    def _title(self) -> str:
        return self._name or f"{type(self._loader).__module__.partition('.')[0]}.{type(self._loader).__name__}"

    def close(self) -> None:
        """Watch no more. What was seen is kept, until it is iterated over again."""
        if self._session is not None:
            with suppress(Exception):  # an error of the training's, after which this may be called, is not to be hidden
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
    """Return a loader that gives the same batches, and can say what holds them up: `watched.diagnosis()`.

    >>> watched = watch([[1, 2], [3, 4]])
    >>> for batch in watched: pass
    >>> watched.run().loaders[0].num_batches
    2
    """
    return Watch(loader, name=name)


class _Watched(Generic[T]):
    """One iteration over a loader that is watched."""

    def __init__(self, loader: Iterable[T], kind: str, session: Session) -> None:
        now = session.now
        self._now, self._loader = now, loader
        self._course: courses.WatchedIteration | None = None
        session.enter()
        self._end = finalize(self, session.leave)
        try:
            if kind == "iterable":
                self._course = courses.begun(now, loader, kind=kind, config=_config_of(loader))
                now.probe.start()
            began = perf_counter()
            num_before = _num_iterations(now, loader)
            with self._inside():
                self._iterator = iter(loader)
            self._num_before = num_before if self._course is None else None
            """Iterations that were recorded before this one; None when it is known who records it."""
            if self._course is not None:
                self._course.setup_seconds = perf_counter() - began
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            if self._course is not None:
                return self._handed(self._course)
            batch: T = next(self._iterator)
            if self._num_before is not None:
                self._see_to_it()
            return batch
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self._end()
            raise

    def _handed(self, course: courses.WatchedIteration) -> T:
        """Return the next batch of something that knows nothing of laps."""
        self._quietly(course.ask)
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
        self._quietly(course.hand, batch)
        return batch

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Let loaders that are iterated over meanwhile be known as parts of this one, if it is watched as a whole."""
        here = self._now.here
        before = here.within
        if self._course is not None:
            here.within = self._course.loader
        try:
            yield
        finally:
            here.within = before

    def _quietly(self, do: Callable[..., None], *args: Any) -> None:
        """Do something of ours; if it fails, nobody watches any more, and the loop goes on."""
        if recording.current is self._now:
            try:
                do(*args)
            except Exception:
                recording.give_up()

    def _see_to_it(self) -> None:
        """Record the iteration here, if a loader that derives from torch's has an iterator that the hook is not in."""
        if _num_iterations(self._now, self._loader) == self._num_before and recording.current is self._now:
            self._course = courses.begun(self._now, self._loader, kind="iterable", config=_config_of(self._loader))
        self._num_before = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_iterator" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _num_iterations(now: recording.Recording, loader: Any) -> int:
    told = now.trainer_note.get("loaders", {}).get(str(courses.number_of(loader)), {})
    return int(told.get("iterations", 0))


def _kind_of(loader: Any) -> str:
    ours = sys.modules.get("stoker.loader.dataloader")
    # by its own type: what stands for a loader, as that of accelerate does, may say that it is of the loader's class
    if ours is not None and issubclass(type(loader), ours.DataLoader) and not loader._is_foreign:
        return "stoker"
    torch_data = sys.modules.get("torch.utils.data")
    return "torch" if torch_data is not None and issubclass(type(loader), torch_data.DataLoader) else "iterable"


def _config_of(loader: Any) -> dict[str, Any]:
    """Return the arguments that any loader might have."""
    names = ("batch_size", "num_workers", "num_threads", "prefetch_factor", "pin_memory", "persistent_workers")
    found = {name: getattr(loader, name, None) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


class Session:
    """The watching of this process, from the first loader that is watched to the last.

    Threads run only while something is iterated over. A doctor that has started this process is not disturbed: it and
    the session then read the same folder.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        before = recording.current
        self._is_owner = before is None
        folder: Folder | None = None
        if before is None:
            folder = new_folder()
            path = folder.path
        else:
            path = Path(before.folder)
        self._end = finalize(self, _ended, folder, self.process)
        self.now = install.attach(str(path))
        self._collector = Collector(path, is_owner=self._is_owner)
        self.monitor = Monitor([self.process], lambda: self._collector.trainers)
        self._lock = threading.RLock()
        self._ticker = PeriodicThread("stoker-monitor", lambda: self.monitor.every_seconds, lambda _: self._tick())
        self._num_iterating = 0
        self.num_users = 0
        self._active_seconds = 0.0
        self._began = 0.0

    def enter(self) -> None:
        """An iteration begins."""
        with self._lock:
            self._num_iterating += 1
            if self._num_iterating == 1:
                self._began = perf_counter()
                self.monitor.look()
        self._ticker.start()

    def leave(self) -> None:
        """An iteration is over, or given up."""
        if os.getpid() != self.process:  # a worker that was forked in the middle of it, perhaps of the lock too
            return
        with self._lock:
            self._num_iterating -= 1
            is_last = not self._num_iterating
            if is_last:
                self._active_seconds = perf_counter() - self.monitor.began
        if is_last:
            self._ticker.stop()
            self.now.probe.stop()
            self._tick()

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last iteration, or to now."""
        return perf_counter() - self.monitor.began if self._num_iterating else self._active_seconds

    def stats_of(self, number: int) -> Stats | None:
        """Return what was counted of a loader; None if it has given no batch."""
        with self._lock:
            if recording.current is self.now:
                stoker_loader.counted.write(self.now.folder)
                self.now.note_laps()
            self._collector.drain()
            return self._collector.stats_of(self.process, number, self.monitor.memory)

    @property
    def failures(self) -> list[str]:
        """What has failed of ours."""
        return self._collector.failures

    def _tick(self) -> None:
        with self._lock:
            self.monitor.look()
            self._collector.drain()

    def close(self) -> None:
        """Take the hook out, and remove the folder."""
        self._ticker.stop()
        with self._lock:
            self._collector.close()
        self._end()


def _ended(folder: Folder | None, process: int) -> None:
    if folder is not None and os.getpid() == process:
        install.detach()
        folder.remove()


_shared: Session | None = None
_lock = threading.RLock()


def join() -> Session:
    """Return the session of this process, for one more user. Several threads may begin to watch at the same time."""
    global _shared
    with _lock:
        if _shared is None or _shared.process != os.getpid():
            _shared = Session()
        install.install()  # what was imported since
        _shared.num_users += 1
        return _shared


def part(session: Session) -> None:
    """Let a user go; the session ends with the last one."""
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
    _lock = threading.RLock()  # whoever held the other one is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
