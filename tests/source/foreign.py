"""Files of the formats that others write, made by hand, and what holds forevery source over them."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from stoker import errors

DTYPE_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(
    prefix: Path,
    sequences: Sequence[Sequence[int]],
    *,
    dtype: str = "uint16",
    documents: Sequence[int] | None = None,
    modes: bool = False,
) -> None:
    """Write `.bin` and `.idx` as Megatron-LM does; `documents` are the first sequences, and one past the last."""
    flat = [token for sequence in sequences for token in sequence]
    prefix.with_suffix(".bin").write_bytes(np.array(flat, dtype).tobytes())
    sizes = np.array([len(sequence) for sequence in sequences], "<i4")
    pointers = np.cumsum([0, *sizes[:-1]], dtype="<i8")[: len(sizes)] * np.dtype(dtype).itemsize
    borders = range(len(sequences) + 1) if documents is None else documents
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, DTYPE_CODES[dtype], len(sizes), len(borders))
    tail = bytes(len(sizes)) if modes else b""
    numbers = sizes.tobytes() + pointers.astype("<i8").tobytes() + np.array(borders, "<i8").tobytes()
    prefix.with_suffix(".idx").write_bytes(head + numbers + tail)


def write_llm_c(path: Path, tokens: Sequence[int], *, magic: int = 20240520, version: int = 1) -> None:
    head = np.zeros(256, "<i4")
    head[:3] = magic, version, len(tokens)
    path.write_bytes(head.tobytes() + np.array(tokens, "<u2" if version == 1 else "<u4").tobytes())


def write_arrow(path: Path, table: Any, *, batch_rows: int = 3, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        for batch in table.to_batches(max_chunksize=batch_rows):
            writer.write_batch(batch)


def save_dataset(folder: Path, tables: Sequence[Any], **state: Any) -> None:
    """Save a dataset as `datasets.Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables):
        write_arrow(folder / name, table)
    content: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps({**content, **state}))
    (folder / "dataset_info.json").write_text("{}")


ROWS: list[dict[str, Any]] = [
    {
        "number": number,
        "text": f"é{number}" * (number % 4),
        "ids": [number] * (number % 3),
        "maybe": None if number % 5 == 0 else number / 2,
        "is_odd": number % 2 == 1,
        "blob": bytes([number]),
        "words": ["w"] * (number % 3),
        "picture": [[number, 1, 2], [3, 4, 5]],
        "struct": {"a": number, "b": [1.5, 2.5]} if number % 4 else None,
    }
    for number in range(20)
]
SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "text": pa.string(),
        "ids": pa.list_(pa.int32()),
        "maybe": pa.float32(),
        "is_odd": pa.bool_(),
        "blob": pa.binary(),
        "words": pa.list_(pa.string()),
        "picture": pa.list_(pa.list_(pa.uint8())),
        "struct": pa.struct({"a": pa.int16(), "b": pa.list_(pa.float64())}),
    }
)


def table_of(rows: Sequence[dict[str, Any]]) -> Any:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def plain(sample: Any) -> Any:
    """The same with arrays as lists, to be compared."""
    if isinstance(sample, dict):
        return {key: plain(value) for key, value in sample.items()}
    if isinstance(sample, (list, tuple)):
        return [plain(value) for value in sample]
    if isinstance(sample, (np.ndarray, np.generic)):
        return [str(sample.dtype), sample.tolist()]
    return sample


def same(left: Any, right: Any) -> bool:
    return repr(plain(left)) == repr(plain(right))  # by text, so that what is not a number equals itself


def arrays_in(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        return [array for value in sample.values() for array in arrays_in(value)]
    return [sample] if isinstance(sample, np.ndarray) else []


def _read_all(source: Any, ends: Connection) -> None:
    with ends:
        ends.send(source.__getitems__(range(len(source))))


def check_laws(source: Any) -> None:
    """What holds forevery source: addressing, batches, errors, pickling, forks, threads."""
    size = len(source)
    singles = [source[position] for position in range(size)]
    assert same([source[position - size] for position in range(size)], singles)
    asked = [*range(size - 1, -1, -1), *range(0, size, 2), *([-1, 0, 0] if size else [])]
    assert same(source.__getitems__(asked), [singles[position] for position in asked])
    assert same(source.__getitems__(np.arange(size)), singles)
    assert source.__getitems__([]) == []
    for array in arrays_in({"all": {str(number): sample for number, sample in enumerate(singles)}}):
        assert array.flags.writeable
    for outside in (size, -size - 1, 1 << 70):
        with pytest.raises(errors.PositionError):
            source[outside]
        with pytest.raises(errors.PositionError, match=f"position {outside} "):
            source.__getitems__([*range(min(size, 1)), outside])
        with pytest.raises(errors.PositionError):
            source.describe(outside)
    with pytest.raises(TypeError):
        source.__getitems__([0.5])
    again = pickle.loads(pickle.dumps(source))
    assert len(again) == size and same(again.__getitems__(range(size)), singles)
    assert again.fingerprint == source.fingerprint and repr(again) == repr(source)
    with ThreadPoolExecutor(4) as threads:
        assert same(list(threads.map(again.__getitem__, list(range(size)) * 3)), singles * 3)


def check_processes(source: Any) -> None:
    """The samples are the same in a forked and in a spawned process."""
    want = source.__getitems__(range(len(source)))
    for method in ("fork", "spawn"):
        context: Any = multiprocessing.get_context(method)
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_read_all, args=(source, theirs))
        process.start()
        theirs.close()
        with mine:
            assert same(mine.recv(), want)
        process.join()
        process.close()


def check_staleness(make: Callable[[], Any], path: Path) -> None:
    """A source that is sent elsewhere notices that the file is another, or gone."""
    sent = pickle.dumps(make())
    content, found = path.read_bytes(), path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 10**9))
    with pytest.raises(errors.StaleSource, match="written to since"):
        pickle.loads(sent)[0]
    path.write_bytes(content + b"0123456789abcdef")
    with pytest.raises(errors.StaleSource, match=f"had {len(content)} bytes"):
        pickle.loads(sent)[0]
    path.unlink()
    with pytest.raises(errors.StaleSource, match="gone"):
        pickle.loads(sent)[0]
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    pickle.loads(sent)[0]


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Ways to damage a file: bytes changed, numbers that lie, an end cut off, something added."""
    kind = draw(st.sampled_from(["flip", "number", "cut", "add"]))
    place = draw(st.floats(0, 1))
    if kind == "cut":
        return lambda data: data[: int(place * len(data))]
    if kind == "add":
        more = draw(st.binary(min_size=1, max_size=20))
        return lambda data: data + more
    if kind == "number":
        number = draw(st.sampled_from([-1, 0, 1, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1, (1 << 32) - 1]))
        piece = struct.pack("<q", number)
    else:
        piece = draw(st.binary(min_size=1, max_size=3))

    def replaced(data: bytes) -> bytes:
        at = int(place * max(0, len(data) - 1))
        return (data[:at] + piece + data[at + len(piece) :])[: len(data)]

    return replaced


def read_damaged(open_it: Callable[[], Any]) -> None:
    """Read all of what may be damaged: it is read, or refused with an error of ours."""
    with suppress(errors.StokerError):
        source = open_it()
        size = len(source)
        source.__getitems__(range(min(size, 1000)))
        for position in (0, size // 2, size - 1):
            if size:
                source[position]
                source.describe(position)
        if hasattr(source, "windows"):
            length = min(3, source.num_values)
            source.windows(np.arange(source.num_values - length + 1), length)
        if getattr(source, "num_documents", 0):
            source.offsets(0, source.num_documents)
