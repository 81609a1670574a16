"""Meshes: which ranks of a launch load the same data, and which share of it.

A launcher numbers processes from 0 to the world size. With tensor, context or pipeline parallelism some of them work on
the same batch: the mesh says which. Its dimensions are data-parallel (their ranks train on different samples) or not
(their ranks share a batch). The loader's rank is the rank among data-parallel groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, StateMismatch
from stoker.loader.sharing.context_parallel import SequenceOrder, SequencePart, SequenceSplit, sequence_split
from stoker.loader.sharing.ranks import NOT_LAUNCHED, launched_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA_NAMES = frozenset(
    {
        "dp",  # torch, Megatron, torchtitan, torchtune, NeMo
        "data",  # data_parallel: Lightning, DeepSpeed, NeMo; data: JAX
        "batch",  # torchtitan's mesh for data loading
        "ddp",  # verl
        "fsdp",  # torch, verl
        "replicate",  # torch's hybrid sharding
        "shard",
        "dp_replicate",  # torchtitan, Accelerate, torchtune, NeMo
        "dp_shard",
        "dp_shard_mod_ep",  # torchtitan with expert parallelism
        "dp_shard_in_ep",
    }
)
"""Dimensions whose ranks train on different samples, without "_parallel" at the end."""

MODEL_NAMES = frozenset(
    {
        *("tp", "tensor", "tensor_model", "mp", "model"),
        *("pp", "pipeline", "pipeline_model", "pipe", "stage"),
        *("cp", "context", "sp", "sequence", "seq", "ulysses", "ring"),
    }
)
"""Dimensions whose ranks work on the same batch."""

CONTEXT_NAMES = frozenset({"cp", "context"})
"""Dimensions over which sequences are split. "sp" is not among them: it stands for other things, too."""

EXPERT_NAMES = frozenset({"ep", "expert", "etp", "edp", "efsdp"})
"""Expert parallelism. Most frameworks lay it over data-parallel ranks, some give it a dimension of its own."""

_DATA, _MODEL, _JOINED, _UNKNOWN = "data", "model", "joined", "unknown"


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of ranks, for `DataLoader(mesh=...)`. A `DeviceMesh` or a dict by itself is short for `Mesh` of it.

    Names of dimensions are understood by convention: dp, data, ddp, fsdp, replicate, shard, dp_replicate, dp_shard and
    batch are data-parallel; tp, pp, cp, sp, tensor, pipeline, context, sequence and model are not. All with or without
    "_parallel" at the end. Other names, "ep" for one, need `data=`. A dimension of size 1 may have any name.
    """

    mesh: DeviceMesh | Mapping[str, int]
    """A torch `DeviceMesh`, or part of one; or sizes by name, in the launcher's order: the last dimension varies
    fastest, as in `init_device_mesh`."""
    data: str | int | Sequence[str | int] | None = None
    """The data-parallel dimensions, by name, or by index if they have none. None: by convention. (): none of them, so
    that all ranks get the same batches."""
    context: str | int | None = None
    """The context-parallel dimension. None: the one called cp or context, if there is one."""
    split_sequence: SequenceSplit | SequenceOrder | None = None
    """Give each context-parallel rank its part of every sequence, in this order. None: all of the sequence."""
    rank: int | None = None
    """The rank of this process in the whole mesh, for sizes without a launcher. None: as found for
    `distributed=True`."""

    def __post_init__(self) -> None:
        names, sizes = _dimensions(self.mesh)
        if self.split_sequence is not None:
            object.__setattr__(self, "split_sequence", sequence_split(self.split_sequence))
        data = None if self.data is None else _chosen(self.data, names, "data")
        if self.context is not None:
            (context,) = _chosen(self.context, names, "context")
            if data is not None and context in data:
                raise ArgumentError(
                    f"dimension {context!r} is named in data= and in context=, and can be only one of them",
                    hint="context-parallel ranks share a batch: leave it out of data=",
                )
        if self.rank is None:
            return
        if not isinstance(self.mesh, Mapping):
            raise ArgumentError(
                f"rank={self.rank!r} cannot be used with a DeviceMesh, which knows its rank", hint="leave out rank="
            )
        num_ranks = math.prod(sizes)
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 <= self.rank < num_ranks:
            raise ArgumentError(
                f"rank must be from 0 to {num_ranks - 1} in a mesh of {_shown(names, sizes)}, got {self.rank!r}",
                hint="pass the global rank of this process, or leave it out to have it found",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedMesh:
    """What a loader needs to know of a mesh: plain numbers, which can be pickled, unlike a `DeviceMesh`."""

    rank: int
    """The rank of this process among data-parallel groups."""
    num_ranks: int
    """The number of data-parallel groups: ranks that train on different samples."""
    sizes: Mapping[str, int]
    coordinates: tuple[int, ...]
    """Where this process is in the mesh, a number for each dimension."""
    data: tuple[str, ...]
    """The data-parallel dimensions, in the order of the mesh."""
    context: str | None = None
    context_rank: int = 0
    num_context_ranks: int = 1
    split_sequence: SequenceSplit | None = None

    @property
    def num_peers(self) -> int:
        """The number of ranks that share each batch, this one among them."""
        return math.prod(self.sizes.values()) // self.num_ranks

    @property
    def is_first_peer(self) -> bool:
        """Whether this is the first of the ranks that share its batches: the one to report for all of them."""
        return not any(at for name, at in zip(self.sizes, self.coordinates) if name not in self.data)

    @property
    def part(self) -> SequencePart | None:
        """The function that takes this rank's part of a batch; None if it gets the whole batch."""
        if self.split_sequence is None or self.num_context_ranks == 1:
            return None
        return SequencePart(self.split_sequence, self.context_rank, self.num_context_ranks)

    def columns(self, length: int) -> NDArray[np.int64]:
        """Return which columns of a sequence this rank has, in its order; all of them if sequences are not split."""
        if self.split_sequence is None:
            return np.arange(length)
        return self.split_sequence.columns(length, rank=self.context_rank, num_ranks=self.num_context_ranks)


def resolved_mesh(
    mesh: Any,
    *,
    rank: int | None = None,
    num_ranks: int | None = None,
    in_order: bool = True,
) -> ResolvedMesh:
    """Return what a loader's `mesh=` means for this process.

    The other arguments are the loader's own, which are refused where they contradict the mesh. `distributed=True` does
    not: it finds the rank where a mesh finds it.
    """
    chosen = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
    names, sizes = _dimensions(chosen.mesh)
    coordinates = _coordinates(chosen, names, sizes)
    data = _data_dimensions(chosen, names, sizes)
    context = _context_dimension(chosen, names, data)
    at = dict(zip(names, coordinates))
    size_of = dict(zip(names, sizes))
    data_rank, num_groups = 0, 1
    for name in data:  # row-major, as torch flattens dimensions
        data_rank, num_groups = data_rank * size_of[name] + at[name], num_groups * size_of[name]
    found = ResolvedMesh(
        rank=data_rank,
        num_ranks=num_groups,
        sizes=size_of,
        coordinates=coordinates,
        data=data,
        context=context,
        context_rank=0 if context is None else at[context],
        num_context_ranks=1 if context is None else size_of[context],
        split_sequence=None if chosen.split_sequence is None else sequence_split(chosen.split_sequence),
    )
    for argument, given, ours in (("rank", rank, found.rank), ("num_ranks", num_ranks, found.num_ranks)):
        if given is not None and given != ours:
            raise ArgumentError(
                f"{argument}={given} contradicts mesh=, by which this process is data-parallel rank {found.rank} of "
                f"{found.num_ranks}",
                hint="leave out rank and num_ranks; without a launcher, stoker.Mesh(sizes, rank=...) takes the rank in "
                "the whole mesh",
            )
    if not in_order and found.num_peers > 1:
        raise ArgumentError(
            f"in_order=False gives batches as they are completed, so the {found.num_peers} ranks of the mesh that "
            "share a batch would get different ones",
            hint="leave out in_order=False",
        )
    return found


def check_samplers(mesh: ResolvedMesh, *samplers: Any) -> None:
    """Refuse samplers that are known to give ranks that share a batch different positions."""
    if mesh.num_peers == 1:
        return
    from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    for sampler in (*samplers, *(getattr(sampler, "sampler", None) for sampler in samplers)):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            fault = f"gives rank {sampler.rank} of {sampler.num_replicas} positions of its own"
            way_out = ""
        elif isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler) and (
            sampler.generator is None
        ):
            fault = "draws from torch's global generator, which each process has its own of"
            way_out = ", or give the sampler a generator that has the same seed on all ranks"
        else:
            continue
        raise ArgumentError(
            f"the {mesh.num_peers} ranks of the mesh that share a batch would get different ones: "
            f"{type(sampler).__name__} {fault}",
            hint=f"leave out the sampler and pass shuffle=True{way_out}",
        )


