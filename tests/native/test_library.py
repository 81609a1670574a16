"""The library where it is, where it is not, and where it is another's; and the packages that it is in or not."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from stoker.native import apportion, building, describe, gather_rows, without
from stoker.native import library as loading
from stoker.native.building import (
    JPEG_LIBRARY,
    LIBRARY,
    MARK,
    NotBuilt,
    build,
    build_jpeg,
    digest,
    first_fault,
    is_current,
)

ROOT = Path(__file__).parents[2]
SHOWS = """
import numpy as np
from stoker import native
print(native.describe())
print(native.apportion(np.array([3]), np.zeros(3, np.uint16)))
"""

SHOWS_JPEG = "from stoker import native; print(native.describe_jpeg()); print(native.has_jpeg())"


def run(code: str, *, folder: Path, **variables: str) -> list[str]:
    """Run code with the package at `folder`."""
    environment = {name: value for name, value in os.environ.items() if name != loading.SWITCH}
    environment |= {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a package of which only what is needed here is there, and no library."""
    package = tmp_path / "src" / "stoker"
    package.mkdir(parents=True)
    source = ROOT / "src" / "stoker"
    for name in ("__init__.py", "_version.py", "errors.py", "trainers.py"):
        shutil.copy(source / name, package)
    shutil.copytree(source / "native", package / "native", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    return package.parent


def built(checkout: Path) -> Path:
    run("from stoker.native.building import build; build()", folder=checkout)
    return checkout / "stoker" / "native" / LIBRARY.name


def test_without_a_library_numpy_does_it(checkout: Path) -> None:
    shown = run(SHOWS, folder=checkout)
    assert shown[0].startswith("not built") and shown[1] == "False"


@pytest.mark.usefixtures("native")
def test_a_library_next_to_the_sources_is_used(checkout: Path) -> None:
    built(checkout)
    assert run(SHOWS, folder=checkout) == ["in use", "True"]


@pytest.mark.usefixtures("native")
def test_the_environment_turns_it_off(checkout: Path) -> None:
    built(checkout)
    assert run(SHOWS, folder=checkout, STOKER_NATIVE="0") == ["off, as STOKER_NATIVE is 0", "False"]


@pytest.mark.usefixtures("native")
def test_a_library_of_other_sources_is_not_loaded_and_built_again(checkout: Path) -> None:
    before = built(checkout).read_bytes()
    with (checkout / "stoker" / "native" / "rows.c").open("a") as file:
        file.write("/* changed */\n")
    shown = run(SHOWS, folder=checkout)
    assert shown[0].startswith("built from other sources") and shown[1] == "False"
    assert built(checkout).read_bytes() != before
    assert run(SHOWS, folder=checkout) == ["in use", "True"]


@pytest.mark.usefixtures("native")
def test_a_library_that_was_renewed_under_a_running_process_is_not_loaded(checkout: Path) -> None:
    built(checkout)
    renewed = """
import subprocess, sys
from stoker import native
from stoker.native.building import SOURCES
with (SOURCES / "rows.c").open("a") as file:
    file.write("/* an update */")
subprocess.run([sys.executable, "-m", "stoker.native"], check=True, stdout=subprocess.DEVNULL)
"""
    shown = run(renewed + SHOWS, folder=checkout)
    assert shown[0].startswith("built from other sources") and shown[1] == "False"
    assert run(SHOWS, folder=checkout) == ["in use", "True"]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n"])
def test_a_file_that_is_no_library_is_not_used(checkout: Path, content: bytes) -> None:
    (checkout / "stoker" / "native" / LIBRARY.name).write_bytes(content)
    assert run(SHOWS, folder=checkout)[1] == "False"
    # not even one that says it is of these sources
    (checkout / "stoker" / "native" / LIBRARY.name).write_bytes(content + MARK + digest().encode())
    shown = run(SHOWS, folder=checkout)
    assert shown[0].startswith("cannot be loaded") and shown[1] == "False"


def test_without_a_compiler_building_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(NotBuilt, match="no-such-compiler"):
        build(tmp_path / "a.so")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NotBuilt, match="failed"):
        build(tmp_path / "a.so")
    assert not list(tmp_path.iterdir())


