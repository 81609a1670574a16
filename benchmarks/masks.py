"""What masks of packed rows cost, and what packing is worth to a model of the size of GPT-2.

Masks are made from one batch that lies on the device; the time is from the first call to the moment when the device has
done them all. Training steps take turns: each contender keeps its loader through all rounds, and begins a turn with
steps that are not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import stoker
from benchmarks.report import Column, Report, Saved, Setting, only
from examples.packed import Model, kept_apart
from stoker import masks
from stoker.compose.packs.block_tables import block_fields, block_tables, block_tables_by_numpy
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

END, VOCAB, BLOCKS = 50256, 50304, 128
DENSE, BLOCK, TABLES, TRAINING = "dense mask", "block mask", "tables on the CPU", "training step"
OURS_DENSE, OURS_EOS = "stoker, dense", "stoker, from_eos"
COMPARED, LOOPED, WRITTEN = "ids, compare, triangle", "loop over end tokens", "the same bytes, filled"
OURS_GIVEN, OURS_MADE = "stoker, tables of the loader", "stoker, tables on the device"
CREATED, CREATED_COMPILED = "create_block_mask", "create_block_mask, compiled"
PADDED, AGAIN, RESIDENT = "padded", "the same rows", "resident"
GOAL = 1.02
"""The most that a step fed by the loader may take, by one with the same batch on the device already."""
INK = {"stoker": "#c8391b", "packed": "#c8391b", PADDED: "#767676", "create": "#b8860b"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    shapes: tuple[tuple[int, int], ...]
    """Rows and columns of the batches whose masks are made."""
    shape: tuple[int, int]
    """Of the batches that are trained on."""
    width: int
    num_layers: int
    num_heads: int
    vocab: int
    num_documents: int
    num_steps: int
    """In one turn."""
    num_untimed: int
    num_rounds: int
    mask_seconds: float


FULL = Size(((8, 4096), (1, 32768)), (8, 4096), 768, 12, 12, VOCAB, 30_000, 10, 3, 7, 3.0)
QUICK_DEVICE = Size(((8, 1024), (1, 2048)), (4, 1024), 256, 2, 4, VOCAB, 2_000, 2, 1, 2, 0.1)
QUICK = Size(((2, 256), (1, 512)), (2, 256), 32, 1, 2, 512, 200, 1, 1, 2, 0.05)


def run(setting: Setting) -> Report:
    device = setting.device or "cpu"
    size = (QUICK_DEVICE if device == "cuda" else QUICK) if setting.is_quick or device != "cuda" else FULL
    documents = _documents(size)
    records = []
    for num_rows, length in size.shapes:
        records += _construction(documents, num_rows, length, device, size)
    trained, facts = _training(documents, device, size)
    records += trained
    return Report(
        name="masks",
        title="Masks of packed rows, and a GPT-2-sized model trained on packed and on padded rows",
        records=records,
        shows=_shows(records, facts),
        limits=[
            "the time that attention with such a mask takes: only the making of masks is compared.",
            "a store: documents are in memory, of log-normal length (a median of about 490 tokens, at most a row).",
            "padding to the longest document of a batch, which changes shapes from step to step.",
            "several GPUs, or a model so small that a loader matters more.",
            *([] if device == "cuda" else ["a GPU: this ran on a CPU, with sizes that mean nothing."]),
        ],
        draw=draw,
        columns=(
            Column("median", lambda record: _format_value(record.median)),
            Column("p90", lambda record: _format_value(record.p90)),
            Column("of reference", lambda record: f"{record.median_ratio:.3g}" if record.median_ratio else ""),
            Column("content tokens/s", lambda record: f"{record.more['rate']:,.0f}" if "rate" in record.more else ""),
        ),
        extra={"facts": facts},
        packages=("torch", "numpy", "stoker"),
    )


def _documents(size: Size) -> list[NDArray[np.uint16]]:
    """Return documents that end with the end token and fit into a row."""
    rng = np.random.default_rng(0)
    longest = size.shape[1]
    lengths = np.exp(rng.normal(6.2, 1.0, size.num_documents)).astype(int).clip(16, longest)
    documents = [rng.integers(0, min(END, size.vocab - 1), length, dtype=np.uint16) for length in lengths.tolist()]
    for document in documents:
        document[-1] = END if size.vocab > END else size.vocab - 1
    return documents


def _some(packed: Any, num_rows: int) -> NDArray[np.int64]:
    """Return positions of rows as a shuffle would bring them; the first rows have the longest documents."""
    return np.random.default_rng(1).permutation(len(packed))[:num_rows]


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- masks


def _construction(
    documents: list[NDArray[np.uint16]], num_rows: int, length: int, device: str, size: Size
) -> list[Measurement]:
    packed = stoker.pack(documents, length, blocks=BLOCKS, pad=END if size.vocab > END else size.vocab - 1)
    on_host = packed.__getbatch__(_some(packed, num_rows), np.empty)
    batch = {name: torch.from_numpy(np.ascontiguousarray(values)).to(device) for name, values in on_host.items()}
    end = packed.settings.pad
    case = {"batch": f"{num_rows}x{length}"}
    pace = RoundLimits(size.mask_seconds, max_rounds=50, min_rounds=2 if size is not FULL else 5)

    def measured(what: str, calls: Mapping[str, Callable[[], Any]], reference: str) -> list[Measurement]:
        contenders = {name: _called(call, device, size) for name, call in calls.items()}
        return interleaved(contenders, case={"what": what, **case}, unit="batch", rounds=pace, reference=reference)

    ids, tokens = batch["document_ids"], batch["tokens"]
    records = measured(
        DENSE,
        {
            OURS_DENSE: lambda: masks.dense(batch),
            OURS_EOS: lambda: masks.from_eos(tokens, end),
            COMPARED: lambda: _compared(tokens, end),
            LOOPED: lambda: _looped(tokens, end),
            WRITTEN: lambda: torch.zeros(num_rows, length, length, dtype=torch.bool, device=device),
        },
        OURS_DENSE,
    )
    compiled: Any = torch.compile(create_block_mask) if device == "cuda" else None
    calls: dict[str, Callable[[], Any]] = {
        OURS_GIVEN: lambda: masks.flex(batch),
        OURS_MADE: lambda: masks.flex(ids, blocks=BLOCKS),
        CREATED: lambda: create_block_mask(_same_document(ids), num_rows, None, length, length, device),
    }
    if compiled is not None:
        calls[CREATED_COMPILED] = lambda: compiled(_same_document(ids), num_rows, None, length, length, device)
    records += measured(BLOCK, calls, OURS_GIVEN)

    cu_seqlens = on_host["cu_seqlens"]
    out = {name: np.zeros((num_rows, *shape), kind) for name, (shape, kind) in block_fields(length, BLOCKS).items()}
    rows = np.arange(num_rows)
    records += measured(
        TABLES,
        {
            "stoker": lambda: block_tables(cu_seqlens, length, BLOCKS, out, rows),
            "stoker, NumPy": lambda: block_tables_by_numpy(cu_seqlens, length, BLOCKS, out, rows),
        },
        "stoker",
    )
    return records


def _called(call: Callable[[], Any], device: str, size: Size) -> TimedFunction:
    num_calls = 10 if size is FULL else 2

    def timed(clock: BlockTimer) -> None:
        call()
        _synchronize(device)
        with clock.timing(num_calls):
            for _ in range(num_calls):
                call()
            _synchronize(device)

    return timed


def _same_document(ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def same_document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        return (ids[b, q] == ids[b, k]) & (k <= q)

    return same_document


def _compared(tokens: Tensor, end: int) -> Tensor:
    """Return the mask as most people write it."""
    is_end = tokens == end
    ids = is_end.cumsum(1) - is_end.long()
    length = tokens.shape[1]
    triangle = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    return (ids[:, :, None] == ids[:, None, :]) & triangle


def _looped(tokens: Tensor, end: int) -> Tensor:
    """Return the mask as it was first published: a triangle, with a corner cleared behind every end token."""
    num_rows, length = tokens.shape
    mask = torch.ones(num_rows, length, length, dtype=torch.bool, device=tokens.device).tril()
    for row in range(num_rows):
        for at in (tokens[row] == end).nonzero().flatten().tolist():
            mask[row, at + 1 :, : at + 1] = False
    return mask


# ---------------------------------------------------------------- training


class Padded:
    """One document in each row, filled up."""

    is_pure = True

    def __init__(self, documents: list[NDArray[np.uint16]], length: int) -> None:
        self.documents, self.length = documents, length

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, position: int) -> dict[str, Any]:
        document = self.documents[position]
        tokens, labels = np.zeros(self.length, np.int64), np.full(self.length, -100, np.int64)
        tokens[: len(document)] = document
        labels[: len(document) - 1] = document[1:]
        return {"tokens": tokens, "labels": labels, "num_tokens": len(document)}


class Again:
    """The same few rows for ever, put together anew each time."""

    is_pure = True

    def __init__(self, packed: Any, positions: NDArray[np.int64]) -> None:
        self.packed, self.positions = packed, positions

    def __len__(self) -> int:
        return len(self.positions) * 1_000_000

    def __getitem__(self, position: int) -> Any:
        return self.packed[int(self.positions[position % len(self.positions)])]

    def __getbatch__(self, positions: Any, empty: Any) -> Any:
        return self.packed.__getbatch__(self.positions[np.asarray(positions) % len(self.positions)], empty)


def _training(documents: list[NDArray[np.uint16]], device: str, size: Size) -> tuple[list[Measurement], dict[str, Any]]:
    num_rows, length = size.shape
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab": size.vocab,
        "width": size.width,
        "num_layers": size.num_layers,
        "num_heads": size.num_heads,
    }
    model = Model(**shape).to(device)
    plain = Model(**shape, packed=False)
    plain.embedding, plain.layers, plain.last, plain.head = model.embedding, model.layers, model.last, model.head
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=device == "cuda")
    is_device = device == "cuda"

    def loss_of(model: Model, batch: Mapping[str, Tensor], apart: Any) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=is_device):
            logits = model(batch, apart)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())

    compiled: Any = torch.compile(loss_of) if is_device else loss_of

    def step(model: Model, batch: Mapping[str, Tensor], apart: Any) -> None:
        compiled(model, batch, apart).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    packed = stoker.pack(documents, length, blocks=BLOCKS)
    again = Again(packed, _some(packed, num_rows))
    num_workers = 2 if is_device else 0
    options: dict[str, Any] = {"batch_size": num_rows, "drop_last": True, "num_workers": num_workers}
    if is_device:
        options["device"] = "cuda"
    kinds = [kind for kind in ("flex", "varlen") if _can(kind, is_device)] or ["dense"]
    rates: dict[str, list[float]] = {}
    contenders: dict[str, TimedFunction] = {}
    streams = []

    def fed(name: str, model: Model, dataset: Any, apart: Callable[[Any], Any], count: Callable[[Any], Tensor]) -> None:
        stream = _endless(stoker.DataLoader(dataset, shuffle=not isinstance(dataset, Again), seed=1, **options))
        streams.append(stream)

        def timed(clock: BlockTimer) -> None:
            for _ in range(size.num_untimed):
                batch = next(stream)
                step(model, batch, apart(batch))
            counts = []
            _synchronize(device)
            before = clock.wall_seconds
            with clock.timing(size.num_steps):
                for _ in range(size.num_steps):
                    batch = next(stream)
                    counts.append(count(batch))
                    step(model, batch, apart(batch))
                _synchronize(device)
            rates.setdefault(name, []).append(int(sum(counts)) / (clock.wall_seconds - before))

        contenders[name] = timed

    def resident(name: str, model: Model, dataset: Any, apart: Callable[[Any], Any]) -> None:
        batch = next(iter(stoker.DataLoader(dataset, order="sequential", **options)))
        kept = apart(batch)

        def timed(clock: BlockTimer) -> None:
            for _ in range(size.num_untimed):
                step(model, batch, kept)
            _synchronize(device)
            with clock.timing(size.num_steps):
                for _ in range(size.num_steps):
                    step(model, batch, kept)
                _synchronize(device)

        contenders[name] = timed

    for kind in kinds:
        apart = _apart(kind)
        fed(f"packed, {kind}", model, packed, apart, _content)
        fed(f"packed, {kind}, {AGAIN}", model, again, apart, _content)
        resident(f"packed, {kind}, {RESIDENT}", model, again, apart)
    fed(
        PADDED, plain, Padded(documents, length), lambda _: {"is_causal": True}, lambda batch: batch["num_tokens"].sum()
    )
    pace = RoundLimits(0.0, max_rounds=size.num_rounds, min_rounds=size.num_rounds)
    case = {"what": TRAINING, "batch": f"{num_rows}x{length}"}
    records = interleaved(contenders, case=case, unit="step", rounds=pace, reference=f"packed, {kinds[0]}, {RESIDENT}")
    for stream in streams:
        stream.close()
    report = packed.report()
    facts = {
        "parameters": sum(weight.numel() for weight in weights),
        "documents": len(documents),
        "fill": packed.num_tokens / (len(packed) * length),
        "rows": len(packed),
        "padded_fill": sum(map(len, documents)) / (len(documents) * length),
        "max_documents": packed.max_documents,
        "report": str(report),
    }
    # the first turn of each only warms up: it has compiled the model
    summary = [
        replace(record, more={"rate": median(rates[record.contender][1:])}) if record.contender in rates else record
        for record in records
    ]
    return summary, facts


def _content(batch: Mapping[str, Tensor]) -> Tensor:
    return (batch["document_ids"] >= 0).sum()


def _apart(kind: str) -> Callable[[Any], Any]:
    return lambda batch: kept_apart(batch, kind)


def _can(kind: str, is_device: bool) -> bool:
    if not is_device:
        return False
    try:
        import torch.nn.attention.varlen  # noqa: F401
    except ImportError:
        return kind != "varlen"
    return True


def _endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader


# ---------------------------------------------------------------- telling


def _format_value(microseconds: float) -> str:
    return f"{microseconds / 1000:,.2f} ms" if microseconds >= 1000 else f"{microseconds:,.1f} µs"


def _shows(records: list[Measurement], facts: dict[str, Any]) -> list[str]:
    sentences = []
    for what in (DENSE, BLOCK, TABLES):
        for batch in dict.fromkeys(record.case["batch"] for record in only(records, what=what)):
            ours, *others = only(records, what=what, batch=batch)
            summary = ", ".join(
                f"{other.contender} {_format_value(other.median)} ({other.median_ratio:.3g} times as long)"
                for other in others
                if other.median_ratio is not None
            )
            sentences.append(f"{what}, {batch}: {ours.contender} {_format_value(ours.median)}; {summary}.")
    steps = only(records, what=TRAINING)
    [padded] = only(steps, PADDED)
    for record in steps:
        if record.contender == PADDED or record.contender.endswith((AGAIN, RESIDENT)):
            continue
        [fed], [still] = only(steps, f"{record.contender}, {AGAIN}"), only(steps, f"{record.contender}, {RESIDENT}")
        side = "within" if fed.median / still.median <= GOAL else "over"
        sentences.append(
            f"{record.contender}: {record.more['rate']:,.0f} tokens of content per second, "
            f"{record.more['rate'] / padded.more['rate']:.2f} times as many as with padded rows "
            f"({padded.more['rate']:,.0f})."
        )
        sentences.append(
            f"{record.contender}: a step on rows that the loader puts together takes {_format_value(fed.median)}, "
            f"{fed.median / still.median:.4f} of one with the same batch on the device already "
            f"({_format_value(still.median)}; best by best {fed.best / still.best:.4f}), {side} the goal of {GOAL}."
        )
    sentences.append(
        f"the model has {facts['parameters'] / 1e6:.0f} million weights; packed rows are {facts['fill']:.2%} full, "
        f"rows of one document {facts['padded_fill']:.2%}; at most {facts['max_documents']} spans are in a row."
    )
    return sentences


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained", width_ratios=(1.5, 1))
    made = [record for record in records if record.case["what"] in (DENSE, BLOCK)]
    for place, record in enumerate(made):
        left.barh(place, record.median, color=_ink(record.contender))
        left.annotate(
            _format_value(record.median),
            (record.median, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    left.set_yticks(
        range(len(made)),
        [f"{record.case['what']}, {record.case['batch']}: {record.contender}" for record in made],
        fontsize=7,
    )
    left.set_xscale("log")
    left.margins(x=0.15)
    left.invert_yaxis()
    left.set_xlabel("µs per batch (median of rounds)")
    left.set_title("Making a mask", fontsize=10)
    fed = [record for record in records if "rate" in record.more and not record.contender.endswith(AGAIN)]
    for place, record in enumerate(fed):
        right.barh(place, record.more["rate"], color=_ink(record.contender))
        right.annotate(
            f"{record.more['rate']:,.0f}",
            (record.more["rate"], place),
            xytext=(-4, 0),
            textcoords="offset points",
            va="center",
            ha="right",
            fontsize=8,
            color="white",
        )
    right.set_yticks(range(len(fed)), [record.contender for record in fed], fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("tokens of content per second")
    right.set_title("Training a model of the size of GPT-2", fontsize=10)
    return figure


def _ink(contender: str) -> str:
    return next((ink for name, ink in INK.items() if contender.startswith(name)), "#767676")
