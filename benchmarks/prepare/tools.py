"""The contenders: ways to make tokens on a disk out of text, on two cores; and the tokenizers alone.

Each is called in a process of its own, with its imports done, and returns how many tokens it made, those that end
documents among them. Tokenizers use one thread in each of two processes.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prepare.text import END_OF_DOCUMENT, Text

OURS, OURS_GIGATOKEN = "stoker", "stoker, gigatoken"
BARE, BARE_IDS, BARE_GIGATOKEN = "tokenizer alone", "tokenizer alone, ids as arrays", "gigatoken alone"
MAP, DATATROVE, LITDATA = "datasets.map", "datatrove", "litdata optimize"
NUM_WORKERS = 2
CALL_CHARS = 1 << 17
"""Text in a call of the bare tokenizer; larger calls are slower, for what they return leaves the processor's cache."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be prepared."""

    text: Text
    num_files: int
    out: Path
    """A folder that is not there yet."""

    @property
    def files(self) -> list[Path]:
        return self.text.files[: self.num_files]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Tool:
    """A contender, and what it needs."""

    prepare: Callable[[Job], Done]
    modules: tuple[str, ...]


def timed(name: str, job: Job) -> Done:
    """Prepare, when all that users import is imported."""
    tool = TOOLS[name]
    for module in tool.modules:
        import_module(module)
    return tool.prepare(job)


def _clocked(prepare: Callable[[Job], Callable[[], int]], job: Job) -> Done:
    """Run `prepare` against the clock, and then count the tokens that it made."""
    begin = time.perf_counter()
    count = prepare(job)
    seconds = time.perf_counter() - begin
    return Done(count(), seconds)


# ---------------------------------------------------------------- stoker


def _stoker(job: Job, *, backend: Any) -> Callable[[], int]:
    import stoker.prepare

    report = stoker.prepare.tokens(
        job.files,
        tokenizer=job.text.tokenizer,
        out=job.out,
        end_of_document=END_OF_DOCUMENT,
        workers=NUM_WORKERS,
        backend=backend,
    )
    assert backend == "reference" or report.backend == "gigatoken", report.fallback_reason
    return lambda: report.tokens


# ---------------------------------------------------------------- others


class _Encoding:
    """What users of `datasets.map` and litdata write: a tokenizer that is loaded where it is first used."""

    def __init__(self, job: Job) -> None:
        self.path = str(job.text.tokenizer)
        self._tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = import_module("tokenizers").Tokenizer.from_file(self.path)
        return self._tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_tokenizer": None}

    def ids(self, texts: list[str]) -> list[list[int]]:
        end = self.tokenizer.token_to_id(END_OF_DOCUMENT)
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [[*encoding.ids, end] for encoding in found]

    def __call__(self, batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"tokens": [np.array(ids, np.uint16) for ids in self.ids(batch["text"])]}


def _map(job: Job) -> Callable[[], int]:
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    files = [str(path) for path in job.files]
    texts = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(job.out), num_proc=NUM_WORKERS)
    tokens = texts.map(_Encoding(job), batched=True, num_proc=NUM_WORKERS, remove_columns=["text"])
    return lambda: sum(len(row) for batch in tokens.with_format("arrow").iter(1000) for row in batch["tokens"])