def test_the_command_does_not_fail_without_a_compiler_and_python_has_nothing_to_say_about_it(checkout: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1", "CC": "no-such-compiler"}
    command = [sys.executable, "-m", "stoker.native"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.startswith("native helpers: not built") and "Warning" not in done.stderr


@pytest.mark.usefixtures("native")
def test_a_folder_that_cannot_be_written_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(NotBuilt):
        build(tmp_path / "nowhere" / "a.so")


@pytest.mark.usefixtures("native")
def test_clones_are_left_out_where_they_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "CLONES", "-fno-such-option")
    assert is_current(build(tmp_path / "a.so"))
    assert loading.NativeLibrary(str(tmp_path / "a.so")).apportion(0, 0, 0, 0) == 0


# ------------------------------------------------------------ the library for JPEG


def jpeg_built(checkout: Path) -> Path:
    run("from stoker.native.building import build_jpeg; build_jpeg()", folder=checkout)
    return checkout / "stoker" / "native" / JPEG_LIBRARY.name


@pytest.mark.usefixtures("native_jpeg")
def test_the_library_for_jpeg_is_there_by_itself(checkout: Path) -> None:
    assert run(SHOWS_JPEG, folder=checkout)[0].startswith("not built")
    library = jpeg_built(checkout)
    assert run(SHOWS_JPEG, folder=checkout) == ["in use", "True"]
    assert run(SHOWS, folder=checkout)[0].startswith("not built")
    assert run(SHOWS_JPEG, folder=checkout, STOKER_NATIVE="0") == ["off, as STOKER_NATIVE is 0", "False"]
    assert run(SHOWS_JPEG, folder=checkout, STOKER_NATIVE_JPEG="0") == ["off, as STOKER_NATIVE_JPEG is 0", "False"]
    with (library.parent / "resize.c").open("a") as file:
        file.write("/* changed */\n")
    assert run(SHOWS_JPEG, folder=checkout)[0].startswith("built from other sources")


@pytest.mark.usefixtures("native_jpeg")
def test_without_its_libjpeg_it_is_not_loaded(checkout: Path) -> None:
    # as on a machine that has another one, or none: the name it is looked for by is in the file
    library = jpeg_built(checkout)
    content = library.read_bytes()
    assert b"libjpeg.so" in content
    library.write_bytes(content.replace(b"libjpeg.so", b"libgone.so"))
    told, has = run(SHOWS_JPEG, folder=checkout)
    assert told.startswith("cannot be loaded: libgone.so") and has == "False"


@pytest.mark.usefixtures("native_jpeg")
def test_a_libjpeg_of_another_kind_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = tmp_path / "jpeg.c"
    wrapped.write_text(
        "#include <stdio.h>\n#include <jpeglib.h>\n#undef JPEG_LIB_VERSION\n#define JPEG_LIB_VERSION 70\n"
        f'#include "{building.SOURCES}/jpeg.c"\n'
    )
    monkeypatch.setattr(building, "OF_JPEG", {str(wrapped), "passes.c", "resize.c", "version.c"})
    with pytest.raises(OSError, match="Wrong JPEG library version"):
        loading.JpegLibrary(str(build_jpeg(tmp_path / "a.so")))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("links", [("-lno-such-library",), ("-Wl,-z,defs",)])
def test_where_libjpeg_is_missing_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], links: tuple[str, ...]
) -> None:
    monkeypatch.setattr(building, "JPEG_LINKS", links)
    with pytest.raises(NotBuilt, match="failed") as caught:
        build_jpeg(tmp_path / "a.so")
    assert "\n" not in first_fault(caught.value)
    monkeypatch.setattr(building, "build_jpeg", lambda: build_jpeg(tmp_path / "a.so"))
    building.main()
    shown = capsys.readouterr()
    assert shown.out.startswith("native helpers: ")
    assert shown.err.startswith("native JPEG decoder: not built") and shown.err.count("\n") == 1


def test_it_can_be_turned_off_for_a_while() -> None:
    before = describe()
    with without():
        assert describe() == "off for now"
        assert not apportion(np.array([3]), np.zeros(3, np.uint16))
    assert describe() == before


@pytest.mark.usefixtures("native")
def test_many_threads_may_gather_at_once() -> None:
    flat = np.arange(100_000, dtype=np.uint32)
    elements = np.arange(0, 90_000, 100)
    wrong: list[int] = []

    def work(number: int) -> None:
        x, y = (np.empty((len(elements), 1000), np.int64) for _ in range(2))
        for _ in range(5):
            assert gather_rows(flat, elements + number, 1000, x, y)
            if not (x[:, 0] == elements + number).all() or not (y == x + 1).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------ packages


def wheel(folder: Path, **variables: str) -> Path:
    """Build the package that is at `folder`, with what is installed here."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    (folder / "out").mkdir()
    code = "import hatchling.build as b; b.build_wheel('out')"
    environment = {name: value for name, value in os.environ.items() if name != loading.SWITCH}
    subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment | variables, check=True, capture_output=True
    )
    (found,) = (folder / "out").iterdir()
    return found


def names_in(path: Path) -> set[str]:
    with ZipFile(path) as archive:
        return set(archive.namelist())


INSIDE = f"stoker/native/{LIBRARY.name}"


@pytest.mark.slow
@pytest.mark.usefixtures("native")
def test_a_wheel_has_the_library_for_any_python_on_such_a_machine(checkout: Path, tmp_path: Path) -> None:
    found = wheel(checkout.parent)
    assert "-py3-none-" in found.name and "any" not in found.name
    assert {INSIDE, "stoker/native/rows.c", "stoker/native/jpeg.c"} <= names_in(found)
    has_jpeg = f"stoker/native/{JPEG_LIBRARY.name}" in names_in(found)
    with ZipFile(found) as archive:
        archive.extractall(tmp_path / "installed")
    assert run(SHOWS, folder=tmp_path / "installed") == ["in use", "True"]
    assert run(SHOWS_JPEG, folder=tmp_path / "installed")[1] == str(has_jpeg) == str(loading.jpeg_library() is not None)


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"CC": "no-such-compiler"}, {"CC": "false"}, {"STOKER_NATIVE": "0"}])
def test_a_wheel_without_it_is_for_all_machines(checkout: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    (checkout / "stoker" / "native" / LIBRARY.name).write_bytes(b"of other sources")
    found = wheel(checkout.parent, **variables)
    assert found.name.endswith("-py3-none-any.whl")
    assert INSIDE not in names_in(found)
    with ZipFile(found) as archive:
        archive.extractall(tmp_path / "installed")
    assert run(SHOWS, folder=tmp_path / "installed")[1] == "False"


@pytest.mark.usefixtures("native")
def test_an_editable_install_has_it_next_to_the_sources(checkout: Path) -> None:
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["NativeHelpers"]
    data: dict[str, Any] = {"force_include": {}}
    hook(str(checkout.parent), {}, None, None, "", "wheel").initialize("editable", data)
    assert data == {"force_include": {}}
    assert run(SHOWS, folder=checkout) == ["in use", "True"]
