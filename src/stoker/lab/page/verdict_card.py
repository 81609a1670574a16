"""The diagnosis at the top of the page: verdict, possible gain, suggested changes, and evidence."""

from __future__ import annotations

from markupsafe import Markup

from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdicts import VERDICTS
from stoker.lab.page.templating import capitalize, render


def verdict_card(diagnosis: Diagnosis, *, of: str = "", is_folded: bool = False) -> Markup:
    """Return the verdict with its evidence, gain and advice; `is_folded` collapses the evidence."""
    mood, sign = ("well", "\N{HEAVY CHECK MARK}") if diagnosis.is_healthy else ("ill", "!")
    if diagnosis.verdict == "nothing-seen":
        mood, sign = "unknown", "?"
    name = diagnosis.verdict if diagnosis.verdict.endswith("-bound") else diagnosis.verdict.replace("-", " ")
    whole = ""
    if diagnosis.gain and "of the time" in diagnosis.gain:
        is_of_batches = diagnosis.verdict == "slow-rank"  # a slow rank is late by that share of each batch
        whole = " (from batch to batch)" if is_of_batches else " (in the loop, including first batches)"
    verdict = VERDICTS.get(diagnosis.verdict)
    parts = {"why": diagnosis.evidence, "other findings": diagnosis.findings}
    return render(
        "verdict.html",
        diagnosis=diagnosis,
        of=of,
        mood=mood,
        sign=sign,
        name=capitalize(name),
        meaning=verdict.meaning if verdict is not None else None,
        whole=whole,
        summary=capitalize(", and ".join(name for name, found in parts.items() if found)) if is_folded else "",
    )
