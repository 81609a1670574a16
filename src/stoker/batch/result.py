"""A built batch, and how it travels from a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker.batch.ledger import Skipped
from stoker.plan import Recipe

BuildTimes = tuple[float, float, float, float, float]
"""When building began and ended, then seconds of reading, transforming and collating."""

IN_PROCESS = (-1.0, 0.0, 0.0)
"""The handover of a batch that was built in the trainer's process."""


class BatchResult(NamedTuple):
    """A batch, with what is noted when it is handed over."""

    recipe: Recipe
    batch: Any
    skipped: Sequence[Skipped]
    stream: dict[str, Any] | None
    """Where the stream is after this batch."""
    times: BuildTimes
    handover: tuple[float, float, float] = IN_PROCESS
    """The worker, when the batch was sent, and how many seconds it took to unpack."""


class EndOfStream(NamedTuple):
    """Comes instead of a batch when the reader of a stream has no more."""

    part: int
    state: Any
    """Where a dataset that stays with its worker is now, at the beginning of its next epoch."""


EncodedBatch = tuple[Any, bytes, BuildTimes]
"""A batch, the pickled rest of its result, and its times."""

_NO_TIMES: BuildTimes = (0.0, 0.0, 0.0, 0.0, 0.0)


def encode_result(result: BatchResult | EndOfStream) -> EncodedBatch:
    """Return a result as it leaves a worker: the batch apart from its notes, whose arrays are kept for long and must
    not keep the batch's slot. The recipe stays with whoever asked, except for streams.
    """
    if isinstance(result, EndOfStream):
        return None, pickle.dumps(result), _NO_TIMES
    if result.stream is None:
        return result.batch, pickle.dumps(result.skipped) if result.skipped else b"", result.times
    return result.batch, pickle.dumps(result._replace(batch=None)), result.times
