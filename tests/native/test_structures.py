"""What Python packs for C has the layout that the compiler gives it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from struct import calcsize

import pytest

from stoker.native.building import SOURCES, _compiler
from stoker.native.faults import _FAULTS
from stoker.native.library import JpegLibrary, NativeLibrary
from stoker.native.structures import Structure, declarations

FUNCTIONS = {*NativeLibrary.__annotations__, *JpegLibrary.__annotations__}


def compiled_numbers(expressions: list[str], sources: list[str], folder: Path) -> list[int]:
    """Return the values of C expressions, compiled after these sources."""
    lines = [f'#include "{SOURCES / name}"' for name in sources]
    prints = "".join(f'printf("%lld\\n", (long long)({expression}));' for expression in expressions)
    program = "\n".join(
        ["#include <stdio.h>", "#include <stddef.h>", *lines, f"int main(void) {{ {prints} return 0; }}"]
    )
    (folder / "print.c").write_text(program)
    needed = [str(SOURCES / name) for name in ("passes.c", "resize.c") if "jpeg.c" in sources]
    links = ["-ljpeg"] if "jpeg.c" in sources else []
    command = [*_compiler(), "-std=gnu11", "-o", str(folder / "print"), str(folder / "print.c"), *needed, *links, "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return [
        int(line) for line in subprocess.run([str(folder / "print")], check=True, capture_output=True).stdout.split()
    ]


def source_of(function: str) -> str:
    return next(path.name for path in sorted(SOURCES.glob("*.c")) if f"int64_t stoker_{function}(" in path.read_text())


@pytest.mark.parametrize("function", sorted(name for name, taken in declarations().functions.items() if taken))
def test_python_packs_what_the_compiler_lays_out(function: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("native_jpeg" if function == "decode_jpeg" else "native")
    name = declarations().functions[function]
    structure = declarations().structure(name)
    source = source_of(function)
    sources = [source, "passes.c"] if source == "resize.c" else ["rows.c", source] if source == "spans.c" else [source]
    offsets = [f"offsetof(struct {name}, {field})" for field in structure.names]
    size, *found = compiled_numbers([f"sizeof(struct {name})", *offsets], sources, tmp_path)
    assert size == structure.layout.size
    codes = structure.layout.format
    assert found == [calcsize(codes[:at]) for at in range(len(codes))]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", ["filling", "tables"])
def test_so_it_does_for_structures_inside_others(name: str, tmp_path: Path) -> None:
    structure = declarations().structure(name)
    offsets = [f"offsetof(struct {name}, {field})" for field in structure.names]
    size, *found = compiled_numbers([f"sizeof(struct {name})", *offsets], ["rows.c", "spans.c"], tmp_path)
    assert size == structure.layout.size
    assert found == [8 * at for at in range(len(structure.names))]


def test_every_function_that_python_calls_is_declared() -> None:
    assert set(declarations().functions) == FUNCTIONS


def test_every_result_code_with_a_message_is_declared() -> None:
    assert set(_FAULTS) <= set(declarations().faults)
    assert len(declarations().faults) <= 16, "codes have four bits"


def test_a_field_that_is_lacking_or_unknown_is_refused() -> None:
    structure = Structure([("flat", "P"), ("count", "q")])
    assert structure.pack({"count": 2, "flat": 1}) == structure.layout.pack(1, 2)
    with pytest.raises(TypeError, match="expected the fields flat, count, got flat"):
        structure.pack({"flat": 1})
    with pytest.raises(TypeError, match="no field 'flat'"):
        structure.pack({"count": 1, "number": 2})


def test_the_table_of_slots_has_the_columns_of_the_structure() -> None:
    from stoker.compose.packs.pack_rows import SLOT_COLUMNS

    assert declarations().structure("slot").names == SLOT_COLUMNS
