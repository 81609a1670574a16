"""Sample processes and cores over time, from outside, a few times a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter, thread_time

from stoker.foundation.machine import Memory, core_seconds, memory_of, thread_times, tree, usage_of
from stoker.lab.watch.run import Moment

EVERY_SECONDS = 0.2
MAX_MOMENTS = 400
"""When there are more, every other moment is dropped, and sampling becomes half as frequent."""

MEMORY_SHARE, FIRST_MEMORY_SHARE, NUM_FIRST = 0.02, 0.15, 16
"""Share of the time spent asking the kernel how much memory processes have, which may delay processes that allocate
some; and for the first few times, without which a short run could not show whether its memory grows.
"""


class Monitor:
    """Samples processes, and all of their descendants."""

    def __init__(self, roots: Iterable[int], trainers: Callable[[], Mapping[int, int | None]]) -> None:
        self._roots, self._trainers = list(roots), trainers
        self.began = perf_counter()
        self.every_seconds = EVERY_SECONDS
        self.moments: list[Moment] = []
        self.memory: dict[int, int] = {}
        """The PSS of each process, as it was last."""
        self._is_first = True
        self._sampled = self.began
        self._memory_due, self._num_asked = 0.0, 0
        self._memories: dict[int, Memory] = {}
        self._cpu: dict[int, float] = {}
        self._delay: dict[int, float] = {}
        self._cores: list[tuple[float, float]] = []

    def sample(self) -> None:
        """Add a moment with what was used since the one before. The first call only begins."""
        now = perf_counter()
        trainers = {pid: thread for pid, thread in self._trainers().items() if thread is not None}
        roles = self._roles(trainers)
        cpu = {pid: usage.cpu_seconds for pid in {*roles, os.getpid()} if (usage := usage_of(pid)) is not None}
        used = {pid: max(0.0, seconds - self._cpu.get(pid, 0.0)) for pid, seconds in cpu.items()}
        cores, delay = core_seconds(), self._delays(trainers)
        seconds = now - self._sampled
        if not self._is_first and seconds > 0:
            self._measure_memory(now, roles)
            self.moments.append(self._moment(now, seconds, roles, used, cores, delay))
            if len(self.moments) > MAX_MOMENTS:
                del self.moments[::2]
                self.every_seconds *= 2
        self._is_first = False
        self._sampled, self._cpu, self._cores, self._delay = now, cpu, cores, delay

    def _moment(
        self,
        now: float,
        seconds: float,
        roles: dict[int, str],
        used: dict[int, float],
        cores: list[tuple[float, float]],
        delay: dict[int, float],
    ) -> Moment:
        busy = [after[0] - before[0] for before, after in zip(self._cores, cores)]
        delays = [delay[pid] - self._delay[pid] for pid in delay if pid in self._delay]
        trainers, workers = ([pid for pid in roles if roles[pid] == role] for role in ("trainer", "worker"))
        memories = [self._memories[pid] for pid in roles if pid in self._memories]
        return Moment(
            at=now - self.began,
            trainer_pss_bytes=self._pss_bytes(trainers) or None,
            workers_pss_bytes=self._pss_bytes(workers),
            private_bytes=sum(memory.private_bytes for memory in memories) or None,
            trainer_cores=sum(used.get(pid, 0.0) for pid in trainers) / seconds,
            workers_cores=sum(used.get(pid, 0.0) for pid in workers) / seconds,
            others_cores=max(0.0, sum(busy) - sum(used.values())) / seconds,
            trainer_delay_share=min(1.0, max(0.0, sum(delays) / len(delays) / seconds)) if delays else None,
            cores=[min(1.0, max(0.0, core / seconds)) for core in busy],
        )

    def _pss_bytes(self, pids: list[int]) -> int:
        return sum(self._memories[pid].pss_bytes for pid in pids if pid in self._memories)

    def _roles(self, trainers: Mapping[int, int]) -> dict[int, str]:
        """Return the role of each process: descendants of trainers are workers; their ancestors count as trainers."""
        roles = {pid: "trainer" for root in self._roots for pid in tree(root)}
        for trainer in trainers:
            roles.update((pid, "worker") for pid in tree(trainer) if pid in roles and pid not in trainers)
        return roles

    def _measure_memory(self, now: float, roles: Iterable[int]) -> None:
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
