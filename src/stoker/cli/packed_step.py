"""What is in one step of a packed run: which documents, where, and their text where the tokenizer is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from stoker.compose.packed import Packed
    from stoker.plan import Plan
    from stoker.transform.tokenizer import Tokenizer


def told_step(packed: Packed, plan: Plan, step: int, ranks: list[int], num_ranks: int) -> dict[str, Any]:
    """Return the rows of a step, for each rank the documents in them, as plain values."""
    shares = []
    for rank in ranks:
        recipe = plan.recipe(step, rank, num_ranks)
        view = packed.in_epoch(recipe.epoch)
        is_padding = [False] * len(recipe.positions) if recipe.padding is None else recipe.padding.tolist()
        rows = [
            {
                "row": number,
                "position": position,
                "is_padding": pads,
                "spans": [
                    {
                        "document": span.document,
                        "offset": span.offset,
                        "columns": [span.start, span.stop],
                    }
                    for span in view.documents(position)
                ],
            }
            for number, (position, pads) in enumerate(zip(recipe.positions.tolist(), is_padding))
        ]
        shares.append({"rank": rank, "rows": rows})
    return {"step": step, "epoch": plan.epoch_of(step), "is_skipped": plan.is_skipped(step), "ranks": shares}


def with_texts(told: dict[str, Any], packed: Packed, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the same with the first tokens of every span, and their text."""
    from stoker.cli.samples import MAX_VALUES, decoded

    view = packed.in_epoch(told["epoch"])
    for share in told["ranks"]:
        for row in share["rows"]:
            tokens = view[row["position"]]["tokens"]
            for span in row["spans"]:
                start, stop = span["columns"]
                some = tokens[start : min(stop, start + MAX_VALUES)]
                span["tokens"] = some[:12].tolist()
                text = decoded(some, tokenizer)
                if text is not None:
                    span["text"] = text
    return told


def print_step(told: dict[str, Any], packed: Packed, console: Console, *, max_rows: int | None) -> None:
    """Print the rows of a step."""
    from rich.text import Text

    from stoker.cli.samples import shortened

    console.print(f"[bold]step {told['step']:,}[/] of epoch {told['epoch']}: rows of {packed.length:,} tokens")
    if told["is_skipped"]:
        console.print("  this step is skipped")
    for share in told["ranks"]:
        console.print(f"[bold]rank {share['rank']}[/]")
        shown = share["rows"][:max_rows]
        for row in shown:
            used = row["spans"][-1]["columns"][1] if row["spans"] else 0
            pads = ", only fills up the batch" if row["is_padding"] else ""
            console.print(
                f"  row {row['row']} [dim](packed row {row['position']:,}, {len(row['spans'])} documents, "
                f"{used / packed.length:.1%} full{pads})[/]"
            )
            for span in row["spans"]:
                start, stop = span["columns"]
                piece = f" from token {span['offset']:,}" if span["offset"] else ""
                line = Text(f"    {start:>6}-{stop:<6} ")
                line.append(f"document {span['document']:,}{piece}  ", style="bold")
                text = span.get("text")
                line.append(shortened(text, 60) if text is not None else " ".join(map(str, span["tokens"])), "dim")
                console.print(line, overflow="ellipsis", no_wrap=True)
        if len(shown) < len(share["rows"]):
            console.print(f"  [dim]... {len(share['rows']) - len(shown)} more rows (--all)[/]")
