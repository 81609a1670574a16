"""Which sample, when, for which rank: arithmetic, no I/O, no torch."""

from __future__ import annotations

from stoker.plan.digest import added, digests
from stoker.plan.mixing import derived_key
from stoker.plan.order import Order, Sequential, Shuffle, Window, order_from_dict, order_named
from stoker.plan.permutation import Permutation, permutation
from stoker.plan.plan import Layout, Origin, Place, Plan, Recipe, Tail

__all__ = [
    "Layout",
    "Order",
    "Origin",
    "Permutation",
    "Place",
    "Plan",
    "Recipe",
    "Sequential",
    "Shuffle",
    "Tail",
    "Window",
    "added",
    "derived_key",
    "digests",
    "order_from_dict",
    "order_named",
    "permutation",
]
