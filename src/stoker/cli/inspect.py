"""`stoker inspect`: show the contents of a store, or of other data that stoker.open reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.pack import LongName, StrategyName
from stoker.cli.plan_command import OrderName, TailName

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stoker.store import Store
    from stoker.transform.tokenizer import Tokenizer

NUM_RUNS, RUN_LENGTH = 16, 1024
"""For long stores, lengths are sampled: this many runs of adjacent samples, spread over the store. The offsets of a
run lie in one block, so that this reads only some megabytes however long the store is.
"""

QUANTILES = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}
SHOWN = ("mean", "min", "p50", "max")
"""Quantiles shown in the table: more would not fit into 80 columns. JSON has all."""

MAX_INPUTS = 5

MAX_ROWS = 4
"""Rows of a step shown per rank."""

RUN = "Contents of a step of a packed run"

TOKENS = "tokens"
"""The column of token ids."""


def inspect(
    path: Annotated[str, typer.Argument(help="A store, or other data that stoker.open reads.")],
    samples: Annotated[int, typer.Option(min=0, help="Number of samples to show, spread over the data.")] = 3,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer to decode with (default: the store's own).")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Split pattern of a .tiktoken file with an unknown name, as in stoker prepare.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Show the documents in this step of a packed run.", rich_help_panel=RUN),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Only this rank's rows (default: all ranks).", rich_help_panel=RUN),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="State of the run, saved as JSON: sets batch size, ranks, order, seed, tail and skipped steps.",
            rich_help_panel=RUN,
        ),
    ] = None,
    num_ranks: Annotated[int, typer.Option(min=1, help="Ranks that share each step.", rich_help_panel=RUN)] = 1,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Rows in one step over ALL ranks: batch_size x num_ranks.", rich_help_panel=RUN)
    ] = 8,
    order: Annotated[OrderName, typer.Option(help="The loader's order.", rich_help_panel=RUN)] = OrderName.shuffle,
    window_size: Annotated[
        int | None, typer.Option(help="With --order window: rows in a window.", rich_help_panel=RUN)
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="With --order window: rows in a block.", rich_help_panel=RUN)
    ] = None,
    seed: Annotated[int, typer.Option(help="The loader's seed; `seed` in a state.", rich_help_panel=RUN)] = 0,
    tail: Annotated[
        TailName, typer.Option(help="The loader's tail; drop_last=True is drop.", rich_help_panel=RUN)
    ] = TailName.keep,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a row.", rich_help_panel=RUN)] = 4096,
    strategy: Annotated[
        StrategyName, typer.Option(help="How documents are packed into rows.", rich_help_panel=RUN)
    ] = StrategyName.best_fit,
    long: Annotated[
        LongName, typer.Option(help="How to handle documents longer than a row.", rich_help_panel=RUN)
    ] = LongName.SPLIT,
    window: Annotated[
        int | None, typer.Option(min=1, help="Documents packed together (default: all).", rich_help_panel=RUN)
    ] = None,
    pack_seed: Annotated[int, typer.Option(help="The seed of stoker.pack.", rich_help_panel=RUN)] = 0,
    column: Annotated[str, typer.Option(help="Column of the tokens.", rich_help_panel=RUN)] = TOKENS,
    all: Annotated[bool, typer.Option("--all", help="With --step: list every row.", rich_help_panel=RUN)] = False,
) -> None:
    """Show the contents of a store: columns, counts, sizes, tokenizer, origin, and a few samples.

    Other data that stoker.open reads works too, with less information. With --step, show instead the documents in a
    step of a packed run, with their text if the tokenizer is known: pass the same settings as the run passed to
    stoker.pack and DataLoader, or a saved state.

    Example: [bold cyan]stoker inspect data/corpus --samples 5[/]

    Example: [bold cyan]stoker inspect data/corpus --length 4096 --state run.json --step 41200 --rank 0[/]
    """
    from json import dumps

    from rich.console import Console

    from stoker.store import Store

    source = _open(path)
    store = source if isinstance(source, Store) else None
    used, remark = _tokenizer(store, tokenizer, pattern)
    if step is not None:
        _print_step(
            source,
            step,
            rank,
            used,
            plan_options=(num_ranks, batch_size, order, window_size, block, seed, tail),
            state=state,
            pack_options={
                "length": length,
                "strategy": strategy.value,
                "long": long.value,
                "window": window,
                "seed": pack_seed,
                "column": column,
            },
            is_json=json,
            max_rows=None if all else MAX_ROWS,
        )
        return
    facts = _of_store(store) if store is not None else _of_other(path, source)
    if remark:
        facts["tokenizer_remark"] = remark
    if json:
        facts["samples"] = [_sample(source, position, used) for position in _spread(len(source), samples)]
        print(dumps(facts, indent=2, ensure_ascii=False, default=str))
        return
    console = Console(highlight=False)
    if store is not None:
        console.print(_store_table(facts))
    else:
        console.print(_other_table(facts))
    _print_columns(facts, console)
    _print_samples(source, samples, used, console)


def _print_step(
    source: Any,
    step: int,
    rank: int | None,
    tokenizer: Tokenizer | None,
    *,
    plan_options: tuple[int, int, OrderName, int | None, int | None, int, TailName],
    state: Path | None,
    pack_options: dict[str, Any],
    is_json: bool,
    max_rows: int | None,
) -> None:
    from json import dumps

    from rich.console import Console

    import stoker
    from stoker.cli.packed_step import print_step, saved_plan, step_contents
    from stoker.cli.plan_command import make_order
    from stoker.errors import ArgumentError
    from stoker.plan import Plan

    packed = stoker.pack(source, **pack_options)
    num_ranks, batch_size, order, window_size, block, seed, tail = plan_options
    if state is not None:
        plan, num_ranks = saved_plan(state, packed)
    else:
        if batch_size % num_ranks:
            raise ArgumentError(
                f"cannot divide {batch_size} rows evenly over {num_ranks} ranks",
                hint="--batch-size counts the rows of all ranks: the loader's batch_size x num_ranks",
            )
        plan = Plan(
            num_samples=len(packed),
            batch_size=batch_size,
            order=make_order(order, window_size, block),
            seed=seed,
            tail=tail.value,
        )
    ranks = list(range(num_ranks)) if rank is None else [rank]
    contents = step_contents(packed, plan, step, ranks, num_ranks, tokenizer)
    if is_json:
        print(dumps(contents, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    print_step(contents, packed, console, max_rows=max_rows)
    if state is None:
        console.print("[dim]If the run was ever resumed with another batch size, or skips steps, pass --state.[/]")


def _open(path: str) -> Any:
    import stoker
    from stoker.store import open_store

    folder = Path(path)
    if (folder / ".build").is_dir():  # a store, or an incomplete one: then the error says so
        return open_store(folder)
    return stoker.open(path)


# -------------------------------------------------------------------- collecting facts


def _of_store(store: Store) -> dict[str, Any]:
    shards = store.manifest.shards
    num_bytes = sum(shard.num_bytes for shard in shards)
    facts: dict[str, Any] = {
        "path": str(store.path),
        "kind": "store",
        "num_samples": len(store),
        "num_bytes": num_bytes,
        "bytes_per_sample": num_bytes / len(store) if len(store) else 0.0,
        "num_shards": len(shards),
        "num_pieces": len({shard.piece for shard in shards}),
        "fingerprint": store.fingerprint,
        "columns": {},
        "meta": store.meta,
    }
    for name, column in store.columns.items():
        entry: dict[str, Any] = {"type": column.described(), **column.to_json()}
        if column.is_ragged:
            entry["num_values"] = sum(shard.values[name] for shard in shards)
            entry["per_sample"] = _lengths(store, name)
        facts["columns"][name] = entry
    return facts


def _lengths(store: Store, column: str) -> dict[str, Any]:
    """Return statistics of the number of values per sample, from all samples or from some of all parts of the store."""
    import numpy as np

    from stoker.errors import DataError

    if len(store) <= NUM_RUNS * RUN_LENGTH:
        positions = np.arange(len(store))
    else:
        starts = np.linspace(0, len(store) - RUN_LENGTH, NUM_RUNS).astype(np.int64)
        positions = (starts[:, None] + np.arange(RUN_LENGTH)).ravel()
    if not len(positions):
        return {}
    try:
        lengths = store.lengths(column, positions)
    except DataError as error:  # show what is available
        return {"error": str(error).splitlines()[0]}
    found = np.quantile(lengths, list(QUANTILES.values()), method="lower").tolist()
    return {"num_looked_at": len(lengths), "mean": float(lengths.mean()), **dict(zip(QUANTILES, found))}


def _of_other(path: str, source: Any) -> dict[str, Any]:
    from stoker.cli.samples import describe_type, iterate_values

    columns = {name: {"type": describe_type(value)} for name, value in iterate_values(source[0])} if len(source) else {}
    facts: dict[str, Any] = {"path": path, "kind": type(source).__name__, "num_samples": len(source)}
    for name in ("num_values", "num_documents", "fingerprint"):
        value = getattr(source, name, None)
        if isinstance(value, int | str):
            facts[name] = value
    return {**facts, "columns": columns}


def _tokenizer(store: Store | None, wanted: str | None, pattern: str | None) -> tuple[Tokenizer | None, str | None]:
    """Return the tokenizer to decode with, if there is one, and a remark about it."""
    from stoker.errors import StokerError
    from stoker.transform.tokenizer import open_tokenizer

    known = store.meta.get("tokenizer") if store is not None else None
    if not isinstance(known, dict):
        known = None
    if wanted is not None:
        tokenizer = open_tokenizer(wanted, backend="reference", pattern=pattern)
        is_other = known is not None and tokenizer.identity.digest != known.get("digest")
        return tokenizer, "decoded with a different tokenizer than the store's" if is_other else None
    if store is None or known is None:
        return None, None
    reason = (
        f"{known.get('name')} was not found in the store, next to it, or in the current folder; pass --tokenizer PATH"
    )
    for spec in _places(known, store):
        try:
            tokenizer = open_tokenizer(spec, backend="reference", pattern=pattern)
        except (StokerError, OSError) as error:
            reason = str(error).splitlines()[0]
            continue
        if tokenizer.identity.digest == known.get("digest"):
            return tokenizer, None
        reason = f"{spec} has changed: its digest is {tokenizer.identity.digest[:16]}..."
    return None, f"ids are not decoded: {reason}"


def _places(known: Mapping[str, Any], store: Store) -> Iterator[str]:
    """Yield the paths where the tokenizer of a store may be."""
    if known.get("kind") == "bytes":
        yield "bytes"
        return
    name = known.get("name")
    if isinstance(name, str) and Path(name).name == name:
        for folder in (store.path, store.path.parent, Path()):
            if (folder / name).is_file():
                yield str(folder / name)


def _spread(length: int, number: int) -> list[int]:
    """Return evenly spaced positions from the first to the last."""
    number = min(number, length)
    return [at * (length - 1) // max(1, number - 1) for at in range(number)]


def _values(source: Any, position: int) -> dict[str, Any]:
    """Return a sample as {name: value}. If each token is a sample, return the tokens from there on."""
    import numpy as np

    from stoker.cli.samples import MAX_VALUES, iterate_values

    if hasattr(source, "windows") and source.num_values == len(source):
        length = min(MAX_VALUES, source.num_values)
        start = min(position, source.num_values - length)
        return {TOKENS: source.windows(np.array([start]), length)[0]}
    return dict(iterate_values(source[position]))


def _text_of(name: str, value: Any, tokenizer: Tokenizer | None) -> str | None:
    import numpy as np

    from stoker.cli.samples import decode_tokens

    is_tokens = name in (TOKENS, "") and isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    return decode_tokens(value, tokenizer) if is_tokens else None


def _sample(source: Any, position: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    from stoker.cli.samples import to_json

    values = _values(source, position)
    facts: dict[str, Any] = {
        "position": position,
        "where": _where(source, position),
        "values": {name: to_json(value) for name, value in values.items()},
    }
    texts = {name: _text_of(name, value, tokenizer) for name, value in values.items()}
    facts["decoded"] = {name: text for name, text in texts.items() if text is not None}
    return facts


def _where(source: Any, position: int) -> str | None:
    if not hasattr(source, "describe"):
        return None
    where = str(source.describe(position))
    return where.removeprefix(f"{source.path}/") if hasattr(source, "path") else where


# -------------------------------------------------------------------- printing


def _store_table(facts: Mapping[str, Any]) -> Table:
    from stoker.foundation.text import format_bytes, format_count

    table = _grid()
    table.add_row("store", _escape(facts["path"]))
    table.add_row("samples", f"{facts['num_samples']:,}")
    size = f"{format_bytes(facts['num_bytes'])} in {format_count(facts['num_shards'], 'shard')}"
    if facts["num_samples"]:
        size += f", {_bytes_each(facts['bytes_per_sample'])} per sample"
    table.add_row("size", size)
    for name, row in _meta_rows(facts):
        table.add_row(name, row)
    table.add_row("fingerprint", facts["fingerprint"])
    return table


def _bytes_each(num_bytes: float) -> str:
    from stoker.foundation.text import format_bytes

    return f"{num_bytes:.1f} bytes" if num_bytes < 1024 else format_bytes(round(num_bytes))


def _meta_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield rows of the store's metadata: known fields formatted, the rest as it is."""
    from stoker.cli.samples import shorten

    for name, value in facts["meta"].items():
        if name == "tokenizer" and isinstance(value, dict):
            yield name, _format_tokenizer(value, facts.get("tokenizer_remark"))
        elif name == "origin" and isinstance(value, dict):
            yield name, _format_origin(value)
        elif isinstance(value, dict):
            is_count = name == "counts"
            parts = {key: _plain(part, is_count=is_count) for key, part in value.items() if part not in ({}, [])}
            yield _escape(name), _escape(", ".join(f"{key} {part}" for key, part in parts.items()))
        else:
            yield _escape(name), _escape(shorten(_plain(value)))


