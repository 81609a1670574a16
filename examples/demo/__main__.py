"""`make demo`: load, train, stop, resume and prepare, end to end, on generated data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from stoker.cli.app import errors_as_messages

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from examples.demo.checks import Claim
    from examples.demo.data import Shapes
    from examples.demo.tokens import Pace, Prepared
    from examples.demo.training import Run
    from stoker.prepare import Progress as Preparing
    from stoker.source import Lines


class Scale(NamedTuple):
    """Sizes of the demo."""

    num_images: int
    num_lines: int
    num_steps: int
    num_documents: int
    num_rounds: int
    round_seconds: float


FULL = Scale(num_images=3_000, num_lines=100_000, num_steps=150, num_documents=12_000, num_rounds=5, round_seconds=0.3)
QUICK = Scale(num_images=400, num_lines=5_000, num_steps=16, num_documents=2_000, num_rounds=1, round_seconds=0.05)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, state and plot.")] = Path("out/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Use a tenth of the data; takes about ten seconds.")] = False,
) -> None:
    """Load, train, stop, resume and prepare, end to end, on generated data, in about a minute.

    Generate images and text, train a small model with inline and overlapped loading, resume in mid-epoch, compare one
    rank with two, decode crops of the images in workers, tokenize text into a store, compare it with a memory map,
    write a report of what slowed down the training, and print whether each claim held. The exit code is 1 if one did
    not.

    Example: python -m examples.demo --out out/demo --quick
    """
    with errors_as_messages():
        _require_extras()
        _run_demo(out, QUICK if quick else FULL, Console(highlight=False))


def _run_demo(out: Path, scale: Scale, console: Console) -> None:
    shapes, corpus = _write_data(out, scale, console)
    inline, overlapped = _train_twice(shapes, scale, console)
    claims = _check_claims(inline, overlapped, shapes, corpus, out, console)
    done, paces, token_claims = _tokens(out, scale, console)
    plot = _draw_plot(out, inline, overlapped, shapes, done, paces)
    report = _write_report(out, inline, overlapped)
    console.print(_runs_table(inline, overlapped))
    console.print(_paces_table(paces))
    console.print(_claims_table(claims + token_claims))
    _print_sample(done, console)
    made = {
        "plot": plot,
        "report": report,
        "sheet": out / "sheet.png",
        "state": out / "state.json",
        "store": out / "store",
    }
    console.print("\n".join(f"{name:6} {path}" for name, path in made.items()), soft_wrap=True)
    if any(claim.holds is False for claim in claims + token_claims):
        console.print("[bold red]a claim did not hold[/]")
        raise typer.Exit(1)


def _require_extras() -> None:
    from importlib.util import find_spec

    from stoker.errors import MissingExtra

    for library, package in (("pillow", "PIL"), ("matplotlib", "matplotlib"), ("tokenizers", "tokenizers")):
        if find_spec(package) is None:
            raise MissingExtra(library, extra="demo", need="the demo")


def _write_data(out: Path, scale: Scale, console: Console) -> tuple[Shapes, Lines]:
    from examples.demo.data import Shapes, write_corpus, write_images
    from stoker.source import Lines

    with _progress(console) as progress:
        task = progress.add_task("writing images (JPEG)", total=scale.num_images)
        paths = write_images(out / "images", num_images=scale.num_images, advance=lambda: progress.advance(task))
        corpus_task = progress.add_task("writing a corpus (JSONL)", total=scale.num_lines)
        corpus = write_corpus(
            out / "corpus.jsonl", num_lines=scale.num_lines, advance=lambda: progress.advance(corpus_task)
        )
    return Shapes(paths), Lines(corpus, index_dir=out / "index")


def _train_twice(shapes: Shapes, scale: Scale, console: Console) -> tuple[Run, Run]:
    """Train twice from the same seed: with loading inline, and in a background thread."""
    from examples.demo.training import one_compute_thread, train, warm_up

    runs = []
    with one_compute_thread():
        warm_up()
        for name, num_threads in (("inline", 0), ("overlapped", 1)):
            with _progress(console) as progress:
                task = progress.add_task(f"training, loading {name}", total=scale.num_steps)
                run = train(
                    shapes,
                    name=name,
                    num_threads=num_threads,
                    num_steps=scale.num_steps,
                    advance=lambda progress=progress, task=task: progress.advance(task),  # type: ignore[misc]
                )
            runs.append(run)
    inline, overlapped = runs
    return inline, overlapped


def _check_claims(
    inline: Run, overlapped: Run, shapes: Shapes, corpus: Lines, out: Path, console: Console
) -> list[Claim]:
    from examples.demo.checks import rank_claims, resume_claims, stream_claim, training_claims
    from examples.demo.images import image_claims

    claims = training_claims(inline, overlapped)
    with console.status("stopping in mid-epoch, resuming with another batch size"):
        claims += resume_claims(shapes, state_path=out / "state.json")
    with console.status("reading the corpus on one rank and on two"):
        claims += rank_claims(corpus)
    # no spinner here: its thread would be running while worker processes are forked
    claims.append(stream_claim(corpus))
    return claims + image_claims(shapes.paths, out=out)


def _tokens(out: Path, scale: Scale, console: Console) -> tuple[Prepared, list[Pace], list[Claim]]:
    """Tokenize text into a store, and compare loading it with a memory map."""
    from examples.demo.data import write_texts
    from examples.demo.tokens import NUM_WORKERS, measure, prepare_twice, token_claims
    from examples.demo.training import one_compute_thread

    names = {"training": "training a tokenizer", "hashing": "hashing the texts", "tokenizing": "tokenizing the texts"}
    # progress bars without threads from here on: worker processes are forked
    with _progress(console, has_thread=False) as progress:
        task = progress.add_task("writing texts (JSONL)", total=scale.num_documents)
        texts = write_texts(
            out / "texts", num_documents=scale.num_documents, num_files=4, advance=lambda: progress.advance(task)
        )
        tasks = {stage: progress.add_task(name, total=None, visible=False) for stage, name in names.items()}

        def watch(how_far: Preparing) -> None:
            done, total = (how_far.num_read >> 10, how_far.num_bytes >> 10)
            progress.update(tasks[how_far.stage], completed=done, total=total, visible=True, refresh=True)

        done = prepare_twice(texts, out=out / "store", watch=watch)
        progress.refresh()
    with _progress(console, has_thread=False) as progress, one_compute_thread():
        task = progress.add_task(f"loading, 0 and {NUM_WORKERS} workers", total=4 * scale.num_rounds)

        def advance() -> None:
            progress.update(task, advance=1, refresh=True)

        paces, others_cores = measure(
            done, num_rounds=scale.num_rounds, round_seconds=scale.round_seconds, advance=advance
        )
    return done, paces, token_claims(done, paces, others_cores, is_quick=scale is QUICK)


def _draw_plot(out: Path, inline: Run, overlapped: Run, shapes: Shapes, done: Prepared, paces: list[Pace]) -> Path:
    from examples.demo.data import CLASSES
    from examples.demo.drawing import draw
    from stoker.loader import DataLoader

    images, labels = next(iter(DataLoader(shapes, batch_size=16, shuffle=True, seed=1)))
    plot = out / "demo.png"
    names = [CLASSES[label] for label in labels.tolist()]
    ids = done.store.tokens(length=256)[0]["tokens"]
    words = [done.tokenizer.decode(ids[at : at + 1]) for at in range(len(ids))]
    draw(plot, inline=inline, overlapped=overlapped, images=images.numpy(), labels=names, paces=paces, words=words)
    return plot


def _write_report(out: Path, inline: Run, overlapped: Run) -> Path:
    """Write the page comparing the two training runs."""
    from stoker.lab.page import report

    return report(overlapped.record, against=inline.record).save(out / "report.html")


def _progress(console: Console, *, has_thread: bool = True) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, auto_refresh=has_thread)


def _runs_table(inline: Run, overlapped: Run) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title="training, torch on one core", title_justify="left", title_style="bold", box=box.SIMPLE)
    for column in ("", inline.name, overlapped.name):
        table.add_column(column, justify="right" if column else "left")
    for (name, first), (_, second) in zip(_format_run(inline), _format_run(overlapped)):
        table.add_row(name, first, second)
    return table


def _paces_table(paces: list[Pace]) -> Table:
    from rich import box
    from rich.table import Table

    from examples.demo.tokens import BATCH_SIZE, LENGTH, NUM_WORKERS, STOKER, TORCH

    title = f"batches/s of {BATCH_SIZE} x {LENGTH:,} tokens with labels, shuffled"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    for column in ("", "inline", f"{NUM_WORKERS} workers"):
        table.add_column(column, justify="right" if column else "left")
    speeds = {(pace.name, pace.num_workers): pace.batches_per_second for pace in paces}
    for name in (TORCH, STOKER):
        table.add_row(name, *(f"{speeds[name, workers]:,.0f}" for workers in (0, NUM_WORKERS)))
    return table


def _print_sample(done: Prepared, console: Console) -> None:
    from rich.markup import escape

    from stoker.cli.samples import shorten

    position = len(done.store) // 2
    text = done.tokenizer.decode(done.store[position]["tokens"])
    console.print(f"[bold]document {position:,} of the store, decoded[/]\n  {escape(shorten(text))}\n")


def _format_run(run: Run) -> list[tuple[str, str]]:
    import numpy as np

    from stoker.lab.diagnose.verdict import diagnose

    few = max(1, len(run.losses) // 10)
    steps = np.quantile(run.step_seconds, (0.5, 0.9, 0.99)).tolist()
    return [
        ("step, p50 / p90 / p99", " / ".join(f"{1000 * seconds:.0f}" for seconds in steps) + " ms"),
        ("waiting per step, p50", f"{1000 * float(np.median(run.wait_seconds)):.1f} ms"),
        ("computing per step, p50", f"{1000 * float(np.median(run.compute_seconds)):.1f} ms"),
        ("share of time waiting", f"{run.wait_share:.1%}"),
        ("images/s", f"{run.images_per_second:,.0f}"),
        ("loss, first to last", f"{run.losses[:few].mean():.2f} to {run.losses[-few:].mean():.2f}"),
        ("accuracy, last steps", f"{run.accuracies[-few:].mean():.0%}"),
        ("verdict of the doctor", diagnose(run.record).verdict),
        ("cores used by other programs", "unknown" if run.others_cores is None else f"{run.others_cores:.2f}"),
    ]


def _claims_table(claims: list[Claim]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title="claims", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column()
    table.add_column("claim", style="bold")
    table.add_column("evidence", overflow="fold")
    marks = {True: "[bold green]✓[/]", False: "[bold red]✗[/]", None: "[bold yellow]-[/]"}
    for claim in claims:
        table.add_row(marks[claim.holds], claim.text, claim.evidence)
    return table


if __name__ == "__main__":
    app()
