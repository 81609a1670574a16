"""In which order the samples of an epoch come.

An epoch is a row of *ordinals*, counted from 0; an order says which sample's position has which ordinal, and back.
Each epoch has an order of its own, made from (seed, epoch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.plan.mixing import derived_key
from stoker.plan.permutation import permutation

Indices = NDArray[np.int64]


class Order(Protocol):
    """A bijection between ordinals and positions for every (seed, epoch), evaluated on demand."""

    @property
    def name(self) -> str:
        """The word for it in a state and on the command line."""
        ...

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the positions at `ordinals`."""
        ...

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the ordinals of `positions`."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """As the samples lie."""

    name: ClassVar[str] = "sequential"

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:  # noqa: ARG002
        """Return the positions at `ordinals`."""
        return ordinals

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:  # noqa: ARG002
        """Return the ordinals of `positions`."""
        return positions


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Every order equally likely, over all samples."""

    name: ClassVar[str] = "shuffle"

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the positions at `ordinals`."""
        return permutation(num_samples, derived_key(seed, epoch)).forward(ordinals)

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the ordinals of `positions`."""
        return permutation(num_samples, derived_key(seed, epoch)).inverse(positions)


@dataclass(frozen=True, slots=True)
class Window:
    """Near-sequential: whole blocks are shuffled, then the samples inside a window of several blocks.

    At any time only the blocks of one window are being read, and each is read to its end, so that a disk or an object
    store sees `size` / `block` long runs instead of single samples.
    """

    name: ClassVar[str] = "window"

    size: int = 65536
    """Samples in a window: how far apart two samples that lie together may come to be."""
    block: int = 1024
    """Samples in a block: how many neighbours on disk are read in one window."""

    def __post_init__(self) -> None:
        if self.block < 1 or self.size < self.block or self.size % self.block:
            raise ArgumentError(
                f"a window of {self.size} samples cannot be cut into blocks of {self.block}",
                hint="choose Window(size=..., block=...) with size a multiple of block, both at least 1",
            )

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the positions at `ordinals`."""
        return _layout(self, epoch, num_samples, seed).positions(np.asarray(ordinals, dtype=np.int64))

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the ordinals of `positions`."""
        return _layout(self, epoch, num_samples, seed).ordinals(np.asarray(positions, dtype=np.int64))


@lru_cache(maxsize=64)
def _layout(window: Window, epoch: int, num_samples: int, seed: int) -> _WindowLayout:
    return _WindowLayout(window, epoch=epoch, num_samples=num_samples, seed=seed)


class _WindowLayout:
    """Where the blocks of one epoch lie.

    All blocks have `block` samples but the last of the data, which may be shorter by `gap`. The arithmetic is done as
    if it were full: `place` counts ordinals with the gap left in, and whatever comes behind the gap is moved by it.
    """

    def __init__(self, window: Window, *, epoch: int, num_samples: int, seed: int) -> None:
        self.size, self.block = window.size, window.block
        self.num_samples = num_samples
        self.num_blocks = -(-num_samples // self.block)
        self.gap = self.num_blocks * self.block - num_samples
        self.key = derived_key(seed, epoch, self.size, self.block)
        self.blocks = permutation(self.num_blocks, self.key)
        last = int(self.blocks.inverse(np.array([self.num_blocks - 1]))[0])
        self.gap_window = last * self.block // self.size
        self.gap_window_end = min((self.gap_window + 1) * self.size, self.num_blocks * self.block) - self.gap
        # inside its window, the short block's samples end here and the gap begins
        self.gap_at = last * self.block - self.gap_window * self.size + self.block - self.gap

    def window_size(self, window: int) -> int:
        whole = min((window + 1) * self.size, self.num_blocks * self.block) - window * self.size
        return whole - self.gap if window == self.gap_window else whole

    def positions(self, ordinals: Indices) -> Indices:
        places = ordinals + self.gap * (ordinals >= self.gap_window_end)
        windows = places // self.size
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            inside = places[chosen] - window * self.size
            inside = permutation(self.window_size(window), derived_key(self.key, window)).forward(inside)
            if window == self.gap_window:
                inside += self.gap * (inside >= self.gap_at)
            found[chosen] = inside + window * self.size
        blocks: Indices = self.blocks.forward(found // self.block)
        positions: Indices = blocks * self.block + found % self.block
        return positions

    def ordinals(self, positions: Indices) -> Indices:
        places = self.blocks.inverse(positions // self.block) * self.block + positions % self.block
        windows = places // self.size
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            inside = places[chosen] - window * self.size
            if window == self.gap_window:
                inside -= self.gap * (inside >= self.gap_at)
            inside = permutation(self.window_size(window), derived_key(self.key, window)).inverse(inside)
            found[chosen] = inside + window * self.size
        ordinals: Indices = found - self.gap * (windows > self.gap_window)
        return ordinals


ORDERS: dict[str, type[Sequential] | type[Shuffle] | type[Window]] = {
    kind.name: kind for kind in (Sequential, Shuffle, Window)
}


def order_named(order: str | Order) -> Order:
    """Return the order that a word or a value stands for."""
    if not isinstance(order, str):
        if not all(hasattr(order, name) for name in ("name", "positions", "ordinals")):
            raise ArgumentError(f"order={order!r} is not an order", hint=f"choose one of {', '.join(ORDERS)}")
        return order
    if order not in ORDERS:
        raise ArgumentError(
            f"order={order!r} is not known",
            hint=f"choose one of {', '.join(ORDERS)}, or stoker.Window(size=..., block=...)",
        )
    return ORDERS[order]()


def order_to_dict(order: Order) -> dict[str, Any]:
    """Return what makes up `order` as plain values, for a state."""
    return {"name": order.name, **(asdict(order) if is_dataclass(order) else {"is": repr(order)})}


def order_from_dict(table: dict[str, Any]) -> Order:
    """Return the order that `told` has told; ValueError if it is none of ours."""
    settings = dict(table)
    kind = ORDERS.get(settings.pop("name", ""))
    if kind is None:
        raise ValueError(f"the order {table!r} is not known")
    return kind(**settings)
