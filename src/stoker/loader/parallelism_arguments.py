"""Resolve `num_workers`, `num_threads` and `prefetch_factor`: what "auto" may choose from, and what it starts with."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.loader.arguments import Arguments
from stoker.loader.sharing.ranks import share_of_cores
from stoker.source.protocols import prefers_process
from stoker.tuning.parallelism import AUTO, Choice, SearchSpace, search_space_for

if TYPE_CHECKING:
    from stoker.loader.auto import Auto


def resolve_parallelism(arguments: Arguments, *, is_stream: bool, is_foreign: bool) -> tuple[Arguments, Auto | None]:
    """Return the arguments with numbers for "auto", and what tunes them while training if there is anything to tune."""
    num_workers = workers_for(arguments.dataset, arguments.num_workers, arguments.num_threads)
    if num_workers != arguments.num_workers:
        arguments = replace(arguments, num_workers=num_workers)
    if AUTO not in (num_workers, arguments.num_threads, arguments.prefetch_factor):
        return arguments, None
    from stoker.loader.auto import Auto

    space = search_space(arguments, num_cores=share_of_cores(), is_stream=is_stream, is_foreign=is_foreign)
    auto = Auto(space)
    num_workers, num_threads, prefetch_factor = auto.arguments
    arguments = replace(arguments, num_workers=num_workers, num_threads=num_threads, prefetch_factor=prefetch_factor)
    return arguments, None if space.is_fixed else auto


def workers_for(dataset: Any, num_workers: Choice, num_threads: Choice) -> Choice:
    """Return the number of worker processes: one if the dataset prefers its threads outside of this process.

    Where worker processes are not possible, threads stay here.
    """
    wants_one = bool(num_threads) and num_workers == 0 and prefers_process(dataset)
    return 1 if wants_one and _can_have_processes() else num_workers


def search_space(arguments: Arguments, *, num_cores: int, is_stream: bool, is_foreign: bool) -> SearchSpace:
    """Return what "auto" may choose from.

    The number of workers that read an iterable dataset decides how it is sharded, and so the order: one worker reads
    all of it, in its own order. DataPipes are read by torch alone.
    """
    num_workers, num_threads = arguments.num_workers, arguments.num_threads
    if is_stream or is_foreign:
        one = 1 if is_stream and not is_foreign and _can_have_processes() else 0
        num_workers = one if num_workers == AUTO else num_workers
        num_threads = 0 if num_threads == AUTO else num_threads
    space = search_space_for(
        num_workers=num_workers,
        num_threads=num_threads,
        prefetch_factor=arguments.prefetch_factor,
        num_cores=num_cores,
        has_processes=_can_have_processes(),
    )
    # setting up a worker, its timeout and its persistence need a worker
    needs_worker = arguments.worker_init_fn is not None or arguments.timeout or arguments.persistent_workers
    if needs_worker and (space.processes or space.threads):
        space = replace(space, can_be_inline=False)
    return space


def _can_have_processes() -> bool:
    """Return whether worker processes are possible: on Linux, and not in a daemon process, which must not have any."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon
