"""The verdicts: one module each, which names the verdict, decides whether it holds, and words evidence and advice."""

from __future__ import annotations

from stoker.lab.diagnose.diagnosis import VerdictKind
from stoker.lab.diagnose.verdicts import (
    collate_bound,
    compute_bound,
    copy_bound,
    decode_bound,
    duplicated_data,
    memory_growth,
    noisy_neighbour,
    nothing_seen,
    python_bound,
    slow_rank,
    start_up_bound,
    storage_bound,
    transport_bound,
)

VERDICTS: dict[str, VerdictKind] = {
    module.VERDICT.name: module.VERDICT
    for module in (
        compute_bound,
        storage_bound,
        decode_bound,
        python_bound,
        collate_bound,
        transport_bound,
        copy_bound,
        noisy_neighbour,
        start_up_bound,
        memory_growth,
        slow_rank,
        duplicated_data,
        nothing_seen,
    )
}
"""All verdicts by name, in the order of the guide. A run gets one of them."""
