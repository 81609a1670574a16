"""The house: which room may import which, and how light the front door is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import errors

SOURCE = Path(stoker.__file__).parent

# The rooms in the order data flows, and what each may import besides `errors` and `foundation`, which all may; `None`
# stands for all further up.
ROOMS: dict[str, set[str] | None] = {
    "errors": {"foundation"},  # `text` alone, late, for the sizes in messages
    "foundation": set(),
    "native": set(),
    "store": {"native"},
    "source": {"store"},
    "plan": set(),
    "transform": {"native"},
    "batch": {"source", "plan"},
    "compose": {"native", "store", "source", "plan", "transform", "batch"},
    "masks": set(),
    "engine": set(),
    "tuning": {"engine"},
    "deliver": {"batch", "engine"},
    "trainers": set(),
    "loader": None,
    "integrations": None,
    "prepare": {"native", "store", "source", "plan", "transform", "engine"},
    "remote": None,
    "lab": None,
    "view": {"batch"},
    "cli": None,
    "testing": None,
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import; say where from"
            names = [f"stoker.{alias.name}" for alias in node.names] if node.module == "stoker" else [node.module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("stoker.")}
    return rooms - {"_version", "__version__"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_only_to_rooms_further_up(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__", "_version"):
        return  # the front door, which shows the way to every room
    order = list(ROOMS)
    assert room in ROOMS, f"{room} is not a room of the house"
    allowed = ROOMS[room]
    if allowed is None:
        allowed = set(order[: order.index(room)])
    shared = set(order[: min(order.index(room), 2)])
    assert imported_rooms(path) <= allowed | shared | {room}


def test_the_import_rule_sees_late_imports_too(tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "def f():\n from stoker.loader import DataLoader\n import stoker.plan.order\n from stoker import Lines\n"
    )
    assert imported_rooms(late) == {"loader", "plan", "Lines"}


def classes_by_name() -> dict[str, set[str]]:
    """Return in which files each class name is defined, leading underscores left aside."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), set()).add(path.relative_to(SOURCE).as_posix())
    return found


# Names that still mean several things. A name leaves this list when its classes are renamed; none is added.
REPEATED_CLASSES = "Trial"


def test_a_class_name_means_one_thing_in_the_whole_package() -> None:
    repeated = {name: sorted(files) for name, files in classes_by_name().items() if len(files) > 1}
    assert {name: files for name, files in repeated.items() if name not in REPEATED_CLASSES.split()} == {}


def test_a_file_name_means_one_thing_in_the_whole_package() -> None:
    files: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.stem not in ("__init__", "__main__"):
            files.setdefault(path.stem, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("call", ["sched_getaffinity", "process_cpu_count"])
def test_one_place_knows_the_cores(call: str) -> None:
    """Elsewhere, the quota of a container would be forgotten."""
    users = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if call in path.read_text()]
    assert set(users) <= {"foundation/machine.py"}


def test_importing_stoker_leaves_torch_and_numpy_alone() -> None:
    loaded = run("import sys, stoker; print('torch' in sys.modules, 'numpy' in sys.modules)").split()
    assert loaded == ["False", "False"]


def test_importing_stoker_takes_less_than_a_tenth_of_a_second() -> None:
    code = "import time; t = time.process_time(); import stoker; print(time.process_time() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.1


def test_the_plan_and_the_sources_do_without_torch() -> None:
    assert run("import sys, stoker.plan, stoker.source; stoker.rng(); print('torch' in sys.modules)").strip() == "False"


def test_every_name_that_is_promised_is_there() -> None:
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
        assert name in dir(stoker)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stoker.nothing  # type: ignore[attr-defined]


def test_public_names_say_where_users_import_them_from() -> None:
    code = (
        "import pickle, typing, stoker\n"
        "for name in set(stoker.__all__) - {'__version__'}:\n"
        "    value = getattr(stoker, name)\n"
        "    assert value.__module__ == 'stoker', (name, value.__module__)\n"
        "    assert pickle.loads(pickle.dumps(value)) is value\n"
        "    if name not in ('DataLoader', 'Mesh'):  # their annotations name what type checkers alone import\n"
        "        typing.get_type_hints(value)\n"
        "assert pickle.loads(pickle.dumps(stoker.Skipped(0, 1, 2, 'bad'))) == stoker.Skipped(0, 1, 2, 'bad')\n"
        "assert b'stoker.batch' not in pickle.dumps(stoker.Skipped(0, 1, 2, 'bad'))"
    )
    run(code)


