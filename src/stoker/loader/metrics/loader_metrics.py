"""What a loader offers to look at it: stats, a printed report, a log and Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from stoker.engine.stats import Stats
    from stoker.loader.metrics.counters import Counters


class LoaderMetrics:
    """What a loader has counted since it was made, or since `reset`: `loader.metrics`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def stats(self, *, laps: bool = False) -> Stats:
        """Return what was counted as a plain record. It may be asked for at any time, and costs milliseconds.

        With `laps`, the latest batches are in it one by one.
        """
        return self._counters.stats(laps=laps)

    def report(self, *, all_ranks: bool = False, file: TextIO | None = None) -> None:
        """Print what was counted, for people. With `all_ranks`, of all ranks together, and which is the slowest.

        That asks the other ranks through torch.distributed, so that all have to call it; the first one prints.
        """
        from stoker.loader.metrics.stats_text import format_rank_stats, format_stats, gather_stats

        if not all_ranks:
            print(format_stats(self.stats()), file=file)
            return
        gathered = gather_stats(self.stats())
        if self._counters.rank == 0:
            print(format_rank_stats(gathered), file=file)

    def log(self, path: str | Path, *, every: float = 10.0) -> None:
        """Append a line of JSON, `Stats.as_json`, to a file every so many seconds, and at the end of each iteration.

        Several ranks may write to one file. `stoker top` follows it.
        """
        from stoker.loader.metrics.stats_log import StatsLog

        self._counters.write_to(StatsLog(path, every=every))

    def prometheus(self, name: str = "train", *, registry: Any = None) -> None:
        """Register with `prometheus_client`, under this name and the rank. Nothing runs until it asks.

        A server is yours to start, `prometheus_client.start_http_server(9400)`, unless there is one already.
        """
        from stoker.loader.metrics.prometheus import register_with_prometheus

        register_with_prometheus(self._counters, name=name, registry=registry)

    def reset(self) -> None:
        """Count from now on, also in the middle of an iteration."""
        self._counters.reset()
