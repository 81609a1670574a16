"""Damages a store in every way that chance thinks of and reads it: `python -m tests.store.fuzz FOLDER SEED COUNT`.

In a process of its own, because what is looked for may end the process. Prints what was read, or not.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import StokerError
from stoker.store import Column, Store, Writer, open_store, verify
from tests.store import by_hand

HOSTILE = [-1, 0, 1, 2, 7, 2**16, 2**31, 2**32 - 1, 2**40, 2**53, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**64, 2**70]
OTHERS: list[Any] = [None, True, 1.5, "x", "", [], {}, [1], "../../etc/passwd", "tokens"]
FAR = [-(2**63), -(2**62), -2, -1, 0, 1, 2, 3, 4, 100, 2**31, 2**62, 2**63 - 1]


def made(path: Path) -> Store:
    columns = {"tokens": Column.ragged("uint16"), "text": Column.text(), "x": Column("float32", (2, 3))}
    with Writer(path, columns, shard_bytes=70_000) as writer:
        for number in range(90):
            tokens = np.arange(number * 20) % 60_000
            writer.append({"tokens": tokens, "text": "äb" * number, "x": np.full((2, 3), number)})
    return open_store(path)


def everything(store: Store) -> list[Any]:
    """All that can be read, in several ways."""
    positions = range(len(store)) if len(store) < 10_000 else [0, 1, len(store) - 1]
    found: list[Any] = []
    for name, column in store.columns.items():
        if column.is_ragged:
            found += [part.tobytes() for part in store.read_ragged(name, positions)]
            found.append(store.lengths(name, positions).tobytes())
        else:
            found.append(store.read(name, positions).tobytes())
    found += [sorted((name, np.asarray(value).tobytes()) for name, value in store[at].items()) for at in positions]
    if "tokens" in store.columns and store.columns["tokens"].is_ragged:
        for across in (True, False):
            crops = store.tokens(50, across=across)
            rows = crops.__getbatch__(range(min(len(crops), 2000)), np.empty)
            found += [len(crops), rows["tokens"].tobytes(), rows["labels"].tobytes()]
    return found


def flipped(folder: Path, chance: random.Random) -> None:
    """Change one bit, anywhere."""
    path = chance.choice(sorted(folder.glob("*.safetensors")) + [folder / "manifest.json"] * 2)
    data = bytearray(path.read_bytes())
    places = [len(data), 600]  # anywhere, and where headers say something
    if path.suffix == ".safetensors":
        places += [8, 131072 + 200]
    at = chance.randrange(min(len(data), chance.choice(places)))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(folder: Path, chance: random.Random) -> None:
    """Shorten or lengthen a file."""
    path = chance.choice(sorted(folder.iterdir()))
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.8 else data + b"\0" * 9)


def swapped(folder: Path, chance: random.Random) -> None:
    """Exchange two shards."""
    first, second = chance.sample(sorted(folder.glob("*.safetensors")), 2)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def told_otherwise(folder: Path, chance: random.Random) -> None:
    """Put something else in the place of something that the manifest says."""
    path = folder / "manifest.json"
    table = json.loads(path.read_text())
    place: Any = table
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.1:
            break
        place = place[key]
    place[key] = chance.choice(HOSTILE + OTHERS)
    path.write_text(json.dumps(table))


def forged(folder: Path, chance: random.Random) -> None:
    """Offsets that cannot be, and a header that lies, with all checksums right."""
    shutil.rmtree(folder)
    offsets = [0, 1, 1, 3] if chance.random() < 0.3 else [chance.choice(FAR) for _ in range(4)]

    def lie(table: dict[str, Any]) -> None:
        if chance.random() < 0.6:
            return
        entry = table[chance.choice(list(table))]
        key = chance.choice(list(entry))
        value = chance.choice(HOSTILE + OTHERS)
        entry[key] = [value, chance.choice(HOSTILE)] if key != "dtype" and chance.random() < 0.7 else value

    arrays = [by_hand.of_tokens([1, 2, 3], offsets), by_hand.of_tokens([4], [0, 1])]
    by_hand.write(folder, arrays, edit_header=lie)


def garbled(folder: Path, chance: random.Random) -> None:
    """Text that is not text, with all checksums right."""
    shutil.rmtree(folder)
    columns = {"text": {"dtype": "uint8", "shape": [], "ragged": True, "kind": "text"}}
    values = np.array([chance.choice([65, 195, 164, 255, 0]) for _ in range(3)], np.uint8)
    by_hand.write(folder, [{"text.offsets": np.array([0, 1, 3], "<i8"), "text": values}], columns=columns)


def check_names(folder: Path, error: StokerError) -> None:
    """An error must say where."""
    assert str(folder) in str(error), f"no file is named: {error}"


WAYS = [flipped, flipped, flipped, cut, swapped, told_otherwise, told_otherwise, forged, garbled]


def main(path: Path, seed: int, count: int) -> None:
    """Damage and read, `count` times."""
    chance = random.Random(seed)
    good = made(path / "good")
    expected = everything(good)
    results: Counter[str] = Counter()
    for number in range(count):
        way = chance.choice(WAYS)
        folder = path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good.path, folder)
        way(folder, chance)
        is_checked = chance.random() < 0.75
        sys.stderr.write(f"case {number}: {way.__name__} checked={is_checked}\n")
        sys.stderr.flush()
        try:
            found = everything(open_store(folder, check=is_checked))
        except StokerError as error:
            check_names(folder, error)
            results["refused"] += 1
        else:
            if is_checked and way not in (forged, garbled):
                assert found == expected, "wrong data was read"
            results["read"] += 1
        try:
            results["sound" if verify(folder).is_sound else "damaged"] += 1
        except StokerError as error:
            check_names(folder, error)
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
