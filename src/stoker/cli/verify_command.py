"""`stoker verify`: check every byte of a store against its checksums, or decode every image of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from stoker.cli.image_options import ImageColumnOption, SplitOption, image_options

if TYPE_CHECKING:
    from rich.console import Console

    from stoker.prepare import ImageCheck
    from stoker.store import Damage, Store, Verdict

STORE, IMAGES = "store", "images"

MAX_LISTED = 3
"""Files listed per oddity; JSON lists all."""


class StoreFirst(TyperGroup):
    """A group whose argument is the path of a store, unless it is the name of a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve `verify PATH` to `verify store PATH`, even if the path is the name of a command."""
        is_alone = len(args) == 1 and (args[0] not in self.commands or Path(args[0]).exists())
        if is_alone or (args and args[0] not in self.commands):
            args = [STORE, *args]
        return super().resolve_command(ctx, args)


verify_app = typer.Typer(
    cls=StoreFirst,
    no_args_is_help=True,
    rich_markup_mode="rich",
    subcommand_metavar="PATH | images FOLDER",
    help="""Check every byte of a store against its checksums, or decode every image of a folder.

    `stoker verify PATH` checks the store at PATH, `stoker verify images FOLDER` checks images. The exit code is 0 if
    everything is intact, otherwise 1.

    Example: [bold cyan]stoker verify data/corpus[/]

    Example: [bold cyan]stoker verify images data/photos[/]
    """,
)


@verify_app.command(STORE)
def verify(path: Annotated[Path, typer.Argument(help="Folder of a store.")]) -> None:
    """Check every byte of a store against its checksums, and report each damaged block.

    The exit code is 0 if the store is intact, otherwise 1. The word `store` may be omitted.

    Example: [bold cyan]stoker verify data/corpus[/]
    """
    from time import perf_counter

    from rich.console import Console

    from stoker.errors import NotAStore
    from stoker.store import open_store
    from stoker.store import verify as verified

    console = Console(highlight=False)
    try:
        store = open_store(path)
    except NotAStore as error:
        if path.is_dir():
            error.add_note(f"hint: if it holds images, `stoker verify images {path}` checks them")
        raise
    begin = perf_counter()
    with _show_byte_progress(console, sum(shard.num_bytes for shard in store.manifest.shards)) as advance:
        verdict = verified(path, progress=advance)
    seconds = perf_counter() - begin
    for damage in verdict.damages:
        console.print(f"[bold red]damaged[/] {_format_damage(damage, store)}", soft_wrap=True)
    console.print(_summary(verdict, seconds), soft_wrap=True)
    if not verdict.is_sound:
        raise typer.Exit(1)


@verify_app.command(IMAGES)
def images(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Folder of images, .tar archives or Parquet files, or a store of images."
        ),
    ],
    workers: Annotated[int | None, typer.Option(min=0, help="Processes (default: one per core).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    column: ImageColumnOption = None,
    split: SplitOption = None,
) -> None:
    """Decode every image completely, and report each bad one with the reason.

    Reports files that are empty, not images, truncated, damaged, too large or unreadable. Lenient decoders, which
    accept partial images, are not used. The exit code is 0 if all images are good, otherwise 1.

    Example: [bold cyan]stoker verify images data/photos[/]
    """
    from json import dumps
    from time import perf_counter

    from rich.console import Console

    from stoker.prepare import check_images

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    begin = perf_counter()
    with _show_image_progress(errors) as watch:
        found = check_images(path, num_workers=workers, watch=watch, **image_options(column=column, split=split))
    seconds = perf_counter() - begin
    if json:
        print(dumps(_facts(path, found, seconds), indent=2, ensure_ascii=False))
    else:
        _print_images(found, seconds, console)
    if not found.is_sound:
        raise typer.Exit(1)


@contextmanager
def _show_image_progress(console: Console) -> Iterator[Callable[[int, int, int], None]]:
    """Show progress in images, if stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from stoker.foundation.text import format_bytes

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("listing", total=None, size="")

        def watch(num_done: int, num_bytes: int, num_all: int) -> None:
            progress.update(
                task, description="decoding", completed=num_done, total=num_all, size=format_bytes(num_bytes)
            )

        yield watch


