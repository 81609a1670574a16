"""`check_dataset`: does everything that a dataset offers agree with what it returns sample by sample?"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from stoker.batch.builder import MapBuilders
from stoker.batch.collation import Collation, positions_of
from stoker.batch.ledger import Policy
from stoker.errors import CheckFailed
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.foundation.randomness import reading_in_epoch
from stoker.plan import Recipe
from stoker.source import protocols
from stoker.testing.differences import first_difference

NUM_THREADS = 4
NUM_ROUNDS = 3
"""How often all threads read all samples."""

CHILD_SECONDS = 120.0
"""How long another process may take to start and to answer."""


def check_dataset(
    dataset: Any, *, num_samples: int = 16, epoch: int = 0, other_process: bool = True
) -> tuple[str, ...]:
    """Check everything that a dataset offers; return the names of the checks, `CheckFailed` if one fails.

    Reads up to `num_samples` samples, evenly spaced over the dataset, in many ways: one by one, many in one call, as
    whole batches, written into rows, in other orders, several times, from several threads, after pickling. All of them
    must give the same samples. An iterable dataset is read from its beginning, and its parts are put together.

    Args:
        dataset: an object with `__getitem__` and `__len__`, or an iterable one.
        num_samples: how many samples are read. An iterable dataset is read whole, but for its state.
        epoch: the epoch whose samples are compared.
        other_process: also compare the fingerprint with that in another process, which takes seconds to start.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return _StreamChecks(dataset, num_samples).run()
    return _MapChecks(dataset, num_samples, epoch, other_process=other_process).run()


class _Checks:
    """The checks of one dataset, and the names of those that were done."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._done: list[str] = []
        self._check = ""

    def begin(self, check: str) -> None:
        self._check = check
        self._done.append(check)

    def fail(self, problem: str) -> None:
        raise CheckFailed(self._check, problem)

    def compare(self, found: Any, expected: Any, what: str) -> None:
        difference = first_difference(found, expected)
        if difference is not None:
            self.fail(f"{what}: {difference}")

    def call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args); an error of it is the failure."""
        try:
            return function(*args)
        except Exception as error:
            raise CheckFailed(self._check, f"{what} raised {type(error).__name__}: {error}") from error

    def pickled(self) -> Any:
        return self.call("pickling", lambda: pickle.loads(pickle.dumps(self.dataset)))