def _plain(value: Any, *, is_count: bool = False) -> str:
    from json import dumps

    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, str):
        return value
    return f"{value:,}" if is_count and isinstance(value, int) else dumps(value)


def _format_tokenizer(known: Mapping[str, Any], remark: str | None) -> str:
    kind, digest = known.get("kind"), str(known.get("digest", ""))[:16]
    name = "" if known.get("name") == kind else f"{known.get('name')} "
    text = f"{name}({kind}, sha256 {digest}...)"
    if isinstance(known.get("vocab_size"), int):
        text += f", {known['vocab_size']:,} ids"
    end = known.get("end_of_document")
    specials = known.get("specials")
    names = {number: text for text, number in specials.items()} if isinstance(specials, dict) else {}
    text += ", no end of document" if end is None else f", end of document {end} {names.get(end, '')}".rstrip()
    if remark:
        text += f"\n{remark}"
    return _escape(text)


def _format_origin(origin: Mapping[str, Any]) -> str:
    from stoker.foundation.text import format_bytes, format_count

    inputs = [entry for entry in origin.get("inputs") or () if isinstance(entry, dict)]
    total = sum(int(entry.get("num_bytes", 0)) for entry in inputs)
    lines = [f"{format_count(len(inputs), 'file')}, {format_bytes(total)}"]
    rest = {name: value for name, value in origin.items() if name not in ("inputs", "libraries")}
    libraries = origin.get("libraries")
    rest |= libraries if isinstance(libraries, dict) else {}
    if rest:
        lines[0] += f" ({', '.join(f'{name} {_plain(value)}' for name, value in rest.items())})"
    lines += [f"{entry.get('path')} ({format_bytes(int(entry.get('num_bytes', 0)))})" for entry in inputs[:MAX_INPUTS]]
    if len(inputs) > MAX_INPUTS:
        lines.append(f"... {len(inputs) - MAX_INPUTS:,} more")
    return _escape("\n".join(lines))


