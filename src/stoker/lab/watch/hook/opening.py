"""What a worker process does first when it is watched: look, and then whatever the user wants it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.foundation.machine import usage_of
from stoker.lab.watch.hook import recording


class Opening:
    """A `worker_init_fn` that lets the worker be looked at, before it calls the one that it stands for."""

    def __init__(self, folder: str, loader: int, then: Callable[[int], Any] | None, *, is_ours: bool) -> None:
        self.folder, self.loader, self.then, self.is_ours = folder, loader, then, is_ours

    def __call__(self, worker: int) -> None:
        """Begin to record in this process."""
        try:
            if self.is_ours:
                now = recording.begin(self.folder)
                used = usage_of()
                before = (0.0, 0.0) if used is None else (used.cpu_seconds, used.delay_seconds)
                now.note_work(loader=self.loader, worker=worker, before=before)
                now.probe.sees_ours = True
                now.probe.start()
            else:
                from stoker.lab.watch.hook.install import attach

                attach(self.folder)
        except Exception:
            recording.give_up()
        if self.then is not None:
            self.then(worker)