class _MapChecks(_Checks):
    def __init__(self, dataset: Any, num_samples: int, epoch: int, *, other_process: bool) -> None:
        super().__init__(dataset)
        self.num_samples, self.epoch, self.other_process = num_samples, epoch, other_process

    def run(self) -> tuple[str, ...]:
        self.begin("length")
        length = self.call("len(dataset)", lambda: len(self.dataset))
        if length < 1:
            self.fail("the dataset is empty: give one with samples")
        count = min(length, self.num_samples)
        self.positions = np.unique(np.linspace(0, length - 1, count).astype(np.int64))
        self.begin("samples")
        self.builders = self._builders(self.dataset)
        self.samples = self._read(self.builders, self.positions)
        self.is_keyed = self._is_reproducible_by_position()
        self._check_many()
        self._check_batches()
        self.begin("batch_hint")
        self.call("pickling batch_hint()", lambda: pickle.dumps(protocols.batch_hint_of(self.dataset)()))
        self._check_threads()
        self._check_epochs()
        self._check_pickling()
        self._check_descriptions()
        self._check_fingerprint()
        self._check_order()
        return tuple(self._done)

    # ------------------------------------------------------------ reading

    def _builders(self, dataset: Any, *offers: str) -> MapBuilders:
        """Return builders that use nothing but the given offers of a dataset."""
        builders = MapBuilders(
            dataset,
            Collation(None, is_batched=True),
            seed=7,
            policy=Policy("raise"),
            borrowed=BorrowedGenerators(is_repeatable=False),
            is_planned=True,
        )
        builders.next_hint = protocols.batch_hint_of(dataset)
        for name in ("reads_many", "makes_batches", "writes_rows", "is_pure"):
            setattr(builders, name, name in offers and getattr(builders, name))
        return builders

    def _recipe(self, positions: Any, epoch: int | None = None) -> Recipe:
        epoch = self.epoch if epoch is None else epoch
        return Recipe(0, epoch, 0, positions, np.asarray(positions, np.int64), None, 0)

    def _read(self, builders: MapBuilders, positions: Any, epoch: int | None = None) -> list[Any]:
        """Return samples, with all random numbers seeded."""
        recipe = self._recipe(positions, epoch)

        def read(_: Any) -> list[Any]:
            return builders.read(recipe, positions_of(recipe), [])

        return self.call(  # type: ignore[no-any-return]
            f"reading positions {positions_of(recipe)[:4]}", lambda: builders.borrowed.run(read, None, key=3)
        )

    def _orders(self) -> Iterator[tuple[str, Any]]:
        """Yield what to read, in words and as indices of the samples."""
        number = np.arange(len(self.positions))
        yield "in order", number
        if self.is_keyed:
            yield "in reverse order", number[::-1]
            yield "with positions that come twice", np.concatenate([number[-1:], number, number[:1]])

    def _is_reproducible_by_position(self) -> bool:
        """Return whether a sample is the same in another order; not so where the process's generators are used."""
        self.begin("the same samples again")
        again = self._read(self.builders, self.positions)
        for position, found, expected in zip(self.positions.tolist(), again, self.samples):
            self.compare(found, expected, f"position {position}, read a second time with the same random numbers")
        self.begin("any order")
        backwards = self._read(self.builders, self.positions[::-1])[::-1]
        differences = [first_difference(found, expected) for found, expected in zip(backwards, self.samples)]
        if not any(differences):
            return True
        if self._uses_process_generators():
            return False  # they go on from sample to sample: what they give depends on the order, as it should
        at = next(at for at, difference in enumerate(differences) if difference)
        self.fail(f"position {self.positions[at]} differs when positions are read in reverse: {differences[at]}")
        return False

    def _uses_process_generators(self) -> bool:
        """Return whether reading draws from `random`, `numpy.random` or torch's default generator."""
        recipe = self._recipe(self.positions)

        def draws(_: Any) -> bool:
            before = _generator_states()
            self.builders.read(recipe, positions_of(recipe), [])
            return _generator_states() != before

        return self.builders.borrowed.run(draws, None, key=3)

    # ------------------------------------------------------------ batches

    def _check_many(self) -> None:
        builders = self._builders(self.dataset, "reads_many")
        if not builders.reads_many:
            return
        self.begin("__getitems__")
        for what, chosen in self._orders():
            found = self._read(builders, self.positions[chosen])
            if len(found) != len(chosen):
                self.fail(f"returned {len(found)} samples for {len(chosen)} positions {what}")
            for index, sample in zip(chosen.tolist(), found):
                self.compare(sample, self.samples[index], f"position {self.positions[index]}, {what}")

    def _check_batches(self) -> None:
        for name, offer in (("__getbatch__", "makes_batches"), ("open_batch", "writes_rows")):
            builders = self._builders(self.dataset, offer, "is_pure")
            if not getattr(builders, offer):
                continue
            self.begin(name)
            for what, chosen in self._orders():
                recipe = self._recipe(self.positions[chosen])
                expected = self._builders(self.dataset).collation.collate(recipe, [self.samples[at] for at in chosen])
                found = self.call(name, self._built, builders, recipe)
                if not getattr(builders, offer):
                    break  # NotImplemented: it does not offer this after all
                self.compare(found, expected, f"the batch of {len(chosen)} positions {what}")
                if offer == "writes_rows" and self.is_keyed:
                    self.compare(
                        self._written_by_threads(builders, recipe),
                        expected,
                        f"rows written by {NUM_THREADS} threads, {what}",
                    )
            if offer == "makes_batches" and builders.is_pure:
                self._check_is_pure(builders)

    def _built(self, builders: MapBuilders, recipe: Recipe) -> Any:
        """Return a batch, built with the random numbers that the samples were read with."""
        return builders.borrowed.run(builders._build, (recipe, None, None), key=3).batch

    def _written_by_threads(self, builders: MapBuilders, recipe: Recipe) -> Any:
        """Return a batch whose rows were written by several threads, the last ones first."""
        builder = builders.builder(recipe)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(lambda row: builder.do(row, row + 1), reversed(range(builder.size))))
        return builder.finish().batch

    def _check_is_pure(self, builders: MapBuilders) -> None:
        self.begin("is_pure")
        before = _generator_states()
        builders.build(self._recipe(self.positions))
        if _generator_states() != before:
            self.fail("is_pure is True, but __getbatch__ drew from the generators of the process")

    # ------------------------------------------------------------ threads and processes

    def _check_threads(self) -> None:
        if not self.is_keyed:
            return
        self.begin("several threads")
        recipe = self._recipe(self.positions)
        positions = positions_of(recipe)

        def read(at: int) -> tuple[int, Any]:
            row = at % len(positions)
            return row, self.builders.read(recipe, positions[row : row + 1], [], row)[0]

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            found = self.call("reading", lambda: list(pool.map(read, range(NUM_ROUNDS * len(positions)))))
        for row, sample in found:
            self.compare(sample, self.samples[row], f"position {positions[row]}, read by {NUM_THREADS} threads at once")

    def _check_pickling(self) -> None:
        self.begin("pickling")
        clone = self.pickled()
        if len(clone) != len(self.dataset):
            self.fail(f"the pickled dataset has {len(clone)} samples, not {len(self.dataset)}")
        for position, found, expected in zip(
            self.positions.tolist(), self._read(self._builders(clone), self.positions), self.samples
        ):
            self.compare(found, expected, f"position {position} of the pickled dataset")

    def _check_epochs(self) -> None:
        if not protocols.has_epochs(self.dataset):
            return
        self.begin("in_epoch")
        clone = self.pickled()
        for epoch in (self.epoch, self.epoch + 1):
            view = self.call(f"in_epoch({epoch})", self.dataset.in_epoch, epoch)
            positions = self.positions[self.positions < len(view)]
            expected = self._read(self._builders(self.dataset), positions, epoch)
            self._read(self._builders(self.dataset), positions, epoch + 1)
            again = self._read(self._builders(self.dataset), positions, epoch)
            elsewhere = self._read(self._builders(clone), positions, epoch)
            for at, position in enumerate(positions.tolist()):
                self.compare(again[at], expected[at], f"position {position} of epoch {epoch}, after another epoch")
                self.compare(elsewhere[at], expected[at], f"position {position} of epoch {epoch}, in a pickled copy")

    # ------------------------------------------------------------ identity

    def _check_descriptions(self) -> None:
        if not protocols.has_descriptions(self.dataset):
            return
        self.begin("describe")
        for position in self.positions.tolist():
            with reading_in_epoch(self.epoch):
                found = self.call(f"describe({position})", self.dataset.describe, position)
            if not str(found):
                self.fail(f"describe({position}) is empty")

    def _check_fingerprint(self) -> None:
        fingerprint = getattr(self.dataset, "fingerprint", None)
        if fingerprint is None:
            return
        self.begin("fingerprint")
        if not isinstance(fingerprint, str):
            self.fail(
                f"it is {fingerprint!r}, not a string" + (": make it a property" if callable(fingerprint) else "")
            )
        self._same_fingerprint(self.dataset.fingerprint, fingerprint, "when asked for again")
        self._same_fingerprint(self.pickled().fingerprint, fingerprint, "of a pickled copy")
        if self.other_process:
            self._same_fingerprint(self.call("another process", self._fingerprint_elsewhere), fingerprint, "elsewhere")
        if protocols.has_grown_from(self.dataset, fingerprint):
            self.fail(f"earlier_fingerprints() has the present one, {fingerprint!r}")

    def _same_fingerprint(self, found: Any, expected: str, what: str) -> None:
        if found != expected:
            self.fail(f"it is {found!r} {what}, and was {expected!r}: a state could not be resumed")

    def _fingerprint_elsewhere(self) -> Any:
        """Return the fingerprint in another process: one that was newly started, so that `hash` differs."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send_fingerprint, args=(pickle.dumps(self.dataset), theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(CHILD_SECONDS):
                raise TimeoutError(f"no answer within {CHILD_SECONDS:.0f} s")
            answer = ours.recv()
        finally:
            process.terminate()
            process.join()
            process.close()
            ours.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _check_order(self) -> None:
        if not protocols.owns_order(self.dataset):
            return
        self.begin("owns_order")
        view = self.dataset.in_epoch(self.epoch) if protocols.has_epochs(self.dataset) else self.dataset
        for position in self.positions.tolist():
            others: Sequence[int] = self.call("others", view.others, position)
            wrong = [int(other) for other in islice(others, 100) if not 0 <= other < len(view)]
            if wrong:
                self.fail(f"others({position}) has {wrong[0]}, outside the {len(view)} samples")
            if len(others):
                self.call("instead", view.instead, position, int(others[0]))


class _StreamChecks(_Checks):
    def __init__(self, dataset: Any, num_samples: int) -> None:
        super().__init__(dataset)
        self.num_samples = num_samples

    def run(self) -> tuple[str, ...]:
        self.begin("iteration")
        self.samples = self._all(copy.deepcopy(self.dataset), "iterating")
        if not self.samples:
            self.fail("the stream is empty: give one with samples")
        self.begin("pickling")
        self._same(self._all(self.pickled(), "iterating over a pickled copy"), self.samples, "a pickled copy")
        self._check_parts()
        self._check_state()
        return tuple(self._done)

    def _all(self, dataset: Any, what: str) -> list[Any]:
        def read(_: Any) -> list[Any]:
            with reading_in_epoch(0):
                return list(dataset)

        borrowed = BorrowedGenerators(is_repeatable=False)
        return self.call(what, lambda: borrowed.run(read, None, key=3))  # type: ignore[no-any-return]

    def _same(self, found: list[Any], expected: list[Any], what: str) -> None:
        if len(found) != len(expected):
            self.fail(f"{what} has {len(found)} samples, not {len(expected)}")
        for number, (one, other) in enumerate(zip(found, expected)):
            self.compare(one, other, f"sample {number} of {what}")

    def _check_parts(self) -> None:
        if not protocols.can_split(self.dataset):
            return
        self.begin("split")
        whole = Counter(map(_key, self.samples))
        for count in (1, 2, 3, len(self.samples) + 1):
            parts: Counter[bytes] = Counter()
            for index in range(count):
                part = self.call(f"split({index}, {count})", self.dataset.split, index, count)
                parts.update(map(_key, self._all(part, f"iterating over part {index} of {count}")))
            missing, extra = whole - parts, parts - whole
            if missing or extra:
                self.fail(
                    f"{count} parts together lack {missing.total()} samples and have {extra.total()} too many, of "
                    f"{len(self.samples)}; the first: {_first(missing or extra)}"
                )

    def _check_state(self) -> None:
        if not (protocols.has_state(self.dataset) and protocols.loads_state(self.dataset)):
            return
        self.begin("state_dict")
        half = min(self.num_samples, len(self.samples) // 2)
        first, second = self.pickled(), self.pickled()
        begun = list(islice(iterator := iter(first), half))
        state = self.call("state_dict()", lambda: pickle.loads(pickle.dumps(first.state_dict())))
        self._same(begun, self.samples[:half], "the beginning")
        del iterator
        self.call("load_state_dict(state)", second.load_state_dict, state)
        self._same(self._all(second, "continuing"), self.samples[half:], f"what follows a state after {half} samples")


def _send_fingerprint(pickled: bytes, pipe: Any) -> None:
    try:
        pipe.send(pickle.loads(pickled).fingerprint)
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()


def _generator_states() -> bytes:
    import random

    import torch

    return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes()))


def _key(sample: Any) -> bytes:
    return pickle.dumps(sample)


def _first(samples: Counter[bytes]) -> str:
    text = repr(pickle.loads(next(iter(samples))))
    return text if len(text) <= 80 else f"{text[:77]}..."
