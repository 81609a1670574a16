"""Stats for Prometheus: read from the counters when they are asked for, and never in between."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

from stoker.engine.stats import Quantiles, Stats, metric_counters
from stoker.errors import ArgumentError, MissingExtra
from stoker.loader.metrics.counters import Counters

_LABELS = ["loader", "rank"]


def _nobody() -> None:
    return None


class LoaderCollector:
    """Collects the stats of loaders for a registry of prometheus_client. Loaders that are gone are left out."""

    def __init__(self) -> None:
        self._loaders: dict[str, ref[Counters]] = {}

    def add(self, name: str, counters: Counters) -> None:
        """Add a loader. It replaces an older one of the same name, with a warning if that still lives."""
        held = self._loaders.get(name, _nobody)()
        if held is not None and held is not counters:
            warnings.warn(
                f"another loader was registered with Prometheus as {name!r}; this one takes its place\n"
                'hint: give each a name of its own, such as loader.prometheus("validation")',
                stacklevel=5,
            )
        self._loaders[name] = ref(counters)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        living = {name: counters for name, held in self._loaders.items() if (counters := held()) is not None}
        found_stats = {name: counters.stats() for name, counters in living.items()}
        collected = [([name, str(stats.rank)], stats) for name, stats in found_stats.items()]
        for field, name, description in metric_counters():
            if not isinstance(getattr(Stats(), field), Quantiles):
                counter = CounterMetricFamily(name, description, labels=_LABELS)
                for labels, stats in collected:
                    counter.add_metric(labels, getattr(stats, field))
                yield counter
                continue
            summary = SummaryMetricFamily(name, description, labels=_LABELS)
            gauge = GaugeMetricFamily(f"{name}_quantile", f"{description} Quantiles.", labels=[*_LABELS, "quantile"])
            for labels, stats in collected:
                found: Quantiles = getattr(stats, field)
                summary.add_metric(labels, found.num, found.mean * found.num)
                for share, seconds in (("0.5", found.p50), ("0.9", found.p90), ("0.99", found.p99)):
                    gauge.add_metric([*labels, share], seconds)
            yield summary
            yield gauge
        yield from self._stages(collected)

    @staticmethod
    def _stages(collected: list[tuple[list[str], Stats]]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stages = CounterMetricFamily(
            "stoker_stage_seconds", "How long a stage was busy, or waited.", labels=[*_LABELS, "stage", "state"]
        )
        cpu = CounterMetricFamily("stoker_cpu_seconds", "CPU time by process.", labels=[*_LABELS, "process"])
        memory = GaugeMetricFamily("stoker_memory_bytes", "Memory by process (PSS).", labels=[*_LABELS, "process"])
        depth = GaugeMetricFamily("stoker_queue_depth", "Batches ready when one was asked for.", labels=_LABELS)
        for labels, stats in collected:
            for name, stage in stats.stages.items():
                stages.add_metric([*labels, name, "busy"], stage.busy_seconds)
                stages.add_metric([*labels, name, "waiting"], stage.waiting_seconds)
            for process in (stats.trainer, *stats.workers):
                if process is not None:
                    cpu.add_metric([*labels, process.role], process.cpu_seconds)
                    if process.pss_bytes is not None:
                        memory.add_metric([*labels, process.role], process.pss_bytes)
            if stats.queue_depth is not None:
                depth.add_metric(labels, stats.queue_depth)
        yield from (stages, cpu, memory, depth)


_collectors: WeakKeyDictionary[Any, LoaderCollector] = WeakKeyDictionary()
"""By the registry: one for all loaders that are registered there."""


def register_with_prometheus(counters: Counters, *, name: str, registry: Any = None) -> None:
    """Add what a loader has counted to a registry, by default that of the process."""
    try:
        import prometheus_client
    except ImportError:
        raise MissingExtra("prometheus_client", extra="metrics", need="Prometheus metrics") from None
    registry = prometheus_client.REGISTRY if registry is None else registry
    collector = _collectors.get(registry) if hasattr(registry, "register") else None
    if collector is None:
        collector = LoaderCollector()
        try:
            registry.register(collector)
        except (AttributeError, ValueError) as error:
            raise ArgumentError(
                f"the registry cannot take our metrics: {error}",
                hint="pass a prometheus_client.CollectorRegistry, or nothing for the one of the process",
            ) from error
        _collectors[registry] = collector
    collector.add(name, counters)