def _print_images(found: ImageCheck, seconds: float, console: Console) -> None:
    from rich.markup import escape

    from stoker.foundation.text import format_bytes, format_count, format_duration

    for bad in found.bad:
        console.print(f"[bold red]{bad.kind}[/] [bold]{escape(bad.path)}[/]: {escape(bad.reason)}", soft_wrap=True)
    speed = f"{found.num_images / seconds:,.0f} images/s"
    seen = (
        f"{format_count(found.num_images, 'image')}, {format_bytes(found.num_bytes)} "
        f"({format_duration(seconds)}, {speed})"
    )
    if found.is_sound:
        console.print(f"[bold green]intact[/] {seen}", soft_wrap=True)
    else:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in found.bad_by_kind().items())
        console.print(f"[bold red]bad[/] {len(found.bad):,} of {seen}: {kinds}", soft_wrap=True)
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in found.formats.items())
    if kinds:
        console.print(f"[bold]kinds[/] {escape(kinds)}", soft_wrap=True)
    for what, paths in found.odd.items():
        shown = ", ".join(paths[:MAX_LISTED]) + (", ..." if len(paths) > MAX_LISTED else "")
        console.print(f"[bold yellow]odd[/] {len(paths):,} {escape(what)}: [dim]{escape(shown)}[/]", soft_wrap=True)
    if found.bad:
        console.print(
            "[bold cyan]hint:[/] fix or delete these files, or train with on_error='skip', which replaces each with "
            "another image and lists it in the ledger",
            soft_wrap=True,
        )


def _facts(path: str, found: ImageCheck, seconds: float) -> dict[str, Any]:
    return {
        "path": path,
        "is_sound": found.is_sound,
        "num_images": found.num_images,
        "num_bytes": found.num_bytes,
        "seconds": round(seconds, 3),
        "formats": found.formats,
        "num_bad": found.bad_by_kind(),
        "bad": [bad._asdict() for bad in found.bad],
        "odd": found.odd,
    }


@contextmanager
def _show_byte_progress(console: Console, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show progress in bytes, if stderr is a terminal."""
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


def _format_damage(damage: Damage, store: Store) -> str:
    from rich.markup import escape

    from stoker.store.shard import block_at

    if damage.block is None:
        return f"[bold]{escape(damage.file)}[/]: {escape(damage.what)}"
    [shard] = [shard for shard in store.manifest.shards if shard.file == damage.file]
    begin, end = block_at(shard, damage.block)
    where = f"block {damage.block}, bytes {begin:,} to {end:,}, of {', '.join(damage.columns)}"
    return f"[bold]{escape(damage.file)}[/] {escape(where)}: {escape(damage.what)}"


def _summary(verdict: Verdict, seconds: float) -> str:
    from stoker.foundation.text import format_bytes, format_count, format_duration

    seen = f"{format_count(verdict.num_blocks, 'block')} in {format_count(verdict.num_shards, 'shard')}"
    if verdict.is_sound:
        speed = f"{format_bytes(round(verdict.num_bytes / seconds))}/s"
        size = format_bytes(verdict.num_bytes)
        return f"[bold green]intact[/] {seen}, {size} match their checksums ({format_duration(seconds)}, {speed})"
    blocks = sum(damage.block is not None for damage in verdict.damages)
    whole = len(verdict.damages) - blocks
    files = len({damage.file for damage in verdict.damages})
    parts = [format_count(blocks, "block")] * bool(blocks) + [format_count(whole, "file") + " as a whole"] * bool(whole)
    return (
        f"[bold red]damaged[/] {' and '.join(parts)}, in {files} of {format_count(verdict.num_shards, 'shard')} "
        f"({format_count(verdict.num_blocks, 'block')} compared in {format_duration(seconds)})\n"
        "[bold cyan]hint:[/] restore these files from an intact copy, or delete them and run the same "
        "`stoker prepare` again: it rebuilds what is missing"
    )