# ------------------------------------------------------------ state


def mesh_state(mesh: ResolvedMesh) -> dict[str, Any]:
    """Return the entries of a loader's state that describe its mesh. They are the same on all ranks.

    Without a dict in them: torch.distributed.checkpoint looks for every key of a dict, so a state with other dimensions
    could not be read.
    """
    return {"mesh": [[name, size] for name, size in mesh.sizes.items()], "split_sequence": _order(mesh)}


def check_mesh_state(state: Mapping[str, Any], mesh: ResolvedMesh) -> None:
    """Raise `StateMismatch` if a loader with this mesh would not go on with the data of `state`.

    Which samples are in a step follows from the plan alone, so sizes and dimensions may change freely, and the sequence
    may be split where it was not, or no longer be. Only another order of the same split is refused: a model made for
    one order trains on the other without an error, with its tokens in the wrong places.
    """
    theirs, ours = state.get("split_sequence"), _order(mesh)
    if None not in (theirs, ours) and theirs != ours:
        raise StateMismatch({"split_sequence": (theirs, ours)})


def _order(mesh: ResolvedMesh) -> str | None:
    return None if mesh.part is None else mesh.part.split.order


# ------------------------------------------------------------ dimensions


def _dimensions(mesh: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return names and sizes. Dimensions of a `DeviceMesh` without names are called by their index."""
    if isinstance(mesh, Mapping):
        for name, size in mesh.items():
            if not isinstance(name, str) or isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ArgumentError(
                    f"the sizes of a mesh must be positive integers by name, got {name!r}: {size!r}",
                    hint='for example mesh={"dp": 4, "tp": 2}, the last dimension being the one that varies fastest',
                )
        if not mesh:
            raise ArgumentError("the mesh must have at least one dimension, got {}", hint='for example {"dp": 8}')
        return tuple(mesh), tuple(mesh.values())
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(
            f"mesh must be a torch DeviceMesh, a dict of sizes or a stoker.Mesh, got {type(mesh).__name__}",
            hint='for example mesh=init_device_mesh(...), or mesh={"dp": 4, "tp": 2}',
        )
    sizes = tuple(int(size) for size in mesh.mesh.shape)
    return tuple(mesh.mesh_dim_names or map(str, range(len(sizes)))), sizes


def _chosen(given: Any, names: tuple[str, ...], argument: str) -> tuple[str, ...]:
    """Return the names of the dimensions that an argument gives, in the order of the mesh."""
    items = (given,) if isinstance(given, str | int) else given
    is_list = isinstance(items, Sequence | set | frozenset)
    if not is_list or not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise ArgumentError(
            f"{argument} must name dimensions of the mesh, got {given!r}", hint=f"it has {', '.join(map(repr, names))}"
        )
    found = set()
    for item in items:
        is_index = isinstance(item, int)
        if item not in (range(len(names)) if is_index else names):
            raise ArgumentError(
                f"{argument}={given!r}: the mesh has no dimension {item!r}",
                hint=f"it has {', '.join(map(repr, names))}",
            )
        found.add(names[item] if isinstance(item, int) else item)
    return tuple(name for name in names if name in found)


def _coordinates(mesh: Mesh, names: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return where this process is in the mesh."""
    if not isinstance(mesh.mesh, Mapping):
        coordinates = mesh.mesh.get_coordinate()
        if coordinates is None:
            raise ArgumentError(
                f"this process is not in the DeviceMesh of {_shown(names, sizes)}",
                hint="make the loader only on ranks of the mesh, or pass a mesh that has this one",
            )
        return tuple(int(at) for at in coordinates)
    num_ranks, rank = math.prod(sizes), mesh.rank
    if rank is None:
        found = launched_ranks("mesh=")
        if found is None and num_ranks > 1:
            raise ArgumentError(
                f"the mesh of {_shown(names, sizes)} needs the rank of this process, but {NOT_LAUNCHED}",
                hint="start with torchrun, call torch.distributed.init_process_group first, or pass "
                "stoker.Mesh(sizes, rank=...)",
            )
        rank, world_size = (0, 1) if found is None else found
        if world_size != num_ranks:
            raise ArgumentError(
                f"the sizes of the mesh must multiply to the world size {world_size}, got {_shown(names, sizes)} = "
                f"{num_ranks}",
                hint="give the sizes of all dimensions of the launch, tensor, context and pipeline parallelism too",
            )
    return tuple(int(at) for at in np.unravel_index(rank, sizes))


def _shown(names: Sequence[str], sizes: Sequence[int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in zip(names, sizes))


def _context_dimension(mesh: Mesh, names: tuple[str, ...], data: tuple[str, ...]) -> str | None:
    if mesh.context is not None:
        (context,) = _chosen(mesh.context, names, "context")
        if context in data:
            raise ArgumentError(
                f"context={mesh.context!r} is a data-parallel dimension by its name",
                hint="context-parallel ranks share a batch: name the data-parallel dimensions with data=",
            )
        return context
    found = [name for name in names if _plain(name) in CONTEXT_NAMES and name not in data]
    if len(found) == 1:
        return found[0]
    if mesh.split_sequence is not None:
        what = (
            f"it has {len(found)}: {', '.join(map(repr, found))}" if found else f"it has {', '.join(map(repr, names))}"
        )
        raise ArgumentError(
            f"split_sequence needs one context-parallel dimension in the mesh, but {what}",
            hint='name it: stoker.Mesh(mesh, context="sp", split_sequence=...), or leave out split_sequence=',
        )
    return None


# ------------------------------------------------------------ which dimensions are data-parallel


def _data_dimensions(mesh: Mesh, names: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Return the data-parallel dimensions: those that are named, or by convention."""
    if mesh.data is not None:
        return _chosen(mesh.data, names, "data")
    is_named = isinstance(mesh.mesh, Mapping) or bool(mesh.mesh.mesh_dim_names)
    if not is_named and math.prod(sizes) > 1:
        raise ArgumentError(
            f"the dimensions of the DeviceMesh of {' x '.join(map(str, sizes))} have no names, so which are "
            "data-parallel is not known",
            hint='pass mesh_dim_names=("dp", ...) to init_device_mesh, or say which: stoker.Mesh(mesh, data=0)',
        )
    kinds = dict(zip(names, map(_kind, names)))
    if not isinstance(mesh.mesh, Mapping):
        kinds = _checked_with_root(mesh.mesh, kinds, dict(zip(names, sizes)))
    # a dimension of one rank changes nothing, whatever it is
    kinds = {name: kind if size > 1 or kind == _DATA else _MODEL for (name, kind), size in zip(kinds.items(), sizes)}
    for name, kind in kinds.items():
        if kind == _JOINED:
            raise _joined(name, "data-parallel and other dimensions")
    data = tuple(name for name, kind in kinds.items() if kind == _DATA)
    unknown = [name for name, kind in kinds.items() if kind == _UNKNOWN]
    if unknown:
        shown = ", ".join(f"{name!r} (size {sizes[names.index(name)]})" for name in unknown)
        with_them = tuple(name for name in names if name in (*data, *unknown))
        if_expert = (
            " (most frameworks lay expert parallelism over data-parallel ranks: these do)"
            if any(_plain(name) in EXPERT_NAMES for name in unknown)
            else ""
        )
        raise ArgumentError(
            f"whether these dimensions of the mesh are data-parallel is not known: {shown}",
            hint=f"stoker.Mesh(mesh, data={with_them!r}) if their ranks train on different samples{if_expert}, "
            f"stoker.Mesh(mesh, data={data!r}) if they share a batch",
        )
    return data


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").removesuffix("_parallel")


def _kind(name: str) -> str:
    """Return what a dimension is by its name."""
    plain = _plain(name)
    if plain in DATA_NAMES:
        return _DATA
    if plain in MODEL_NAMES:
        return _MODEL
    words = set(plain.split("_"))  # dp_cp and dp_shard_cp are data-parallel and context-parallel in one
    return _JOINED if words & DATA_NAMES and words & MODEL_NAMES else _UNKNOWN


def _joined(name: str, parts: str) -> ArgumentError:
    return ArgumentError(
        f"dimension {name!r} of the mesh joins {parts}, so which ranks share a batch is not known",
        hint="pass the mesh with its dimensions apart, such as the whole DeviceMesh, or its data-parallel part, "
        'mesh["dp"] or mesh["dp_replicate", "dp_shard"]',
    )


def _checked_with_root(mesh: DeviceMesh, kinds: dict[str, str], sizes: Mapping[str, int]) -> dict[str, str]:
    """Return what dimensions are, by the whole mesh that `mesh` is a part of, where torch knows it.

    A flattened dimension is what it was flattened from, whatever it is called. A part that leaves out a data-parallel
    dimension is refused: ranks along it would train on the same samples.
    """
    # private, but the only way to see what a flattened dimension is made of; without it, names have to do
    find_root = getattr(mesh, "_get_root_mesh", None)
    root = find_root() if callable(find_root) else None
    if root is None or root is mesh or not root.mesh_dim_names:
        return kinds
    root_ranks = root.mesh.numpy()
    root_names = root.mesh_dim_names
    kinds, covered = dict(kinds), set[str]()
    for dim, name in enumerate(kinds):
        along = mesh.mesh.movedim(dim, 0).reshape(sizes[name], -1)[:, 0].numpy()
        parts = [root_names[at] for at in _varying(along, root_ranks)]
        covered.update(parts)
        found = {_kind(part) for part in parts}
        if not parts or _UNKNOWN in found:
            continue
        if len(found) > 1 or _JOINED in found or kinds[name] not in (_UNKNOWN, _JOINED, *found):
            raise _joined(name, " and ".join(map(repr, parts)))
        kinds[name] = found.pop()
    left_out = [
        name
        for name, size in zip(root_names, root_ranks.shape)
        if size > 1 and name not in covered and _kind(name) == _DATA
    ]
    if left_out:
        raise ArgumentError(
            f"the part of the DeviceMesh ({', '.join(map(repr, kinds))}) leaves out the data-parallel dimension"
            f"{'s' if len(left_out) > 1 else ''} {', '.join(map(repr, left_out))}, whose ranks would all get the same "
            "samples",
            hint="pass the whole DeviceMesh, or if that is what you want, name the data-parallel dimensions of this "
            f"part: stoker.Mesh(mesh, data={tuple(name for name in kinds if kinds[name] == _DATA)!r})",
        )
    return kinds


def _varying(ranks: NDArray[Any], whole: NDArray[Any]) -> list[int]:
    """Return the dimensions of a mesh of ranks along which some of its ranks differ."""
    flat = whole.ravel()
    order = np.argsort(flat)
    places = order[np.minimum(np.searchsorted(flat, ranks, sorter=order), len(flat) - 1)]
    if not np.array_equal(flat[places], ranks):
        return []
    return [dim for dim, at in enumerate(np.unravel_index(places, whole.shape)) if len(np.unique(at)) > 1]
