"""`stoker tune`: find the best arguments of a loader by measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from stoker.cli.trials import Batches, Json, LoaderTarget, Out, Repeat, Seconds, Step, Timeout
from stoker.cli.tune_batch import batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from stoker.lab.trial.tuning import Tuning

LOADER = "loader"


class LoaderFirst(TyperGroup):
    """A group whose argument is a loader function, unless it is the name of a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve `tune module:function` to `tune loader module:function`."""
        if args and args[0] not in self.commands:
            args = [LOADER, *args]
        return super().resolve_command(ctx, args)


tune_app = typer.Typer(
    cls=LoaderFirst,
    no_args_is_help=True,
    rich_markup_mode="rich",
    subcommand_metavar="MODULE:FUNCTION | batch MODULE:FUNCTION",
    help="""Find the best loader arguments, or the batch size, by measuring.

    `stoker tune MODULE:FUNCTION` tunes the loader that the function returns; `stoker tune batch` finds the largest
    batch that fits. For options, see `stoker tune loader --help` and `stoker tune batch --help`.

    Example: [bold cyan]stoker tune train:make_loader --step train:make_step[/]
    """,
)


@tune_app.command(LOADER)
def loader(
    target: LoaderTarget,
    step: Step = None,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of workers and threads (default: number of cores).")
    ] = None,
    prefetch: Annotated[str, typer.Option(help="Prefetch factors to try with the best num_workers.")] = "2,4,8",
    repeat: Repeat = 3,
    seconds: Seconds = 2.0,
    batches: Batches = None,
    timeout: Timeout = 300.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Find the best num_workers, num_threads and prefetch_factor of a loader, and print them as code to paste.

    With --step, the real training step runs between batches, and its time plus the wait for the batch is minimized.
    Among settings that differ only by noise, the cheapest wins. For torch's DataLoader, which has no threads, only
    num_workers is varied. The word `loader` may be omitted.

    Example: [bold cyan]stoker tune train:make_loader --step train:make_step --out tuned[/]
    """
    from stoker.cli.trials import check_out, conclude_sweep, parse_numbers, progress
    from stoker.lab.plots.sweep_tables import tune_table
    from stoker.lab.trial.tuning import tune, without_run

    check_out(out)
    with progress() as watch:
        tuning = tune(
            target,
            step=step,
            max_workers=max_workers,
            prefetches=parse_numbers(prefetch, "--prefetch") or (),
            seconds=seconds,
            num_batches=batches,
            num_rounds=repeat,
            limit_seconds=timeout,
            records_run=out is not None,
            watch=watch,
        )

    def figures() -> dict[str, Figure]:
        from stoker.lab.plots.sweep_plots import tune_figures

        return tune_figures(tuning)

    conclude_sweep(
        tuning.sweep,
        lambda width: tune_table(tuning, width=width),
        figures,
        out=out,
        is_json=json,
        record=without_run(tuning),
        verdict=format_verdict(tuning),
    )


def format_verdict(tuning: Tuning) -> Text:
    """Return the code to use, and the expected time."""
    from rich.text import Text

    from stoker.foundation.text import format_duration, format_spread, time_unit

    unit, size = time_unit(tuning.seconds.mean)
    time = format_spread(tuning.seconds.mean, tuning.seconds.deviation, scale=size)
    what = "step" if tuning.step_seconds is not None else "batch"
    waiting = f", of which {format_duration(tuning.wait_seconds)} waiting for the batch" if what == "step" else ""
    text = Text.assemble((tuning.code, "bold green"), f"\nexpected time per {what}: {time} {unit}{waiting}")
    for sentence in tuning.says:
        text.append(f"\n- {sentence}")
    return text


tune_app.command()(batch)