def test_rooms_export_names_and_not_modules() -> None:
    """What is a module and not listed by its room is private: nothing promises that it stays where it is."""
    for path in SOURCE.glob("*/__init__.py"):
        room = importlib.import_module(f"stoker.{path.parent.name}")
        for name in getattr(room, "__all__", ()):
            assert not name.startswith("_")
            value = getattr(room, name)
            assert not inspect.ismodule(value) or f"import {name} as {name}" in path.read_text(), (room, name)


def test_importing_the_loader_leaves_out_what_most_loaders_do_not_need() -> None:
    code = "import sys, stoker; stoker.DataLoader; print(*(name for name in sys.modules if name.startswith('stoker.')))"
    loaded = run(code).split()
    assert len(loaded) < 85
    late = [
        *("compose.packs", "compose.images", "compose.mixtures", "store", "deliver", "lab", "prepare", "remote"),
        *("engine.threads", "engine.processes.engine", "loader.sharing.mesh", "loader.auto"),
    ]
    assert [name for name in loaded if name.startswith(tuple(f"stoker.{room}" for room in late))] == []


def leaves(kind: type[errors.StokerError]) -> list[type[errors.StokerError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


EXAMPLES: dict[str, dict[str, Any]] = {
    "CheckFailed": {"check": "split", "problem": "2 parts together lack 1 sample"},
    "ArgumentError": {"what": "no", "hint": "yes"},
    "MissingExtra": {"library": "x", "extra": "y", "need": "z"},
    "EmptyDataset": {"dataset": "D"},
    "PositionError": {"position": 7, "length": 3, "what": "it"},
    "EarlyStop": {"where": "__getitem__"},
    "BadLine": {"path": "a.txt", "line": 3, "offset": 20, "reason": "bad"},
    "BadImage": {"path": "a.jpg", "reason": "cut short"},
    "StaleSource": {"path": "a.txt", "what": "changed"},
    "DamagedFile": {"path": "a.gz", "what": "cut short"},
    "DamagedBlock": {"path": "s/a.safetensors", "block": 3, "columns": ["tokens"], "expected": 1, "found": 2},
    "NotAStore": {"path": "a", "what": "empty"},
    "StoreMismatch": {"path": "a", "differences": {"tokenizer": ("one", "another")}},
    "TooManySkipped": {"skipped": 3, "served": 9, "limit": "max_skipped=2", "recent": ["one"]},
    "NothingCollated": {"function": "f", "step": 3},
    "StateUnreadable": {"reason": "odd"},
    "StateMismatch": {"differences": {"seed": (1, 2)}},
    "NotPicklable": {"what": "the dataset", "reason": "lambda", "start_method": "spawn"},
    "WorkerStuck": {"seconds": 2.0, "stacks": "File x"},
    "BadLength": {"dataset": "Numbers", "returned": "3.5"},
    "NestedNext": {},
    "WorkerDied": {"what": "the batch with positions 3, 4", "ends": ["SIGKILL", "SIGSEGV"]},
    "OutOfSharedMemory": {"num_bytes": 1 << 30, "reason": "No space left on device"},
    "OutOfDescriptors": {"what": "worker process 3"},
    "ForeignProcess": {},
}


@pytest.mark.parametrize("kind", leaves(errors.StokerError), ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_with_its_fields_and_notes(kind: type[errors.StokerError]) -> None:
    fields = EXAMPLES.get(kind.__name__)
    error = kind(**fields) if fields is not None else kind("what happened")
    error.add_note("and where")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert again.__notes__ == ["and where"]
    if fields is not None:
        assert "hint: " in str(error)


def test_the_tree_at_the_top_of_errors_shows_every_error() -> None:
    assert errors.__doc__ is not None
    for kind in leaves(errors.StokerError):
        assert kind.__name__ in errors.__doc__
