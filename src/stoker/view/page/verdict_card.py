"""What the doctor says, first of all: the verdict in words, why, what there is to win, and what to write."""

from __future__ import annotations

import re

from stoker.bench.diagnosis import VERDICTS, Diagnosis
from stoker.view.page.markup import Child, Markup, escaped, joined, tag

_CODE = re.compile(r"`([^`\n]+)`")


def card(diagnosis: Diagnosis, *, of: str = "", is_folded: bool = False) -> Markup:
    """Return the verdict with its evidence, gain and advice; `is_folded` hides the evidence until somebody wants it."""
    kind, sign = _mood(diagnosis)
    meaning = VERDICTS.get(diagnosis.verdict)
    return tag(
        "article",
        tag("p", of, class_="of") if of else None,
        tag(
            "h2",
            tag("span", sign, class_="sign", aria_hidden="true"),
            tag("span", _name(diagnosis.verdict), class_="name"),
            tag("span", f": {meaning}", class_="meaning") if meaning else None,
        ),
        tag("p", prose(diagnosis.says), class_="says"),
        _gain(diagnosis),
        _advice(diagnosis),
        _reasons(diagnosis, is_folded=is_folded),
        class_=f"verdict {kind}",
    )


def prose(text: str) -> Markup:
    """Return a text that begins with a capital, and in which what stands between backquotes is code."""
    parts = _CODE.split(_capital(text))
    return joined(*(tag("code", part) if at % 2 else escaped(part) for at, part in enumerate(parts)))


def _mood(diagnosis: Diagnosis) -> tuple[str, str]:
    if diagnosis.is_healthy:
        return "well", "\N{HEAVY CHECK MARK}"
    if diagnosis.verdict == "nothing-seen":
        return "unknown", "?"
    return "ill", "!"


def _name(verdict: str) -> str:
    told = verdict if verdict.endswith("-bound") else verdict.replace("-", " ")
    return _capital(told)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _gain(diagnosis: Diagnosis) -> Child:
    if not diagnosis.gain:
        return None
    whole = ""
    if "of the time" in diagnosis.gain:
        is_of_batches = diagnosis.verdict == "slow-rank"  # a rank is late by so much of each batch
        whole = " (from batch to batch)" if is_of_batches else " (in the loop, first batches among it)"
    return tag("p", tag("strong", "To win: "), prose(diagnosis.gain), whole, class_="gain")


def _reasons(diagnosis: Diagnosis, *, is_folded: bool) -> Child:
    """Return the evidence, and what else was found."""
    evidence = diagnosis.evidence
    of_the_time = any("of the time" in one for one in evidence)
    told: list[Child] = []
    if evidence:
        told += [tag("h3", "Why"), tag("ul", [tag("li", prose(one)) for one in evidence])]
    if of_the_time:
        told.append(
            tag(
                "p",
                "Here, the time of waiting and of being at work is that from batch to batch, without first batches.",
                class_="note",
            )
        )
    told.append(_findings(diagnosis))
    if not is_folded or not any(one is not None for one in told):
        return joined(*told)
    names = [name for name, is_there in (("why", evidence), ("what else was found", diagnosis.findings)) if is_there]
    return tag("details", tag("summary", _capital(", and ".join(names))), *told)


def _advice(diagnosis: Diagnosis) -> Child:
    if not diagnosis.advice:
        return None
    return joined(tag("h3", "What to change"), tag("ol", [tag("li", advised(one)) for one in diagnosis.advice]))


def advised(text: str) -> Markup:
    """Return an advice, with a button for each piece of code in it, which the page's script makes work."""
    parts = _CODE.split(_capital(text))
    return joined(*(_copied(part) if at % 2 else escaped(part) for at, part in enumerate(parts)))


def _copied(code: str) -> Markup:
    return tag(
        "span",
        tag("code", code),
        tag("button", "copy", type="button", class_="copy", data_copy=code, aria_label=f"copy {code}", hidden=True),
        class_="copied",
    )


def _sentence(text: Markup) -> Markup:
    return text if text.endswith((".", "!", "?", ":")) else joined(text, ".")


def _findings(diagnosis: Diagnosis) -> Child:
    if not diagnosis.findings:
        return None
    return joined(
        tag("h3", "Also found"),
        tag(
            "dl",
            [
                joined(
                    tag("dt", tag("code", one.about)), tag("dd", _sentence(prose(one.what)), " ", advised(one.advice))
                )
                for one in diagnosis.findings
            ],
            class_="findings",
        ),
    )
