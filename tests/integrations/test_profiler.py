"""torch's profiler shows how long training waits for a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader as TorchLoader

from stoker import DataLoader

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trace_has_a_range_for_each_next(tmp_path: Path, engine: dict[str, Any]) -> None:
    weight = torch.ones(4)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for batch in DataLoader(list(range(12)), batch_size=4, **engine):
            batch * weight
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = [event for event in events if event.get("name", "").startswith("enumerate(DataLoader)#")]
    assert [event["name"] for event in ranges] == ["enumerate(DataLoader)#LoaderIterator.__next__"] * 4  # and the end
    [key] = [event for event in profiled.key_averages() if event.key.startswith("enumerate(DataLoader)#")]
    assert key.count == 4


def test_the_range_has_the_form_of_torchs_own() -> None:
    def names(loader: Any) -> set[str]:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in loader:
                pass
        found = {event.key for event in profiled.key_averages() if "DataLoader" in event.key}
        return {name.partition("#")[0] + "." + name.rpartition(".")[2] for name in found}

    data: Any = list(range(12))
    assert names(DataLoader(data, batch_size=4)) == names(TorchLoader(data, batch_size=4))
    assert names(DataLoader(data, batch_size=4)) == {"enumerate(DataLoader).__next__"}
