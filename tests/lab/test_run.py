"""Records of runs: read back as they were written, and refused with a reason where somebody has changed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.stats import Quantiles, Stage, Stats
from stoker.errors import ArgumentError
from stoker.lab.watch.run import Moment, Run

RUN = Run(
    machine={"num_cores": 2, "anything": [1, {"two": None}]},
    loaders=[Stats(num_batches=3, stages={"read": Stage(busy_seconds=1.0)}, laps={"asked": [0.0, 1.0, 2.0]})],
    moments=[Moment(at=0.5, cores=[0.1, 1.0])],
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    RUN.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == RUN


def test_whole_numbers_and_others_stand_for_each_other(tmp_path: Path) -> None:
    values = RUN.as_dict()
    values["seconds"] = 3
    values["loaders"][0]["num_batches"] = 3.0
    values["moments"][0]["cores"] = [0, 1]
    (tmp_path / "run.json").write_text(json.dumps(values))
    assert Run.load(tmp_path / "run.json").loaders[0].num_batches == 3


@pytest.mark.parametrize(
    ("where", "value", "shown"),
    [
        ((), {"machine": None}, "machine: None is no dict"),
        ((), {"version": "x"}, "version: 'x' is no int"),
        ((), {"loaders": {}}, "loaders: {} is no list"),
        ((), {"loaders": [3]}, "loaders: 3 is no Stats"),
        (("loaders", 0), {"num_batches": "many"}, "loaders: num_batches: 'many' is no int"),
        (("loaders", 0), {"num_batches": None}, "num_batches: None is no int"),
        (("loaders", 0), {"seconds": 10**400}, r"seconds: 1000\d*\.\.\.\d*0 is no float"),
        (("loaders", 0), {"seconds": 1e300}, r"seconds: 1e\+300 is no float"),
        (("loaders", 0), {"batch_seconds": 1.0}, "batch_seconds: 1.0 is no Quantiles"),
        (("loaders", 0), {"stages": {"read": 1}}, "stages: 1 is no Stage"),
        (("loaders", 0), {"laps": {"asked": [1.0, "2"]}}, "laps: '2' is no float"),
        (("loaders", 0), {"kind": 5}, "kind: 5 is no str"),
        (("moments", 0), {"cores": [None]}, "cores: None is no float"),
    ],
)
def test_a_record_that_was_changed_is_refused_by_the_name_of_the_field(
    where: tuple[Any, ...], value: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    values: Any = RUN.as_dict()
    inside = values
    for step in where:
        inside = inside[step]
    inside.update(value)
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(ArgumentError, match=rf"is damaged: its fields do not fit together \(.*{shown}\)"):
        Run.load(tmp_path / "run.json")


def test_what_is_not_known_may_be_missing_or_none() -> None:
    values = {"num_batches": 1, "queue_depth": None, "trainer": None, "added_later": "passed over"}
    assert Stats.from_dict(values) == Stats(num_batches=1)
    assert Quantiles.from_dict({}) == Quantiles()
