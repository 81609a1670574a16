"""Processes and cores over time, looked at from outside a few times a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter, thread_time

from stoker.foundation.machine import Memory, core_seconds, memory_of, thread_times, tree, usage_of
from stoker.lab.watch.run import Moment

EVERY_SECONDS = 0.2
MAX_MOMENTS = 400
"""When there are more, every other one is dropped, and looks come half as often."""

MEMORY_SHARE, FIRST_MEMORY_SHARE, NUM_FIRST = 0.02, 0.15, 16
"""Of the time, for asking the kernel how much memory processes have, which may hold up those that ask for some; and for
the first few times, without which a short run could not be told from one whose memory stays as it is.
"""


class Monitor:
    """Looks at processes, and at all that descend from them."""

    def __init__(self, roots: Iterable[int], trainers: Callable[[], Mapping[int, int | None]]) -> None:
        self._roots, self._trainers = list(roots), trainers
        self.began = perf_counter()
        self.every_seconds = EVERY_SECONDS
        self.moments: list[Moment] = []
        self.memory: dict[int, int] = {}
        """The PSS of each process, as it was last."""
        self._is_first = True
        self._looked = self.began
        self._memory_due, self._num_asked = 0.0, 0
        self._memories: dict[int, Memory] = {}
        self._cpu: dict[int, float] = {}
        self._delay: dict[int, float] = {}
        self._cores: list[tuple[float, float]] = []

    def look(self) -> None:
        """Take a look. What is used is counted from the look before; the first one only begins."""
        now = perf_counter()
        trainers = {pid: thread for pid, thread in self._trainers().items() if thread is not None}
        roles = self._roles(trainers)
        used = {"trainer": 0.0, "worker": 0.0}
        cpu: dict[int, float] = {}
        for pid, role in roles.items():
            usage = usage_of(pid)
            if usage is not None:
                cpu[pid] = usage.cpu_seconds
                used[role] += max(0.0, usage.cpu_seconds - self._cpu.get(pid, 0.0))
        me = os.getpid()
        if me not in roles:
            usage = usage_of(me)
            cpu[me] = 0.0 if usage is None else usage.cpu_seconds
        own = sum(used.values()) + max(0.0, cpu[me] - self._cpu.get(me, 0.0)) * (me not in roles)
        cores, delay = core_seconds(), self._delays(trainers)
        seconds = now - self._looked
        if not self._is_first and seconds > 0:
            self._add(now, seconds, roles, used, own, cores, delay)
        self._is_first = False
        self._looked, self._cpu, self._cores, self._delay = now, cpu, cores, delay

    def _add(
        self,
        now: float,
        seconds: float,
        roles: dict[int, str],
        used: dict[str, float],
        own: float,
        cores: list[tuple[float, float]],
        delay: dict[int, float],
    ) -> None:
        self._look_at_memory(now, roles)
        busy = [after[0] - before[0] for before, after in zip(self._cores, cores)]
        delays = [delay[pid] - self._delay[pid] for pid in delay if pid in self._delay]
        by_role = {
            role: [self._memories[pid] for pid in roles if roles[pid] == role and pid in self._memories]
            for role in used
        }
        self.moments.append(
            Moment(
                at=now - self.began,
                trainer_pss_bytes=sum(memory.pss_bytes for memory in by_role["trainer"]) or None,
                workers_pss_bytes=sum(memory.pss_bytes for memory in by_role["worker"]),
                private_bytes=sum(memory.private_bytes for found in by_role.values() for memory in found) or None,
                trainer_cores=used["trainer"] / seconds,
                workers_cores=used["worker"] / seconds,
                others_cores=max(0.0, sum(busy) - own) / seconds,
                trainer_delay_share=min(1.0, max(0.0, sum(delays) / len(delays) / seconds)) if delays else None,
                cores=[min(1.0, max(0.0, one / seconds)) for one in busy],
            )
        )
        if len(self.moments) > MAX_MOMENTS:
            del self.moments[::2]
            self.every_seconds *= 2

    def _roles(self, trainers: Mapping[int, int]) -> dict[int, str]:
        """Return who is what: what descends from a trainer is a worker; what starts trainers counts with them."""
        roles = {pid: "trainer" for root in self._roots for pid in tree(root)}
        for trainer in trainers:
            roles.update((pid, "worker") for pid in tree(trainer) if pid in roles and pid not in trainers)
        return roles

    def _look_at_memory(self, now: float, roles: Iterable[int]) -> None:
        if now >= self._memory_due:
            before = thread_time()
            found = {pid: memory_of(pid) for pid in roles}
            self._memories = {pid: memory for pid, memory in found.items() if memory is not None}
            self._num_asked += 1
            share = FIRST_MEMORY_SHARE if self._num_asked <= NUM_FIRST else MEMORY_SHARE
            self._memory_due = now + (thread_time() - before) / share
        self.memory.update((pid, memory.pss_bytes) for pid, memory in self._memories.items())

    @staticmethod
    def _delays(trainers: Mapping[int, int]) -> dict[int, float]:
        found = {pid: thread_times(pid, thread) for pid, thread in trainers.items()}
        return {pid: times[1] for pid, times in found.items() if times is not None}
