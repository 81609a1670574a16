"""The order of the samples in an epoch.

The samples of an epoch have *ordinals*, counted from 0 in the order they are served. An order maps ordinals to
positions in the dataset, and back. Each epoch has another order, made from (seed, epoch).
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
        """Its name in a state and on the command line."""
        ...

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the positions at `ordinals`."""
        ...

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the ordinals of `positions`."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """The order of the dataset."""

    name: ClassVar[str] = "sequential"

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:  # noqa: ARG002
        """Return the positions at `ordinals`."""
        return ordinals

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:  # noqa: ARG002
        """Return the ordinals of `positions`."""
        return positions


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A uniform shuffle of all samples."""

    name: ClassVar[str] = "shuffle"

    def positions(self, ordinals: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the positions at `ordinals`."""
        return permutation(num_samples, derived_key(seed, epoch)).forward(ordinals)

    def ordinals(self, positions: Indices, *, epoch: int, num_samples: int, seed: int) -> Indices:
        """Return the ordinals of `positions`."""
        return permutation(num_samples, derived_key(seed, epoch)).inverse(positions)


@dataclass(frozen=True, slots=True)
class Window:
    """A near-sequential shuffle: of whole blocks, and then of the samples inside a window of several blocks.

    At any time only the blocks of one window are read, each to its end, so a disk or an object store gets
    `size` / `block` sequential reads instead of one per sample.
    """

    name: ClassVar[str] = "window"

    size: int = 65536
    """Samples in a window: the farthest that two neighboring samples may be moved apart."""
    block: int = 1024
    """Samples in a block: neighbors on disk that are read in the same window."""

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
    """The permuted blocks of one epoch.

    All blocks have `block` samples except the last of the data, which may be shorter by `gap`. The arithmetic treats it
    as full: a `place` is an ordinal plus `gap` if it comes after the missing samples. Wherever the short block lands,
    its missing samples are taken out of that window: from `gap_at` on, positions inside the window are shifted by
    `gap`.
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
        # inside its window, where the samples of the short block end
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
    """Return the order of a name, or the order itself."""
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
    """Return an order as plain values, for a state."""
    return {"name": order.name, **(asdict(order) if is_dataclass(order) else {"is": repr(order)})}


def order_from_dict(table: dict[str, Any]) -> Order:
    """Return the order in a state; raise ValueError if its name is unknown."""
    settings = dict(table)
    kind = ORDERS.get(settings.pop("name", ""))
    if kind is None:
        raise ValueError(f"the order {table!r} is not known")
    return kind(**settings)
