"""The claims of the demo, with their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import torch

from examples.demo.data import Shapes
from examples.demo.machine import MAX_OTHERS
from examples.demo.training import Run
from stoker.foundation.machine import usable_cores
from stoker.loader import DataLoader
from stoker.plan import Window, added
from stoker.source import Lines

MIN_STEPS = 50
"""Minimum steps to judge a speed: the first ones fill the loader."""

WINDOW = Window(size=2048, block=128)


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, its evidence, and whether it held."""

    text: str
    evidence: str
    holds: bool | None
    """None: not judged, for the reason given in the evidence."""


def training_claims(inline: Run, overlapped: Run) -> list[Claim]:
    """Return the claims about the two training runs."""
    few = max(1, len(inline.losses) // 10)
    first, last = inline.losses[:few].mean(), inline.losses[-few:].mean()
    return [
        _speed_claim(inline, overlapped),
        Claim(
            "threads do not change batches",
            f"{len(inline.losses)} losses, bit-identical inline and overlapped",
            inline.losses.tolist() == overlapped.losses.tolist(),
        ),
        Claim("the model learns", f"loss {first:.2f} to {last:.2f}", bool(last < first)),
    ]


def _speed_claim(inline: Run, overlapped: Run) -> Claim:
    """Compare the two speeds. Conditions decide whether the claim is judged, never the outcome."""
    ratio = overlapped.images_per_second / inline.images_per_second
    seen = (
        f"{inline.images_per_second:,.0f} to {overlapped.images_per_second:,.0f} images/s ({ratio:.2f}x), "
        f"waiting {inline.wait_share:.0%} to {overlapped.wait_share:.0%} of the time"
    )
    others = max(run.others_cores or 0.0 for run in (inline, overlapped))
    doubt = None
    if len(usable_cores()) < 2:
        doubt = "there is only one core"
    elif len(inline.losses) < MIN_STEPS:
        doubt = f"{len(inline.losses)} steps are too few"
    elif others > MAX_OTHERS:
        doubt = f"other programs kept {others:.1f} cores busy"
    holds = None if doubt else overlapped.images_per_second > inline.images_per_second
    return Claim("overlapped loading is faster", f"{seen}; not judged: {doubt}" if doubt else seen, holds)


def resume_claims(dataset: Shapes, *, state_path: Path) -> list[Claim]:
    """Stop in mid-epoch, resume with another batch size and number of threads, and compare with a whole epoch."""
    whole = _image_loader(dataset, batch_size=64, num_threads=2)
    expected = _pixels(whole)

    before = _image_loader(dataset, batch_size=64, num_threads=2)
    num_steps = len(before) * 2 // 5
    batches = iter(before)
    seen = _pixels(islice(batches, num_steps))
    batches.close()
    state_path.write_text(json.dumps(before.state_dict(), indent=2))

    after = _image_loader(dataset, batch_size=48, num_threads=1)
    after.load_state_dict(json.loads(state_path.read_text()))
    seen = added(seen, _pixels(after))
    return [
        Claim(
            "resume in mid-epoch is exact",
            f"stopped at step {num_steps}, resumed with batches of 48 instead of 64; "
            f"digest {_compare(_digest(after), _digest(whole))}",
            _digest(after) == _digest(whole),
        ),
        Claim(
            "resume is exact to the pixel",
            f"{len(dataset):,} images decoded and augmented, checksum {_compare(f'{seen:016x}', f'{expected:016x}')}",
            seen == expected,
        ),
    ]


def rank_claims(corpus: Lines) -> list[Claim]:
    """Read the corpus in windows on one rank, then on two, and compare."""
    begin = perf_counter()
    alone = _sentences(corpus, batch_size=256, rank=0, num_ranks=1)
    batches = [_ids(batch) for batch in alone]
    ids = [number for batch in batches for number in batch]
    seconds = perf_counter() - begin
    pair = [_sentences(corpus, batch_size=128, rank=rank, num_ranks=2) for rank in range(2)]
    shares = [[_ids(batch) for batch in loader] for loader in pair]
    num_steps = [len(share) for share in shares]  # counted, not computed
    together = f"{added(*(int(_digest(loader), 16) for loader in pair)):016x}"
    near = {number // WINDOW.block for number in ids[: WINDOW.size // 2]}
    num_blocks = -(-len(corpus) // WINDOW.block)
    return [
        Claim(
            "window order: each once, reads are local",
            f"{len(ids):,} lines once each, the first {WINDOW.size // 2:,} from {len(near)} of {num_blocks} blocks; "
            f"{len(ids) / seconds:,.0f} lines/s",
            sorted(ids) == list(range(len(corpus))) and ids != sorted(ids) and len(near) <= WINDOW.size // WINDOW.block,
        ),
        Claim(
            "2 ranks yield the same samples as 1",
            f"digests {' + '.join(_digest(loader) for loader in pair)} = {together}, one rank's {_digest(alone)}",
            together == _digest(alone)
            and sorted(number for share in shares for batch in share for number in batch) == sorted(ids),
        ),
        Claim(
            "equal steps on every rank",
            f"{num_steps[0]} and {num_steps[1]}, and {len(batches)} on one rank",
            num_steps == [len(batches)] * 2,
        ),
    ]


def stream_claim(corpus: Lines) -> Claim:
    """Read the corpus as a stream sharded across two worker processes."""
    begin = perf_counter()
    loader = DataLoader(corpus.stream(), batch_size=256, num_workers=2, shard="auto")
    ids = [number for batch in loader for number in _ids(batch)]
    seconds = perf_counter() - begin
    return Claim(
        "a stream is sharded across workers",
        f"2 processes, {len(ids):,} lines once each; {len(ids) / seconds:,.0f} lines/s, including worker start-up",
        sorted(ids) == list(range(len(corpus))),
    )


def _image_loader(dataset: Shapes, *, batch_size: int, num_threads: int) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, seed=2, num_threads=num_threads)


def _sentences(corpus: Lines, *, batch_size: int, rank: int, num_ranks: int) -> DataLoader[dict[str, Any]]:
    return DataLoader(corpus, batch_size=batch_size, order=WINDOW, seed=3, rank=rank, num_ranks=num_ranks)


def _compare(seen: str, expected: str) -> str:
    return f"{seen}, same as uninterrupted" if seen == expected else f"{seen}, uninterrupted {expected}"


def _digest(loader: DataLoader[Any]) -> str:
    digest: str = loader.state_dict()["digest"]
    return digest


def _pixels(batches: Iterable[list[torch.Tensor]]) -> int:
    """Return a checksum of all images, independent of batching."""
    total = 0
    for images, _ in batches:
        for image in images.numpy():
            total = added(total, crc32(image))
    return total


def _ids(batch: dict[str, Any]) -> list[int]:
    ids: list[int] = batch["id"].tolist()
    return ids