def _other_table(facts: Mapping[str, Any]) -> Table:
    table = _grid()
    table.add_row("path", _escape(facts["path"]))
    table.add_row("opened as", facts["kind"])
    table.add_row("samples", f"{facts['num_samples']:,}")
    if "" in facts["columns"]:
        table.add_row("type", _escape(facts["columns"][""]["type"]))
    if facts.get("num_values") is not None:
        table.add_row("tokens", f"{facts['num_values']:,}")
    if facts.get("num_documents"):
        table.add_row("documents", f"{facts['num_documents']:,}")
    if facts.get("fingerprint"):
        table.add_row("fingerprint", facts["fingerprint"])
    return table


def _print_columns(facts: Mapping[str, Any], console: Console) -> None:
    from rich import box
    from rich.table import Table

    columns = facts["columns"]
    if not any(columns):
        return
    has_ragged = any("num_values" in entry for entry in columns.values())
    lengths = {name: entry.get("per_sample", {}) for name, entry in columns.items()}
    table = Table(box=box.SIMPLE)
    table.add_column("column", style="bold", overflow="fold")
    table.add_column("type", overflow="fold")
    if has_ragged:
        for name in ("values", *SHOWN):
            table.add_column(name, justify="right", no_wrap=True)
    for name, entry in columns.items():
        row = [_escape(name), _escape(entry["type"])]
        if "num_values" in entry:
            found = lengths[name]
            row += [f"{entry['num_values']:,}", f"{found['mean']:,.1f}" if "mean" in found else "-"]
            row += [f"{found[quantile]:,}" if quantile in found else "-" for quantile in SHOWN[1:]]
        table.add_row(*row)
    looked_at = max((part.get("num_looked_at", 0) for part in lengths.values()), default=0)
    if looked_at:
        of = "" if looked_at == facts["num_samples"] else f", of {looked_at:,} samples spread over the store"
        table.caption, table.caption_justify = f"mean to max: values per sample{of}", "left"
    console.print(table)
    for part in lengths.values():
        if "error" in part:
            console.print(f"  [bold red]{_escape(part['error'])}[/]", soft_wrap=True)


def _print_samples(source: Any, num_shown: int, tokenizer: Tokenizer | None, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from stoker.cli.samples import format_value, shorten

    for position in _spread(len(source), num_shown):
        values = _values(source, position)
        where = _where(source, position) or ""
        console.print(f"[bold]{position:,}[/] [dim]{_escape(where)}[/]", soft_wrap=True)
        table = Table.grid(padding=(0, 2))
        for _ in range(1 + any(values)):
            table.add_column(overflow="fold")
        for name, value in values.items():
            text = _text_of(name, value, tokenizer)
            cells = [Text(name, style="bold")] if name else []
            table.add_row(*cells, Text(format_value(value), style="" if text is None else "dim"))
            if text is not None:
                table.add_row(*([""] if name else []), Text(shorten(text)))
        console.print(Padding(table, (0, 0, 0, 4)))


def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
