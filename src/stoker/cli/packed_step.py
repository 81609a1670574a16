"""List the contents of one step of a packed run: documents, positions, and text if the tokenizer is known."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from stoker.compose.packs.packed import Packed
    from stoker.plan import Plan
    from stoker.transform.tokenizer import Tokenizer


def saved_plan(path: Path, packed: Packed) -> tuple[Plan, int]:
    """Load a loader state saved as JSON; return its plan and number of ranks."""
    from json import loads

    from stoker.errors import ArgumentError
    from stoker.plan import Origin, Plan, order_from_dict

    try:
        state = loads(path.read_text())
        if state.get("mixture"):
            raise ArgumentError(
                f"{path} is the state of a mixture; expected the state of a single store",
                hint="use the loader in Python: loader.contents(step)",
            )
        theirs, ours = state["dataset"], packed.fingerprint
        plan = Plan(
            num_samples=state["plan"]["num_samples"],
            batch_size=state["batch_size"],
            order=order_from_dict(state["plan"]["order"]),
            seed=state["plan"]["seed"],
            tail=state["plan"]["tail"],
            skip=tuple((int(first), int(stop)) for first, stop in state["skip"]),
            origin=Origin(*state["origin"]),
        )
        num_ranks = int(state["num_ranks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{path} is not a loader state ({type(error).__name__}: {error})",
            hint="save it with json.dump(loader.state_dict(), file)",
        ) from error
    if (theirs or ours) != ours or plan.num_samples != len(packed):
        raise ArgumentError(
            f"{path} is for {plan.num_samples:,} packed rows, but these settings give {len(packed):,}",
            hint="pass --length, --strategy, --long, --window and --pack-seed as the run gave them to stoker.pack",
        )
    return plan, num_ranks


def step_contents(
    packed: Packed, plan: Plan, step: int, ranks: list[int], num_ranks: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Return the rows of a step as plain values: for each rank, the documents and their first tokens."""
    from stoker.cli.samples import MAX_VALUES, decode_tokens
    from stoker.compose.step_contents import contents

    epoch = plan.epoch_of(step)
    view = packed.in_epoch(epoch)
    shares: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks}
    found = contents(packed, plan, step, ranks, num_ranks)
    for (rank, row), parts in groupby(found, key=lambda part: (part.rank, part.row)):
        spans: list[dict[str, Any]] = []
        listed = list(parts)
        part = listed[0]
        tokens = view[part.position]["tokens"]
        for part in listed:
            columns = part.columns
            assert columns is not None
            some = tokens[columns.start : min(columns.stop, columns.start + MAX_VALUES)]
            text = decode_tokens(some, tokenizer)
            span = {
                "document": part.document,
                "offset": part.offset,
                "columns": [columns.start, columns.stop],
                "tokens": some[:12].tolist(),
            }
            spans.append(span if text is None else {**span, "text": text})
        shares[rank].append(
            {"row": row, "position": part.position, "is_padding": part.is_padding, "spans": spans},
        )
    return {
        "step": step,
        "epoch": epoch,
        "is_skipped": plan.is_skipped(step),
        "ranks": [{"rank": rank, "rows": rows} for rank, rows in shares.items()],
    }


def print_step(contents: dict[str, Any], packed: Packed, console: Console, *, max_rows: int | None) -> None:
    """Print the rows of a step."""
    from rich.text import Text

    from stoker.cli.samples import shorten
    from stoker.foundation.text import format_count

    console.print(f"[bold]step {contents['step']:,}[/] of epoch {contents['epoch']}: rows of {packed.length:,} tokens")
    if contents["is_skipped"]:
        console.print("  this step is skipped")
    for share in contents["ranks"]:
        console.print(f"[bold]rank {share['rank']}[/]")
        shown = share["rows"][:max_rows]
        for row in shown:
            fill = row["spans"][-1]["columns"][1] / packed.length
            pads = ", padding of the batch" if row["is_padding"] else ""
            console.print(
                f"  row {row['row']} [dim](packed row {row['position']:,}, "
                f"{format_count(len(row['spans']), 'document')}, "
                f"{fill:.1%} full{pads})[/]"
            )
            for span in row["spans"]:
                start, stop = span["columns"]
                piece = f" from token {span['offset']:,}" if span["offset"] else ""
                line = Text(f"    {start:>6}-{stop:<6} ")
                line.append(f"document {span['document']:,}{piece}  ", style="bold")
                text = span.get("text")
                line.append(shorten(text, 60) if text is not None else " ".join(map(str, span["tokens"])), "dim")
                console.print(line, overflow="ellipsis", no_wrap=True)
        if len(shown) < len(share["rows"]):
            console.print(f"  [dim]... {len(share['rows']) - len(shown)} more rows (--all)[/]")
