"""`stoker verify`: every byte of a store compared with its checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stoker.store import Damage, Store, Verdict


def verify(path: Annotated[Path, typer.Argument(help="The folder of a store.")]) -> None:
    """Compare every byte of a store with its checksums, and name each block that is damaged.

    The exit code is 0 if the store is sound and 1 if it is not.

    Example: [bold cyan]stoker verify data/corpus[/]
    """
    from time import perf_counter

    from rich.console import Console

    from stoker.store import open_store
    from stoker.store import verify as verified

    console = Console(highlight=False)
    store = open_store(path)
    begin = perf_counter()
    with _watched(console, sum(shard.num_bytes for shard in store.manifest.shards)) as advance:
        verdict = verified(path, progress=advance)
    seconds = perf_counter() - begin
    for damage in verdict.damages:
        console.print(f"[bold red]damaged[/] {_told(damage, store)}", soft_wrap=True)
    console.print(_summary(verdict, seconds), soft_wrap=True)
    if not verdict.is_sound:
        raise typer.Exit(1)


@contextmanager
def _watched(console: Console, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is, where somebody is looking."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=num_bytes)
        yield lambda more: progress.advance(task, more)


def _told(damage: Damage, store: Store) -> str:
    from rich.markup import escape

    from stoker.store.shard import block_at

    if damage.block is None:
        return f"[bold]{escape(damage.file)}[/]: {escape(damage.what)}"
    [shard] = [shard for shard in store.manifest.shards if shard.file == damage.file]
    begin, end = block_at(shard, damage.block)
    where = f"block {damage.block}, bytes {begin:,} to {end:,}, of {', '.join(damage.columns)}"
    return f"[bold]{escape(damage.file)}[/] {escape(where)}: {escape(damage.what)}"


def _summary(verdict: Verdict, seconds: float) -> str:
    from stoker.cli.words import bytes_told, counted, seconds_told

    seen = f"{counted(verdict.num_blocks, 'block')} in {counted(verdict.num_shards, 'shard')}"
    if verdict.is_sound:
        speed = f"{bytes_told(round(verdict.num_bytes / seconds))}/s"
        size = bytes_told(verdict.num_bytes)
        return f"[bold green]sound[/] {seen}, {size}, as they were written ({seconds_told(seconds)}, {speed})"
    blocks = sum(damage.block is not None for damage in verdict.damages)
    whole = len(verdict.damages) - blocks
    files = len({damage.file for damage in verdict.damages})
    parts = [counted(blocks, "block")] * bool(blocks) + [counted(whole, "file") + " as a whole"] * bool(whole)
    return (
        f"[bold red]damaged[/] {' and '.join(parts)}, in {files} of {counted(verdict.num_shards, 'shard')} "
        f"({counted(verdict.num_blocks, 'block')} compared in {seconds_told(seconds)})\n"
        "[bold cyan]hint:[/] copy these files again from where they are sound, or delete them and run the same "
        "`stoker prepare` again: it makes what is missing"
    )