def _datatrove(job: Job) -> Callable[[], int]:
    executor, readers = import_module("datatrove.executor"), import_module("datatrove.pipeline.readers")
    tokens = import_module("datatrove.pipeline.tokens")
    job.out.mkdir()
    paths = job.out / "paths.txt"
    paths.write_text("".join(f"{path.name}\n" for path in job.files))
    pipeline = [
        readers.JsonlReader(str(job.text.folder), paths_file=str(paths)),
        tokens.DocumentTokenizer(
            str(job.out / "tokens"),
            str(job.text.tokenizer),
            eos_token=END_OF_DOCUMENT,
            shuffle_documents=False,
            save_final_metadata=False,
        ),
    ]
    executor.LocalPipelineExecutor(
        pipeline, tasks=NUM_WORKERS, workers=NUM_WORKERS, logging_dir=str(job.out / "logs")
    ).run()
    return lambda: sum(path.stat().st_size // 2 for path in (job.out / "tokens").glob("*.ds"))


class _LitTokens(_Encoding):
    """The documents of one file."""

    def __call__(self, path: Any) -> Iterator[Any]:  # type: ignore[override]
        torch = import_module("torch")
        with open(path) as file:
            while lines := file.readlines(1 << 17):
                for ids in self.ids([json.loads(line)["text"] for line in lines]):
                    yield torch.tensor(ids, dtype=torch.uint16)


def _litdata(job: Job) -> Callable[[], int]:
    litdata, loaders = import_module("litdata"), import_module("litdata.streaming.item_loader")
    litdata.optimize(
        fn=_LitTokens(job),
        inputs=[str(path) for path in job.files],
        output_dir=str(job.out),
        chunk_bytes="64MB",
        item_loader=loaders.TokensLoader(),
        num_workers=NUM_WORKERS,
        verbose=False,
    )
    index = json.loads((job.out / "index.json").read_text())
    return lambda: sum(chunk["dim"] for chunk in index["chunks"])


# ---------------------------------------------------------------- tokenizers alone


def _alone(job: Job, *, load: Callable[[str], Callable[[list[str]], int]]) -> Done:
    """Have the text in memory, cut into calls; then run the tokenizer over it in two processes, and nothing else."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(NUM_WORKERS + 1)
    counts = context.Queue()

    def work(numbers: Sequence[int]) -> None:
        documents = [document for number in numbers for document in job.text.documents(number)]
        calls = list(_calls(documents))
        count = load(str(job.text.tokenizer))
        barrier.wait()
        num_tokens = sum(count(call) for call in calls)
        barrier.wait()
        counts.put(num_tokens + len(documents))

    shares = [range(first, job.num_files, NUM_WORKERS) for first in range(NUM_WORKERS)]
    workers = [context.Process(target=work, args=(share,), daemon=True) for share in shares]
    for worker in workers:
        worker.start()
    barrier.wait()
    begin = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - begin
    num_tokens = sum(counts.get() for _ in workers)
    for worker in workers:
        worker.join()
    return Done(num_tokens, seconds)


def _calls(documents: list[str]) -> Iterator[list[str]]:
    call: list[str] = []
    num_chars = 0
    for document in documents:
        call.append(document)
        num_chars += len(document)
        if num_chars >= CALL_CHARS:
            yield call
            call, num_chars = [], 0
    if call:
        yield call


def _hugging_face(path: str) -> Callable[[list[str]], int]:
    tokenizer = import_module("tokenizers").Tokenizer.from_file(path)

    def count(texts: list[str]) -> int:
        return sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False)))

    return count


def _hugging_face_ids(path: str) -> Callable[[list[str]], int]:
    tokenizer = import_module("tokenizers").Tokenizer.from_file(path)

    def count(texts: list[str]) -> int:
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return sum(len(np.array(encoding.ids, np.uint16)) for encoding in found)

    return count


def _gigatoken(path: str) -> Callable[[list[str]], int]:
    encode = import_module("gigatoken").Tokenizer.from_json(Path(path).read_text()).backend.encode
    return lambda texts: sum(len(encode(text)) for text in texts)


TOOLS: dict[str, Tool] = {
    OURS: Tool(partial(_clocked, partial(_stoker, backend="reference")), ("stoker.prepare", "tokenizers")),
    BARE: Tool(partial(_alone, load=_hugging_face), ("tokenizers",)),
    BARE_IDS: Tool(partial(_alone, load=_hugging_face_ids), ("tokenizers",)),
    MAP: Tool(partial(_clocked, _map), ("datasets", "tokenizers")),
    DATATROVE: Tool(partial(_clocked, _datatrove), ("datatrove.executor", "tokenizers")),
    LITDATA: Tool(partial(_clocked, _litdata), ("litdata", "tokenizers")),
}
WITH_GIGATOKEN: dict[str, Tool] = {
    OURS_GIGATOKEN: Tool(partial(_clocked, partial(_stoker, backend="gigatoken")), ("stoker.prepare", "gigatoken")),
    BARE_GIGATOKEN: Tool(partial(_alone, load=_gigatoken), ("gigatoken",)),
}
TOOLS |= WITH_GIGATOKEN
