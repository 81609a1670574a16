"""Tokenize text, check the store, and compare loading it with a memory map."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import stoker
from examples.demo.checks import Claim
from examples.demo.machine import MAX_OTHERS, Others
from stoker import prepare
from stoker.foundation.machine import usable_cores
from stoker.foundation.text import format_duration
from stoker.loader import DataLoader
from stoker.store import Store, verify
from stoker.transform.tokenizer import Tokenizer, open_tokenizer

if TYPE_CHECKING:
    from stoker.prepare.report import TokensReport, Watch

BATCH_SIZE, LENGTH, STRIDE = 32, 1024, 16
VOCAB_SIZE = 512

TORCH, STOKER = "torch with a memory map", "Stoker with the store"
NUM_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A store of tokens, and the reports of its preparation."""

    store: Store
    tokenizer: Tokenizer
    first: TokensReport
    again: TokensReport
    """Report of the same command, run a second time."""
    changed: TokensReport
    """Report of the same command, after one file changed."""
    texts: list[str]
    """The original text of the first documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speed of a loader, measured in rounds interleaved with the other's."""

    name: str
    num_workers: int
    rounds: NDArray[np.float64]
    """Batches per second of each round."""

    @property
    def batches_per_second(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.rounds))


class Crops(Dataset[dict[str, torch.Tensor]]):
    """Rows from a memory map of token ids, as commonly written for torch's loader."""

    def __init__(self, path: Path) -> None:
        self.tokens: NDArray[np.uint16] = np.memmap(path, np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1 - LENGTH) // STRIDE + 1

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.tokens[position * STRIDE : position * STRIDE + LENGTH + 1].astype(np.int64))
        return {"tokens": row[:-1], "labels": row[1:]}


def prepare_twice(folder: Path, *, out: Path, watch: Watch) -> Prepared:
    """Train a tokenizer on the texts in `folder`, build a store, and build it again."""
    shutil.rmtree(out, ignore_errors=True)  # otherwise nothing would be rebuilt
    file = out.with_name("tokenizer.json")
    prepare.tokenizer(folder, vocab_size=VOCAB_SIZE, out=file, watch=watch)
    paths = sorted(folder.iterdir())
    texts = [json.loads(line)["text"] for line in islice(paths[0].open(), 100)]
    first = prepare.tokens(folder, tokenizer=file, out=out, watch=watch)
    again = prepare.tokens(folder, tokenizer=file, out=out)
    with paths[-1].open("a") as last:
        last.write(json.dumps({"text": "the stoker has one more thing to say."}) + "\n")
    changed = prepare.tokens(folder, tokenizer=file, out=out)
    store: Store = stoker.open(out, expect={"tokenizer": file})
    return Prepared(
        store=store,
        tokenizer=open_tokenizer(file, backend="reference"),
        first=first,
        again=again,
        changed=changed,
        texts=texts,
    )


def measure(
    done: Prepared, *, num_rounds: int, round_seconds: float, advance: Callable[[], None]
) -> tuple[list[Pace], float | None]:
    """Return the speed of both loaders, inline and with workers, and the cores used by other programs."""
    crops = Crops(_memory_map(done.store))
    rows = done.store.tokens(length=LENGTH, stride=STRIDE)
    paces: list[Pace] = []
    others_cores = None
    for num_workers in (0, NUM_WORKERS):
        rounds: dict[str, list[float]] = {TORCH: [], STOKER: []}
        others = Others()
        for number in range(num_rounds):
            loaders: dict[str, Any] = {
                TORCH: TorchDataLoader(crops, batch_size=BATCH_SIZE, shuffle=True, num_workers=num_workers),
                STOKER: DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, num_workers=num_workers, seed=number),
            }
            for name in (TORCH, STOKER) if number % 2 else (STOKER, TORCH):
                rounds[name].append(_batches_per_second(loaders[name], round_seconds))
                advance()
        if not num_workers:  # workers cannot be separated from other programs
            others_cores = others.num_cores()
        paces += [Pace(name=name, num_workers=num_workers, rounds=np.array(rounds[name])) for name in rounds]
    return paces, others_cores


