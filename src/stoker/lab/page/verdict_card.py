"""The diagnosis at the top of the page: verdict, evidence, possible gain and suggested changes."""

from __future__ import annotations

import re

from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdicts import VERDICTS
from stoker.lab.page.markup import Child, Markup, escape, join, tag

_CODE = re.compile(r"`([^`\n]+)`")


def card(diagnosis: Diagnosis, *, of: str = "", is_folded: bool = False) -> Markup:
    """Return the verdict with its evidence, gain and advice; `is_folded` collapses the evidence."""
    kind, sign = _mood(diagnosis)
    verdict = VERDICTS.get(diagnosis.verdict)
    return tag(
        "article",
        tag("p", of, class_="of") if of else None,
        tag(
            "h2",
            tag("span", sign, class_="sign", aria_hidden="true"),
            tag("span", _name(diagnosis.verdict), class_="name"),
            tag("span", f": {verdict.meaning}", class_="meaning") if verdict else None,
        ),
        tag("p", prose(diagnosis.says), class_="says"),
        _gain(diagnosis),
        _advice(diagnosis),
        _reasons(diagnosis, is_folded=is_folded),
        class_=f"verdict {kind}",
    )


def prose(text: str) -> Markup:
    """Capitalize a text and turn backquoted parts into code elements."""
    parts = _CODE.split(_capital(text))
    return join(*(tag("code", part) if at % 2 else escape(part) for at, part in enumerate(parts)))


def _mood(diagnosis: Diagnosis) -> tuple[str, str]:
    if diagnosis.is_healthy:
        return "well", "\N{HEAVY CHECK MARK}"
    if diagnosis.verdict == "nothing-seen":
        return "unknown", "?"
    return "ill", "!"


def _name(verdict: str) -> str:
    name = verdict if verdict.endswith("-bound") else verdict.replace("-", " ")
    return _capital(name)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _gain(diagnosis: Diagnosis) -> Child:
    if not diagnosis.gain:
        return None
    whole = ""
    if "of the time" in diagnosis.gain:
        is_of_batches = diagnosis.verdict == "slow-rank"  # a slow rank is late by that share of each batch
        whole = " (from batch to batch)" if is_of_batches else " (in the loop, including first batches)"
    return tag("p", tag("strong", "Possible gain: "), prose(diagnosis.gain), whole, class_="gain")


def _reasons(diagnosis: Diagnosis, *, is_folded: bool) -> Child:
    """Return the evidence, and other findings."""
    evidence = diagnosis.evidence
    of_the_time = any("of the time" in one for one in evidence)
    parts: list[Child] = []
    if evidence:
        parts += [tag("h3", "Why"), tag("ul", [tag("li", prose(one)) for one in evidence])]
    if of_the_time:
        parts.append(
            tag(
                "p",
                "Shares of waiting and busy time refer to the time from batch to batch, without first batches.",
                class_="note",
            )
        )
    parts.append(_findings(diagnosis))
    if not is_folded or not any(one is not None for one in parts):
        return join(*parts)
    names = [name for name, is_there in (("why", evidence), ("other findings", diagnosis.findings)) if is_there]
    return tag("details", tag("summary", _capital(", and ".join(names))), *parts)


def _advice(diagnosis: Diagnosis) -> Child:
    if not diagnosis.advice:
        return None
    return join(tag("h3", "Suggested changes"), tag("ol", [tag("li", format_advice(one)) for one in diagnosis.advice]))


def format_advice(text: str) -> Markup:
    """Format a suggestion, with a copy button for each piece of code, which the page's script handles."""
    parts = _CODE.split(_capital(text))
    return join(*(_add_copy_button(part) if at % 2 else escape(part) for at, part in enumerate(parts)))


def _add_copy_button(code: str) -> Markup:
    return tag(
        "span",
        tag("code", code),
        tag("button", "copy", type="button", class_="copy", data_copy=code, aria_label=f"copy {code}", hidden=True),
        class_="copied",
    )


def _sentence(text: Markup) -> Markup:
    return text if text.endswith((".", "!", "?", ":")) else join(text, ".")


def _findings(diagnosis: Diagnosis) -> Child:
    if not diagnosis.findings:
        return None
    return join(
        tag("h3", "Other findings"),
        tag(
            "dl",
            [
                join(
                    tag("dt", tag("code", one.about)),
                    tag("dd", _sentence(prose(one.what)), " ", format_advice(one.advice)),
                )
                for one in diagnosis.findings
            ],
            class_="findings",
        ),
    )
