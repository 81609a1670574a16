"""The records of a diagnosis: one verdict, why, what changing it would gain, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.engine.stats import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictKind:
    """What can be said of a run. A module of `stoker.lab.diagnose.verdicts` defines each, decides whether it holds, and
    words it.
    """

    name: str
    meaning: str
    """The verdict in a few words."""
    sign: str
    """How it shows. This and the next are the rows of the table in docs/guides/doctor.md."""
    remedy: str
    """What helps, with links as seen from docs/guides."""


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
    """With "noisy-neighbour": the estimated verdict on the loader without it; None if the loader would keep up."""
    evidence: list[str] = field(default_factory=list)
    gain: str | None = None
    """The possible gain: time per step, and the share of the whole."""
    gain_share: float | None = None
    """The same as a number: the share of the run's time that would be saved."""
    advice: list[str] = field(default_factory=list)
    """What to change, most useful first, with the argument to write."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs to be done for speed."""
        return self.verdict == "compute-bound"

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.says}"]
        for title, listed in self.sections():
            lines += ["", title, *(f"  {mark} {line}".replace("\n", "\n    ") for mark, line in listed)]
        return "\n".join(lines)

    def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return what is printed below the verdict: titles with lines, each with the mark before it."""
        sections = [
            ("evidence", [("-", line) for line in self.evidence]),
            ("possible gain", [(" ", self.gain)] if self.gain is not None else []),
            ("what to do", [(f"{number}.", line) for number, line in enumerate(self.advice, 1)]),
            ("also", [("-", f"{finding.about}: {finding.what}\n{finding.advice}") for finding in self.findings]),
        ]
        return [(title, lines) for title, lines in sections if lines]
