"""The documents of a store in another order: the second pass of a preparation that shuffles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.plan import permutation
from stoker.prepare.encoding import COLUMN
from stoker.prepare.pieces import key_of
from stoker.prepare.worker_pool import Cell
from stoker.store import Build, Store, open_store

_READ_VALUES = 1 << 20
"""Tokens that are read at a time, about."""


@dataclass(frozen=True, slots=True)
class Share:
    """A piece of the shuffled store: documents `start` to before `stop` of the new order."""

    start: int
    stop: int
    num_bytes: int
    """How much text that is, about."""
    key: str


def shares(keys: Sequence[str], *, num_documents: int, text_bytes: int, piece_bytes: int, seed: int) -> list[Share]:
    """Return the pieces of a shuffled store, each of about `piece_bytes` of text; `keys` are those of the plain one."""
    num_shares = max(1, min(num_documents, -(-text_bytes // piece_bytes)))
    whole = key_of(list(keys), num_documents, seed, num_shares)
    found = []
    for number in range(num_shares):
        start, stop = (num_documents * border // num_shares for border in (number, number + 1))
        size = text_bytes * stop // num_documents - text_bytes * start // num_documents
        found.append(Share(start, stop, size, key_of(whole, number)))
    return found


class Shuffling:
    """Writes shares: each document where the seed puts it, whoever writes."""

    def __init__(self, build: Build, *, source: Path, num_documents: int, seed: int) -> None:
        self._build, self._source, self._num_documents, self._seed = build, source, num_documents, seed
        self._store: tuple[int, Store] | None = None
        """With the process that has opened it."""

    def __call__(self, share: Share, cell: Cell) -> dict[str, Any]:
        """Write the shards of a share and return its notes."""
        store = self._opened()
        order = permutation(self._num_documents, self._seed)
        num_values = sum(shard.values[COLUMN] for shard in store.manifest.shards)
        step = max(1, _READ_VALUES * self._num_documents // max(1, num_values))
        num_documents, num_tokens = share.stop - share.start, 0
        with self._build.piece(share.key) as writer:
            for start in range(share.start, share.stop, step):
                stop = min(share.stop, start + step)
                values, lengths = store.read_ragged(COLUMN, order.forward(np.arange(start, stop, dtype=np.int64)))
                writer.extend({COLUMN: (values, lengths)})
                num_tokens += len(values)
                done = stop - share.start
                cell[:] = (done, num_tokens, share.num_bytes * done // num_documents)
            writer.notes.update(documents=num_documents, tokens=num_tokens)
        return writer.notes

    def _opened(self) -> Store:
        """Return the store that is read, opened once in each process: its blocks are then checked once, too."""
        if self._store is None or self._store[0] != os.getpid():
            self._store = os.getpid(), open_store(self._source)
        return self._store[1]
