"""Which share of the data a process reads, and which ranks share it: what rank, num_ranks, distributed and mesh say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.loader.arguments import Arguments
from stoker.loader.sharing.ranks import resolved_ranks

if TYPE_CHECKING:
    from stoker.loader.sharing.context_parallel import SequencePart
    from stoker.loader.sharing.mesh import ResolvedMesh


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """This process reads share `rank` of `num_ranks`. With a mesh, other ranks may read the same share."""

    rank: int = 0
    num_ranks: int = 1
    mesh: ResolvedMesh | None = None

    @property
    def has_peers(self) -> bool:
        """Whether other ranks read the very same batches."""
        return self.mesh is not None and self.mesh.num_peers > 1

    @property
    def is_set(self) -> bool:
        """Whether the user has said which share this rank reads, so that a trainer may not."""
        return self.num_ranks > 1 or self.has_peers

    @property
    def part(self) -> SequencePart | None:
        """The function that takes this rank's part of every sequence of a batch; None if it gets them whole."""
        return None if self.mesh is None else self.mesh.part

    def state(self) -> dict[str, Any]:
        """Return the entries of a loader's state that describe its mesh. They are the same on all ranks."""
        if self.mesh is None:
            return {"mesh": None, "split_sequence": None}
        from stoker.loader.sharing.mesh import mesh_state

        return mesh_state(self.mesh)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `StateMismatch` if sequences were split in another order than by this mesh."""
        if self.mesh is not None:
            from stoker.loader.sharing.mesh import check_mesh_state

            check_mesh_state(state, self.mesh)


def find_placement(arguments: Arguments) -> RankPlacement:
    """Return the placement that the arguments of a loader describe, from torch.distributed or the launcher if asked."""
    if arguments.mesh is None:
        rank, num_ranks = resolved_ranks(arguments.rank, arguments.num_ranks, distributed=arguments.distributed)
        return RankPlacement(rank, num_ranks)
    from stoker.loader.sharing.mesh import check_samplers, resolved_mesh

    mesh = resolved_mesh(
        arguments.mesh, rank=arguments.rank, num_ranks=arguments.num_ranks, in_order=arguments.in_order
    )
    check_samplers(mesh, arguments.sampler, arguments.batch_sampler)
    return RankPlacement(mesh.rank, mesh.num_ranks, mesh)
