"""Functions named on the command line, and the arguments of loaders that they build."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stoker
from stoker.errors import ArgumentError
from stoker.lab.trial.override import override_arguments
from stoker.lab.trial.target import accepted_options, call_with, check_spec, resolve_function, spec_of_function
from tests.lab import plain_loaders, torch_loaders

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than there are cores


def make_loader(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> Any:
    """Return the loader that a function makes with these arguments."""
    with override_arguments(options or {}, function) as override:
        loader = override.call(function)
    override.check(function)
    return loader


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_a_function_is_found_in_a_module_of_the_current_folder(folder: Path) -> None:
    write(
        folder,
        "my_training.py",
        "import my_data\ndef make(): return my_data.VALUE\nclass Deep:\n  @staticmethod\n  def make(): return 4",
    )
    write(folder, "my_data.py", "VALUE = 3")
    assert resolve_function("my_training:make")() == 3
    assert resolve_function("my_training:Deep.make")() == 4


def test_a_function_is_found_in_a_file_and_so_is_what_lies_beside_it(folder: Path) -> None:
    (folder / "project").mkdir()
    write(folder, "project/my-script.v2.py", "import beside\ndef make(): return beside.VALUE")
    write(folder, "project/beside.py", "VALUE = 7")
    function = resolve_function("project/my-script.v2.py:make")
    assert function() == 7


def test_a_file_called_like_a_module_of_pythons_is_not_taken_for_it(folder: Path) -> None:
    import random

    write(folder, "random.py", "def make(): return 'mine'")
    assert resolve_function("random.py:make")() == "mine"
    assert sys.modules["random"] is random


def test_a_file_that_needs_its_package_is_imported_as_a_part_of_it(folder: Path) -> None:
    inner = folder / "outer" / "inner"
    inner.mkdir(parents=True)
    write(folder, "outer/__init__.py", "")
    write(folder, "outer/inner/__init__.py", "")
    write(folder, "outer/words.py", "WORD = 'found'\n")
    write(folder, "outer/inner/data.py", "from ..words import WORD\ndef make(): return [WORD]\n")
    assert resolve_function("outer/inner/data.py:make")() == ["found"]
    assert resolve_function("outer.inner.data:make") is resolve_function(f"{inner}/data.py:make")


def test_a_file_in_a_package_that_is_meant_as_a_script_stays_one(folder: Path) -> None:
    (folder / "scripts").mkdir()
    write(folder, "scripts/__init__.py", "raise RuntimeError('nobody imports this')\n")
    write(folder, "scripts/beside.py", "WORD = 'found'\n")
    write(folder, "scripts/train.py", "from beside import WORD\ndef make(): return [WORD]\n")
    assert resolve_function("scripts/train.py:make")() == ["found"]


def test_a_file_is_imported_once(folder: Path) -> None:
    write(folder, "counted_once.py", "import builtins\nTIMES = []\nTIMES.append(1)\ndef make(): return TIMES")
    assert resolve_function("counted_once.py:make")() is resolve_function("counted_once:make")()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("train", "'train' does not name a function\nhint: name a function as `package.module:function`"),
        ("train.make_loader", "did you mean `train:make_loader`?"),
        ("train.py", "add the name of the function: `train.py:make_loader`"),
        (":make", "':make' does not name a function"),
        ("train:", "'train:' does not name a function"),
        ("train:make loader", "does not name a function"),
        ("a b:make", "'a b' is not a module name"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("some/where.py:make", "there is no file some/where.py"),
    ],
)
def test_what_names_no_function_is_refused_before_anything_is_imported(spec: str, message: str, folder: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_spec(spec)
    assert message in str(caught.value)


def test_a_name_that_is_nearly_right_is_suggested(folder: Path) -> None:
    write(folder, "my_train.py", "def make_loader(): pass\ndef _hidden(): pass\nnumber = 5")
    with pytest.raises(ArgumentError, match="there is no file my_trian.py\nhint: did you mean `my_train.py`?"):
        resolve_function("my_trian.py:make_loader")
    with pytest.raises(ArgumentError, match="there is no module my_trian\nhint: did you mean `my_train`?"):
        resolve_function("my_trian:make_loader")
    with pytest.raises(ArgumentError, match="my_train has no 'make_laoder'\nhint: did you mean `make_loader`?"):
        resolve_function("my_train:make_laoder")
    with pytest.raises(ArgumentError, match="my_train has no 'nothing_like_it'\nhint: name a function"):
        resolve_function("my_train:nothing_like_it")
    with pytest.raises(ArgumentError, match="my_train:number must be a function, got an int\nhint: wrap it"):
        resolve_function("my_train:number")


def test_what_a_module_raises_is_told_with_its_place(folder: Path) -> None:
    write(folder, "broken.py", "import json\n\njson.loads('{')\n")
    write(folder, "wordy.py", "def make(:\n")
    write(folder, "needy.py", "import a_library_that_is_missing\n")
    write(folder, "script.py", "import sys\nsys.exit(0)\n")
    with pytest.raises(ArgumentError, match=r"broken cannot be imported: JSONDecodeError: .* line \d+\)"):
        resolve_function("broken:make")
    with pytest.raises(ArgumentError, match=r"wordy.py cannot be imported: SyntaxError: .*\(wordy.py, line 1\)"):
        resolve_function("wordy.py:make")
    with pytest.raises(ArgumentError, match="needy cannot be imported: ModuleNotFoundError: No module named 'a_lib"):
        resolve_function("needy:make")
    with pytest.raises(ArgumentError, match=r"ended the program \(SystemExit\)\nhint: put what a script runs under"):
        resolve_function("script.py:make")
    assert "wordy" not in sys.modules, "half a module is not kept"


def test_a_function_is_named_so_that_another_process_finds_it() -> None:
    assert spec_of_function(plain_loaders.long) == "tests.lab.plain_loaders:long"
    assert resolve_function(spec_of_function(plain_loaders.Naps.__iter__)) is plain_loaders.Naps.__iter__
    with pytest.raises(ArgumentError, match="cannot be found by another process"):
        spec_of_function(lambda: None)


def test_a_function_gets_what_it_takes_and_no_more() -> None:
    def some(num_workers: int, *, prefetch: int = 0) -> tuple[int, int]:
        return num_workers, prefetch

    assert call_with(some, num_workers=3, prefetch_factor=4, batch_size=5) == (3, 4)
    assert accepted_options(lambda **options: options, {"batch_size": 3}) == {"batch_size": 3}
    with pytest.raises(ArgumentError, match=r"some\(\) cannot be called: missing a required argument: 'num_workers'"):
        call_with(some)


def arguments(loader: Any) -> dict[str, Any]:
    names = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "timeout")
    return {name: getattr(loader, name) for name in names}


def test_a_loader_that_is_built_without_being_asked_gets_other_arguments() -> None:
    function = torch_loaders.unmodified
    init = DataLoader.__init__
    assert arguments(make_loader(function)) == {
        "num_workers": 3, "batch_size": 4, "prefetch_factor": 4, "persistent_workers": True, "timeout": 30
    }  # fmt: skip
    assert arguments(make_loader(function, {"num_workers": 2, "batch_size": 5, "prefetch_factor": 6})) == {
        "num_workers": 2, "batch_size": 5, "prefetch_factor": 6, "persistent_workers": True, "timeout": 30
    }  # fmt: skip
    assert DataLoader.__init__ is init


def test_without_workers_what_needs_them_goes() -> None:
    found = arguments(make_loader(torch_loaders.unmodified, {"num_workers": 0, "prefetch_factor": 8}))
    assert found == {
        "num_workers": 0, "batch_size": 4, "prefetch_factor": None, "persistent_workers": False, "timeout": 0
    }  # fmt: skip
    with_threads = make_loader(torch_loaders.ours, {"num_workers": 0, "num_threads": 2, "prefetch_factor": 8})
    assert (with_threads.num_workers, with_threads.num_threads, with_threads.prefetch_factor) == (0, 2, 8)


def test_a_function_that_has_parameters_is_given_them_and_its_loader_is_left_alone() -> None:
    def halves(workers: int) -> DataLoader[Any]:
        return DataLoader(torch_loaders.Sleepy(), 4, num_workers=workers // 2, prefetch_factor=3)  # type: ignore[arg-type]

    loader = make_loader(halves, {"num_workers": 4, "batch_size": 2})
    assert (loader.num_workers, loader.batch_size, loader.prefetch_factor) == (2, 2, 3)
    assert make_loader(halves, {"num_workers": 0}).prefetch_factor is None


def test_a_function_that_takes_any_option_gets_them_all() -> None:
    loader = make_loader(torch_loaders.any_options, {"num_workers": 2, "batch_size": 7})
    assert (loader.num_workers, loader.batch_size) == (2, 7)


def test_a_subclass_of_a_loader_and_one_inside_something_else_are_reached() -> None:
    class Own(stoker.DataLoader[Any]):
        def __init__(self) -> None:
            super().__init__(torch_loaders.Sleepy(), 4, num_workers=3)

    assert make_loader(Own, {"num_workers": 1, "num_threads": 2}).num_threads == 2
    with override_arguments({"num_workers": 1}) as override:
        override.call(torch_loaders.wrapped)
    override.check(torch_loaders.wrapped)
    assert override.kinds == ["torch"]
    assert override.arguments["num_workers"] == 1


def test_what_nobody_takes_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="num_threads=2 could not be set: torch's DataLoader has no num_threads"):
        make_loader(torch_loaders.unmodified, {"num_threads": 2})
    with pytest.raises(ArgumentError, match="num_threads=2 could not be set: torch's DataLoader has no num_threads"):
        make_loader(torch_loaders.any_options, {"num_threads": 2})
    assert make_loader(torch_loaders.unmodified, {"num_threads": 0}).num_workers == 3
    with pytest.raises(ArgumentError, match="the loader has a batch_sampler, which decides"):
        make_loader(torch_loaders.own_sampler, {"batch_size": 2})
    with pytest.raises(ArgumentError, match="the function makes no DataLoader to set it on\nhint: add a"):
        make_loader(plain_loaders.short, {"num_workers": 2})
    with pytest.raises(ArgumentError, match="pin_memory cannot be changed from outside"):
        make_loader(torch_loaders.unmodified, {"pin_memory": True})


def test_what_is_no_loader_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"nothing\(\) returned None, which yields no batches\nhint: return the"):
        make_loader(plain_loaders.nothing)
    with pytest.raises(ArgumentError, match=r"number\(\) returned int, which yields no batches"):
        make_loader(plain_loaders.number)
    with pytest.raises(ArgumentError, match=r"pair\(\) returned a tuple of 2, not one loader"):
        make_loader(torch_loaders.pair)
    assert isinstance(make_loader(lambda: [torch.zeros(2)]), list)


def test_a_dataset_or_a_text_is_not_taken_for_a_loader() -> None:
    class Photos(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, position: int) -> int:
            return position

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    with pytest.raises(ArgumentError, match="returned a dataset .Photos., which yields samples.*\n.*DataLoader.data"):
        make_loader(Photos)
    with pytest.raises(ArgumentError, match="getcwd.. returned str, which yields no batches"):
        make_loader(os.getcwd)
    assert list(make_loader(Stream)) == [1, 2], "which may well give batches"


def test_a_dataset_of_any_kind_is_not_taken_for_a_loader() -> None:
    class Iterated(torch.utils.data.TensorDataset):
        def __iter__(self) -> Iterator[Any]:
            return (self[position] for position in range(len(self)))

    told = "returned a dataset .Sleepy., which yields samples, not batches\nhint: return a loader of it: `DataLoader"
    with pytest.raises(ArgumentError, match=told):
        make_loader(torch_loaders.Sleepy)
    with pytest.raises(ArgumentError, match="returned a dataset .Iterated."):
        make_loader(lambda: Iterated(torch.zeros(8, 3)))


@pytest.mark.parametrize("kind", [list, tuple, deque, iter])
def test_batches_in_any_order_of_things_are_a_loader(kind: Any) -> None:
    assert len(next(iter(make_loader(lambda: kind([torch.zeros(2), torch.zeros(2)]))))) == 2
    assert next(iter(make_loader(lambda: torch.zeros(5, 4, 3)))).shape == (4, 3)


def test_an_error_inside_leaves_the_constructors_as_they_were() -> None:
    before = DataLoader.__init__, stoker.DataLoader.__init__
    with pytest.raises(RuntimeError, match="no luck"):
        make_loader(plain_loaders.failing, {"num_workers": 1})
    assert (DataLoader.__init__, stoker.DataLoader.__init__) == before


def test_a_wrong_call_of_a_loader_is_told_by_the_loader_itself() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_wrokers'"):
        make_loader(lambda: DataLoader([1], num_wrokers=3), {"num_workers": 1})  # type: ignore[call-arg, arg-type]
