"""Lines: JSONL files as samples, addressed by position, shuffled in windows, or streamed and shared among workers."""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker import DataLoader, Lines, Window

NUM_FILES, PER_FILE = 3, 4000


def write(folder: Path) -> list[Path]:
    paths = [folder / f"part-{number}.jsonl" for number in range(NUM_FILES)]
    for number, path in enumerate(paths):
        first = number * PER_FILE
        rows = [{"id": at, "text": f"sentence number {at}"} for at in range(first, first + PER_FILE)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def main(folder: Path) -> None:
    lines = Lines(write(folder), index_dir=folder / "index")
    everything = list(range(NUM_FILES * PER_FILE))
    print(f"addressed: {len(lines)} lines, number 5000 is {lines[5000]} ({Path(lines.describe(5000)).name})")
    assert lines[5000]["id"] == 5000

    # Near-sequential for disks: blocks of 100 lines are shuffled, then the lines inside windows of 1000.
    shuffled = ids(DataLoader(lines, batch_size=64, order=Window(size=1000, block=100), seed=1))
    num_blocks = len({number // 100 for number in shuffled[:1000]})
    print(f"window:    starts {shuffled[:6]}; the first 1000 lines lie in {num_blocks} blocks of 100")
    assert sorted(shuffled) == everything
    assert num_blocks == 10

    # As a stream: no index, read from start to end; two worker processes share it, every line comes once.
    streamed = ids(DataLoader(lines.stream(), batch_size=64, num_workers=2, shard="auto"))
    print(f"stream:    {len(streamed)} lines from two workers, each once")
    assert sorted(streamed) == everything


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
