"""`stoker bench`: measure loaders."""

from __future__ import annotations

import typer

from stoker.cli.bench_compare import compare
from stoker.cli.bench_loader import loader
from stoker.cli.bench_train import train

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Measure loaders: Stoker's, torch's or any other. Try [bold]stoker bench loader --help[/].",
)

bench_app.command()(loader)
bench_app.command()(train)
bench_app.command()(compare)