def _memory_map(store: Store) -> Path:
    """Write all tokens to a plain file, as nanoGPT does."""
    path = store.path.with_name("tokens.bin")
    with path.open("wb") as file:
        for start in range(0, len(store), 4096):
            values, _ = store.read_ragged("tokens", range(start, min(start + 4096, len(store))))
            values.tofile(file)
    return path


def _batches_per_second(loader: Any, seconds: float) -> float:
    """Return the speed of a loader, without its start-up."""
    batches = _endless(loader)
    with closing(batches):
        for _ in islice(batches, 8):
            pass
        count, begin = 0, perf_counter()
        while (now := perf_counter()) < begin + seconds:
            next(batches)
            count += 1
        return count / (now - begin)


def _endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        batches = iter(loader)
        try:
            yield from batches
        finally:
            if hasattr(batches, "close"):
                batches.close()
            del batches  # ends torch's workers


def token_claims(done: Prepared, paces: list[Pace], others_cores: float | None, *, is_quick: bool) -> list[Claim]:
    """Return the claims about preparing and loading tokens."""
    return [
        _text_claim(done),
        _again_claim(done),
        _damage_claim(done.store),
        _rows_claim(done.store),
        _packed_claim(done.store),
        _mixture_claim(done.store),
        _speed_claim(paces, others_cores, is_quick=is_quick),
    ]


def _text_claim(done: Prepared) -> Claim:
    report, end = done.first, done.tokenizer.identity.end_of_document
    speed = report.made_bytes / 1e6 / report.seconds
    found = [sample["tokens"] for sample in done.store.__getitems__(range(len(done.texts)))]
    holds = all(int(ids[-1]) == end for ids in found)
    holds = holds and [done.tokenizer.decode(ids[:-1]) for ids in found] == done.texts
    return Claim(
        "prepared tokens decode to the text",
        f"{report.documents:,} documents, {report.tokens:,} tokens in {format_duration(report.seconds)} "
        f"({speed:.0f} MB/s, by {report.backend}); {len(found)} decoded and compared",
        holds,
    )


def _again_claim(done: Prepared) -> Claim:
    again, changed = done.again, done.changed
    return Claim(
        "a second run rebuilds only changes",
        f"nothing to do: {format_duration(again.seconds)}; a line added to one file: {changed.num_made} of "
        f"{changed.num_pieces} pieces rebuilt, {format_duration(changed.seconds)}",
        again.is_up_to_date and changed.num_made == 1 and changed.documents == done.first.documents + 1,
    )


def _damage_claim(store: Store) -> Claim:
    """Flip one bit in a copy, and check that it is found."""
    sound = verify(store.path)
    copy = store.path.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.path, copy)
    shard = store.manifest.shards[-1]
    with open(copy / shard.file, "r+b") as file:
        file.seek(shard.num_bytes - 1)
        [last] = file.read(1)
        file.seek(shard.num_bytes - 1)
        file.write(bytes([last ^ 1]))
    damages = verify(copy).damages
    shutil.rmtree(copy)
    named = ", ".join(f"block {damage.block}" for damage in damages) or "nothing"
    return Claim(
        "a flipped bit is detected",
        f"{sound.num_blocks} blocks of 64 KiB are intact; in a copy with one bit flipped, {named} is damaged",
        sound.is_sound and [damage.file for damage in damages] == [shard.file],
    )


def _rows_claim(store: Store) -> Claim:
    crops = Crops(store.path.with_name("tokens.bin"))
    rows = store.tokens(length=LENGTH, stride=STRIDE)
    positions = np.linspace(0, len(rows) - 1, 64).astype(int).tolist()
    pairs = [(rows[position], crops[position]) for position in positions]
    holds = len(rows) == len(crops) and all(
        np.array_equal(ours[name], theirs[name]) for ours, theirs in pairs for name in ("tokens", "labels")
    )
    return Claim(
        "the same rows as from a memory map", f"{len(rows):,} rows of {LENGTH:,}, {len(pairs)} of them compared", holds
    )


