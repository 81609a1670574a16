"""The structures that the C functions take, read from the C sources.

The declarations in C are the only description: Python packs the fields that it finds there, in that order, and refuses
a call that lacks one or names another. All fields take 8 bytes (addresses, 64-bit integers and doubles), so there is no
padding; `tests/native/test_structures.py` compares sizes and offsets with those of the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from operator import itemgetter
from struct import Struct

from stoker.native.building import SOURCES

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"^EXPORTED int64_t stoker_(\w+)\(const (?:struct (\w+)|void) \*given\)", re.MULTILINE)
_FAULTS = re.compile(r"^enum \{\s*(FINE,.*?)\};", re.DOTALL | re.MULTILINE)
_DECLARATION = re.compile(r"(?:const )?(?:(struct) )?(\w+)\s*(.+)", re.DOTALL)
_ARRAY = re.compile(r"(\w+)\[(\d+)\]")
_CODES = {"int64_t": "q", "double": "d"}


class Structure:
    """One C structure: the names of its fields as C has them (`size`, `box[0]`, `order.flat`), and their packing."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.names = tuple(name for name, _ in fields)
        self.layout = Struct("".join(code for _, code in fields))
        self._values = itemgetter(*self.names) if len(fields) > 1 else None

    def pack(self, fields: Mapping[str, float]) -> bytes:
        """Return the structure with these fields: all of them and no others, or `TypeError`."""
        assert self._values is not None
        if len(fields) != len(self.names):
            raise TypeError(f"expected the fields {', '.join(self.names)}, got {', '.join(fields)}")
        try:
            return self.layout.pack(*self._values(fields))
        except KeyError as error:
            raise TypeError(f"there is no field {error}: expected {', '.join(self.names)}") from None


class Declarations:
    """What the C sources declare. Read once, when the package is imported: an update may replace the files later."""

    def __init__(self) -> None:
        text = "".join(_COMMENT.sub("", path.read_text()) for path in sorted(SOURCES.glob("*.[ch]")))
        self._bodies = dict(_STRUCT.findall(text))
        self.functions: dict[str, str] = dict(_FUNCTION.findall(text))
        """The structure that each exported function takes; "" for those that take none."""
        found = _FAULTS.search(text)
        self.faults = tuple(re.findall(r"\w+", found[1])) if found else ()
        """The names of the result codes, in order."""

    def structure(self, name: str) -> Structure:
        """Return the structure of that name."""
        return Structure(self._fields(name))

    def _fields(self, name: str) -> list[tuple[str, str]]:
        fields: list[tuple[str, str]] = []
        for declaration in self._bodies[name].split(";"):
            if not (found := _DECLARATION.fullmatch(declaration.strip())):
                continue
            is_structure, kind, declarators = found.groups()
            for declarator in map(str.strip, declarators.split(",")):
                if declarator.startswith("*"):
                    fields.append((declarator.removeprefix("*"), "P"))
                elif is_structure:
                    fields += [(f"{declarator}.{inner}", code) for inner, code in self._fields(kind)]
                elif array := _ARRAY.fullmatch(declarator):
                    fields += [(f"{array[1]}[{at}]", _CODES[kind]) for at in range(int(array[2]))]
                else:
                    fields.append((declarator, _CODES[kind]))
        return fields


@cache
def declarations() -> Declarations:
    """Return what the C sources declare."""
    return Declarations()
