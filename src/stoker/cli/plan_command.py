"""`stoker plan`: show the contents of a step, or find the step of a sample. No data is read."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.plan import Order, Plan, Recipe, Tail

SHOWN = 16
"""Positions of a rank printed by default."""


class OrderName(StrEnum):
    """Names of the orders."""

    sequential = "sequential"
    shuffle = "shuffle"
    window = "window"


class TailName(StrEnum):
    """How to handle the last, incomplete batch of an epoch."""

    keep = "keep"
    drop = "drop"
    pad = "pad"


Samples = Annotated[int, typer.Option(help="Samples in the dataset.")]
BatchSize = Annotated[
    int, typer.Option(help="Samples in one step over ALL ranks: the loader's batch_size x num_ranks.")
]
OrderOption = Annotated[OrderName, typer.Option("--order", help="Order of the samples in an epoch.")]
WindowSize = Annotated[int | None, typer.Option(help="With --order window: samples in a window.")]
Block = Annotated[int | None, typer.Option(help="With --order window: adjacent samples read together.")]
Seed = Annotated[int, typer.Option(help="The run's seed; `seed` in a saved state.")]
TailOption = Annotated[TailName, typer.Option("--tail", help="How to handle the last, incomplete batch of an epoch.")]
NumRanks = Annotated[int, typer.Option(min=1, help="Ranks that share each step.")]

plan_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Show the contents of a step, or find the step of a sample."
)


@plan_app.command()
def show(
    samples: Samples,
    batch_size: BatchSize,
    order: OrderOption = OrderName.shuffle,
    window_size: WindowSize = None,
    block: Block = None,
    seed: Seed = 0,
    tail: TailOption = TailName.keep,
    step: Annotated[int, typer.Option(help="Step, counted across epochs.")] = 0,
    rank: Annotated[int | None, typer.Option(help="Only this rank (default: all ranks).")] = None,
    num_ranks: NumRanks = 1,
    all: Annotated[
        bool, typer.Option("--all", help=f"List every position, not only the first {SHOWN} per rank.")
    ] = False,
) -> None:
    """Show the contents of a step, and the number of steps per epoch. No data is read.

    The batch size here is the [bold]global[/] one: a loader with batch_size=8 on 4 ranks has 32.

    Example: [bold cyan]stoker plan show --samples 1000000 --batch-size 32 --seed 7 --step 41200 --num-ranks 4[/]
    """
    from rich.console import Console

    plan = _plan(samples, batch_size, make_order(order, window_size, block), seed, tail)
    ranks = range(num_ranks) if rank is None else (rank,)
    shares = [plan.recipe(step, number, num_ranks) for number in ranks]
    console = Console(highlight=False)
    console.print(_facts(plan))
    console.print(_shares(shares, plan, num_shown=None if all else SHOWN))


@plan_app.command()
def find(
    position: Annotated[int, typer.Argument(help="Position of the sample in the dataset, from 0.")],
    samples: Samples,
    batch_size: BatchSize,
    order: OrderOption = OrderName.shuffle,
    window_size: WindowSize = None,
    block: Block = None,
    seed: Seed = 0,
    tail: TailOption = TailName.keep,
    epoch: Annotated[int, typer.Option(help="Epoch to search.")] = 0,
    num_ranks: NumRanks = 1,
) -> None:
    """Find the step, rank and row of a sample. No data is read.

    The batch size here is the [bold]global[/] one: a loader with batch_size=8 on 4 ranks has 32.

    Example: [bold cyan]stoker plan find 123456 --samples 1000000 --batch-size 32 --seed 7 --epoch 2 --num-ranks 4[/]
    """
    from rich.console import Console

    plan = _plan(samples, batch_size, make_order(order, window_size, block), seed, tail)
    place = plan.find(position, epoch=epoch, num_ranks=num_ranks)
    console = Console(highlight=False)
    if place is None:
        console.print(
            f"position {position} does not occur in epoch {epoch}: it is in the tail, which --tail drop skips"
        )
        return
    first = plan.first_step(epoch)
    console.print(f"position {position} is in epoch {epoch}, [bold green]step {place.step}[/]")
    console.print(f"  step in the epoch  {place.step - first} of {plan.steps_in(epoch)}, counted from 0")
    console.print(f"  rank               {place.rank} of {num_ranks}")
    console.print(f"  row                {place.row} of the rank's share, counted from 0")


def make_order(name: OrderName, window_size: int | None, block: int | None) -> Order:
    """Return the order given by the options."""
    from stoker.errors import ArgumentError
    from stoker.plan import Window, order_named

    if name is not OrderName.window:
        if window_size is not None or block is not None:
            raise ArgumentError(
                f"--window-size and --block require --order window, got --order {name}", hint="add --order window"
            )
        return order_named(name.value)
    usual = Window()
    return Window(
        size=usual.size if window_size is None else window_size, block=usual.block if block is None else block
    )


def _plan(samples: int, batch_size: int, order: Order, seed: int, tail: TailName) -> Plan:
    from stoker.plan import Plan

    kept: Tail = tail.value
    return Plan(num_samples=samples, batch_size=batch_size, order=order, seed=seed, tail=kept)


def _facts(plan: Plan) -> Table:
    from dataclasses import asdict

    from rich.table import Table

    settings = ", ".join(f"{name} {value}" for name, value in asdict(plan.order).items())  # type: ignore[call-overload]
    rest = plan.num_samples % plan.batch_size
    fate = {"keep": "in a short last step", "drop": "dropped", "pad": "in a padded last step"}[plan.tail]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("samples", f"{plan.num_samples:,}")
    table.add_row("batch size", f"{plan.batch_size:,} (global: over all ranks)")
    table.add_row("order", f"{plan.order.name}{f' ({settings})' if settings else ''}, seed {plan.seed}")
    table.add_row(
        "tail", f"{plan.tail}: {rest} samples left over, {fate}" if rest else f"{plan.tail}: nothing left over"
    )
    table.add_row("steps per epoch", f"{plan.steps_in(0):,}")
    table.add_row("fingerprint", plan.fingerprint)
    return table


def _shares(shares: list[Recipe], plan: Plan, *, num_shown: int | None) -> Table:
    from rich import box
    from rich.table import Table

    step, epoch = shares[0].step, shares[0].epoch
    in_epoch = step - plan.first_step(epoch)
    table = Table(
        title=f"step {step:,}: step {in_epoch:,} of epoch {epoch}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE,
    )
    table.add_column("rank", justify="right")
    table.add_column("samples", justify="right")
    table.add_column("padding", justify="right")
    table.add_column("positions", overflow="fold")
    for share in shares:
        is_padding = [False] * len(share.positions) if share.padding is None else share.padding.tolist()
        words = [f"[dim]({at})[/]" if pads else str(at) for at, pads in zip(share.positions.tolist(), is_padding)]
        shown = words[:num_shown]
        more = f" [dim]... {len(words) - len(shown)} more (--all)[/]" if len(shown) < len(words) else ""
        table.add_row(str(share.rank), str(len(words) - sum(is_padding)), str(sum(is_padding)), " ".join(shown) + more)
    if any(share.padding is not None for share in shares):
        table.caption, table.caption_justify = "in parentheses: samples repeated as padding", "left"
    return table
