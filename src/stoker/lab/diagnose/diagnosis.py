"""What a doctor says: one verdict, why, what it would bring to change it, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.engine.stats import Plain

VERDICTS = {
    "compute-bound": "the loader keeps up",
    "storage-bound": "batches wait for the disk or the network",
    "decode-bound": "workers are busy decoding, in native code",
    "python-bound": "workers are busy in Python, one at a time for each interpreter's lock",
    "collate-bound": "workers are busy putting samples together",
    "transport-bound": "batches are made in time, and take too long to reach the trainer",
    "copy-bound": "batches take too long to reach the device",
    "noisy-neighbour": "the trainer has to wait for a core",
    "start-up-bound": "most of the time goes into first batches",
    "memory-growth": "memory grows with every batch",
    "slow-rank": "one rank is late, and all others wait for it",
    "duplicated-data": "workers read the same data",
    "nothing-seen": "there is too little to judge by",
}
"""The verdicts, and what they mean in a few words. A run gets one of them."""

HEALTHY = ("compute-bound",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Plain):
    """Something about the configuration that could be better, whatever the verdict."""

    about: str
    """A short name, such as `batch_size` or `shm`."""
    what: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Plain):
    """One verdict with its evidence."""

    verdict: str
    says: str
    """The verdict as a sentence with numbers."""
    own_cause: str | None = None
    """Of a noisy neighbour: the verdict on the loader without it, as estimated; None if the loader would keep up."""
    evidence: list[str] = field(default_factory=list)
    gain: str | None = None
    """The possible gain: time per step, and the share of the whole."""
    gain_share: float | None = None
    """The same as a number: the part of the run's time that would be saved."""
    advice: list[str] = field(default_factory=list)
    """What to change, most useful first; with the argument to write."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs to be done for speed."""
        return self.verdict in HEALTHY

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.says}"]
        if self.evidence:
            lines += ["", "evidence", *(f"  - {line}" for line in self.evidence)]
        if self.gain is not None:
            lines += ["", "possible gain", f"  {self.gain}"]
        if self.advice:
            lines += ["", "what to do", *(f"  {number}. {line}" for number, line in enumerate(self.advice, 1))]
        if self.findings:
            lines += ["", "also"]
            lines += [f"  - {finding.about}: {finding.what}\n    {finding.advice}" for finding in self.findings]
        return "\n".join(lines)