def _packed_claim(store: Store) -> Claim:
    """Pack the documents into rows, and check that no token is lost."""
    begin = perf_counter()
    packed = stoker.pack(store, length=LENGTH)
    seconds = perf_counter() - begin
    counts = np.zeros(VOCAB_SIZE, np.int64)
    for batch in DataLoader(packed, batch_size=BATCH_SIZE, shuffle=True, seed=0):
        counts += np.bincount(batch["tokens"][batch["document_ids"] >= 0].numpy(), minlength=VOCAB_SIZE)
    values, lengths = store.read_ragged("tokens", range(len(store)))
    report = packed.report()
    # one document per row; a long one fills several
    alone = len(values) / (LENGTH * int((-(-lengths // LENGTH)).sum()))
    return Claim(
        "documents packed, nothing lost",
        f"{len(store):,} documents planned in {format_duration(seconds)}; {len(packed):,} rows of {LENGTH:,} are "
        f"{report.fill:.2%} full (one document per row: {alone:.1%}), each token exactly once",
        np.array_equal(counts, np.bincount(values, minlength=VOCAB_SIZE)) and report.fill > alone,
    )


def _mixture_claim(store: Store) -> Claim:
    """Mix packed and cropped rows, stop, and resume on two ranks with another batch size."""

    def loader(batch_size: int, rank: int = 0, num_ranks: int = 1) -> DataLoader[Any]:
        web, code = stoker.pack(store, length=LENGTH), stoker.pack(store, length=LENGTH, seed=1)
        mixture = stoker.mix({"web": (web, 0.7), "code": (code, 0.3)}, stop="all_exhausted")
        return DataLoader(mixture, batch_size=batch_size, rank=rank, num_ranks=num_ranks)

    first = loader(16)
    worst, seen = 0.0, 0
    with closing(iter(first)) as batches:
        for batch in islice(batches, 20):
            seen += len(batch["tokens"])
            worst = max(worst, abs(first.counts["code"] - 0.3 * seen))
        state = json.loads(json.dumps(first.state_dict()))
        expected = torch.cat([batch["tokens"] for batch in islice(batches, 5)])
    ranks = [loader(5, rank, 2) for rank in range(2)]
    shares = []
    for rank in ranks:
        rank.load_state_dict(state)
        with closing(iter(rank)) as batches:
            shares.append(torch.cat([batch["tokens"] for batch in islice(batches, 8)]))
    resumed = torch.stack(shares, dim=1).flatten(0, 1)
    return Claim(
        "mixture exact, resumed on two ranks",
        f"after each of 20 steps, 0.3 of the rows came from the second source to within {worst:.1f} rows; stopped "
        f"there and resumed on 2 ranks with batches of 5 instead of 16: the same rows",
        worst <= 1 and torch.equal(resumed, expected),
    )


def _speed_claim(paces: list[Pace], others_cores: float | None, *, is_quick: bool) -> Claim:
    """Compare the two loaders. Whether that is judged is decided by the circumstances, never by the outcome."""
    speeds, ratios = [], []
    for num_workers in (0, NUM_WORKERS):
        theirs, ours = (pace.batches_per_second for pace in paces if pace.num_workers == num_workers)
        ratios.append(ours / theirs)
        where = f"{num_workers} workers" if num_workers else "inline"
        speeds.append(f"{where} {theirs:,.0f} to {ours:,.0f} batches/s ({ratios[-1]:.1f}x)")
    doubt = None
    if len(usable_cores()) < 2:
        doubt = "there is only one core"
    elif is_quick:
        doubt = "the rounds are too short"
    elif (others_cores or 0.0) > MAX_OTHERS:
        doubt = f"other programs kept {others_cores:.1f} cores busy"
    seen = "; ".join(speeds)
    return Claim(
        "faster than a memory map",
        f"{seen}; not judged: {doubt}" if doubt else seen,
        None if doubt else min(ratios) > 1,
    )
