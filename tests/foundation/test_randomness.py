"""Random numbers: keyed by the sample, or borrowed from the process and given back untouched."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.foundation import global_generators as process_wide
from stoker.foundation.global_generators import TRUSTED_AFTER, BorrowedGenerators
from tests.loader.datasets import Augmented, Numbers, listed


def draws() -> tuple[float, float, float, float, float]:
    return (
        random.random(),
        float(np.random.rand()),
        float(torch.rand(1)),
        random.gauss(0, 1),
        float(np.random.standard_normal()),
    )


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_rng_belongs_to_the_sample() -> None:
    with stoker.sample_context(7, epoch=3, seed=1) as generator:
        first = generator.random(4).tolist()
    with stoker.sample_context(7, epoch=3, seed=1):
        half = stoker.rng().random(2).tolist()
        assert half + stoker.rng().random(2).tolist() == first  # it goes on, it does not begin again
    others = []
    for position, epoch, seed in ((8, 3, 1), (7, 4, 1), (7, 3, 2)):
        with stoker.sample_context(position, epoch=epoch, seed=seed):
            others.append(stoker.rng().random(4).tolist())
    assert len({tuple(numbers) for numbers in [first, *others]}) == 4


def test_sample_context_repeats_what_a_loader_saw() -> None:
    loader = stoker.DataLoader(Drawing(20), batch_size=4, shuffle=True, seed=9)
    listed(loader)
    seen = {position: number for batch in listed(loader) for position, number in zip(*batch)}
    with stoker.sample_context(13, epoch=1, seed=9):
        assert Drawing(20)[13] == (13, seen[13])


class Drawing(Numbers):
    """A number from `stoker.rng()`, or from its long form."""

    def __getitem__(self, position: int) -> Any:
        return position, float(stoker.rng().random())


class DrawingMany(Drawing):
    """Reads many in one call, and says which sample each number is for."""

    def __getitems__(self, positions: list[int]) -> list[tuple[int, float]]:
        return [(position, float(stoker.rng(position).random())) for position in positions]


def test_rng_of_a_position_is_the_same_inside_getitems() -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2}
    assert listed(stoker.DataLoader(DrawingMany(20), **arguments)) == listed(
        stoker.DataLoader(Drawing(20), **arguments)
    )


def test_rng_outside_a_loader_is_fresh() -> None:
    assert stoker.rng().random() != stoker.rng().random()
    assert stoker.rng(3).random() != stoker.rng(3).random()


def test_rng_follows_samplers_whose_positions_are_not_numbers() -> None:
    class Named:
        def __getitem__(self, name: str) -> float:
            return float(stoker.rng().random())

    arguments: dict[str, Any] = {"batch_size": 2, "seed": 1}
    first = listed(stoker.DataLoader(Named(), sampler=["a", "b", "c"], **arguments))
    second = listed(stoker.DataLoader(Named(), sampler=["c", "a", "b"], **arguments))
    assert sorted(sum(first, [])) == sorted(sum(second, []))
    assert len(set(sum(first, []))) == 3


def test_numbers_look_uniform_over_samples_and_epochs() -> None:
    numbers = []
    for epoch in range(20):
        for position in range(100):
            with stoker.sample_context(position, epoch=epoch):
                numbers.append(stoker.rng().random())
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 100) ** 2 / 100).sum() < 60  # 19 degrees of freedom
    assert len(set(numbers)) == 2000


def test_threads_have_contexts_of_their_own() -> None:
    seen: dict[int, float] = {}

    def read(position: int) -> None:
        with stoker.sample_context(position):
            seen[position] = stoker.rng().random()

    threads = [threading.Thread(target=read, args=(position,)) for position in range(8)]
    with stoker.sample_context(100):
        before = stoker.rng()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stoker.rng() is before
    assert len(set(seen.values())) == 8


@given(key=st.integers(0, 2**64 - 1), num_before=st.integers(0, 3))
def test_a_loan_gives_the_same_numbers_and_takes_none_of_the_trainers(key: int, num_before: int) -> None:
    loan = BorrowedGenerators(is_repeatable=True)

    def trainer(with_loan: bool) -> list[Any]:
        seed_all(5)
        numbers = [draws() for _ in range(num_before)]
        if with_loan:
            loan.run(lambda _: [draws() for _ in range(3)], None, key)
        numbers.append(draws())
        return numbers

    assert trainer(True) == trainer(False)
    first = loan.run(lambda _: draws(), None, key)
    assert loan.run(lambda _: draws(), None, key) == first
    assert BorrowedGenerators(is_repeatable=False).run(lambda _: draws(), None, key) == first
    assert loan.run(lambda _: draws(), None, key ^ 2) != first


def test_the_trainers_second_normal_number_is_kept() -> None:
    """Python and NumPy make normal numbers in pairs and keep the second one apart."""
    for num_drawn in range(4):
        seed_all(1)
        for _ in range(num_drawn):
            random.gauss(0, 1), np.random.randn()
        wanted = [(random.gauss(0, 1), np.random.randn()) for _ in range(4)]
        seed_all(1)
        for _ in range(num_drawn):
            random.gauss(0, 1), np.random.randn()
        loan = BorrowedGenerators(is_repeatable=True)
        found = []
        for _ in range(4):
            loan.run(lambda _: draws(), None, 3)
            found.append((random.gauss(0, 1), np.random.randn()))
        assert found == wanted


def test_a_dataset_that_seeds_by_itself_is_let() -> None:
    def reseeds(_: None) -> tuple[float, float, float]:
        state = np.random.get_state()
        np.random.seed(3)
        random.seed(3)
        torch.manual_seed(3)
        numbers = draws()[:3]
        np.random.set_state(state)
        return numbers

    seed_all(8)
    wanted = draws()
    seed_all(8)
    assert BorrowedGenerators(is_repeatable=True).run(reseeds, None, 1) == BorrowedGenerators(is_repeatable=True).run(
        reseeds, None, 2
    )
    assert draws() == wanted


def test_generators_left_alone_are_only_watched_and_seeded_when_they_are_used_after_all() -> None:
    calls = []

    def make(uses: bool) -> Any:
        calls.append(uses)
        return draws() if uses else None

    fresh = BorrowedGenerators(is_repeatable=True).run(make, True, 77)
    calls.clear()
    seed_all(2)
    wanted = draws()
    seed_all(2)
    loan = BorrowedGenerators(is_repeatable=True)
    for _ in range(TRUSTED_AFTER + 3):
        loan.run(make, False, 5)
    assert loan.num_unused == TRUSTED_AFTER
    assert len(calls) == TRUSTED_AFTER + 3
    assert loan.run(make, True, 77) == fresh
    assert len(calls) == TRUSTED_AFTER + 5  # that one was made twice
    assert draws() == wanted
    assert loan.run(make, True, 77) == fresh
    assert len(calls) == TRUSTED_AFTER + 6
    assert loan.num_unused == 0


def test_an_error_that_came_of_unseeded_numbers_is_made_again_with_seeded_ones() -> None:
    seed_all(0)
    loan = BorrowedGenerators(is_repeatable=True)
    for _ in range(TRUSTED_AFTER):
        loan.run(lambda _: None, None, 1)
    attempts = []

    def make(_: None) -> str:
        attempts.append(random.random())
        if len(attempts) == 1:
            raise ValueError("an unlucky number")
        return "lucky"

    assert loan.run(make, None, 1) == "lucky"
    with pytest.raises(ZeroDivisionError):
        for _ in range(TRUSTED_AFTER + 1):
            loan.run(lambda _: 1 / 0, None, 1)


def test_a_pending_normal_number_of_the_trainers_is_not_taken_by_a_dataset_that_was_trusted() -> None:
    """Taking it moves no word of the state, so while there is one nothing is trusted."""
    seed_all(0)
    loan = BorrowedGenerators(is_repeatable=True)
    for _ in range(TRUSTED_AFTER + 1):
        loan.run(lambda _: None, None, 1)
    kinds: list[Callable[[], float]] = [lambda: random.gauss(0, 1), lambda: float(np.random.standard_normal())]
    for draw in kinds:
        seed_all(0)
        reference = BorrowedGenerators(is_repeatable=True).run(lambda _, draw=draw: draw(), None, 5)  # type: ignore[misc]
        seed_all(0)
        draw()
        wanted = draw()
        seed_all(0)
        draw()
        loan.num_unused = TRUSTED_AFTER
        assert loan.run(lambda _, draw=draw: draw(), None, 5) == reference  # type: ignore[misc]
        assert draw() == wanted


def test_only_the_main_thread_borrows() -> None:
    """The generators are the main thread's, which may be drawing while another thread loads."""
    seed_all(3)
    wanted = [draws() for _ in range(200)]
    seed_all(3)
    seen = []

    def load() -> None:
        for batch in stoker.DataLoader(Numbers(4000), batch_size=2, seed=1):
            seen.append(batch)  # noqa: PERF402

    thread = threading.Thread(target=load)
    thread.start()
    found = [draws() for _ in range(200)]
    thread.join()
    assert found == wanted
    assert len(seen) == 2000


def test_streams_are_never_made_twice() -> None:
    loan = BorrowedGenerators(is_repeatable=False)
    for _ in range(2 * TRUSTED_AFTER):
        loan.run(lambda _: None, None, 1)
    assert loan.num_unused == 0


@pytest.mark.parametrize("is_hidden", [False, True], ids=["seen", "hidden"])
def test_it_works_where_the_words_cannot_be_seen(is_hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Python or NumPy that keeps its words elsewhere, everything is saved and seeded, and the numbers are the
    same.
    """
    reference = BorrowedGenerators(is_repeatable=True).run(lambda _: draws(), None, 9)
    if is_hidden:
        monkeypatch.setattr(process_wide, "_python_words", lambda: process_wide._changing)
        monkeypatch.setattr(process_wide, "_numpy_words", lambda _: process_wide._changing)
    seed_all(2)
    wanted = draws()
    seed_all(2)
    loan = BorrowedGenerators(is_repeatable=True)
    for _ in range(TRUSTED_AFTER + 2):
        loan.run(lambda _: None, None, 9)
    assert (loan.num_unused == 0) == is_hidden
    assert loan.run(lambda _: draws(), None, 9) == reference
    assert draws() == wanted


def test_another_numpy_generator_of_the_trainer_is_given_back() -> None:
    theirs = process_wide._get_numpy()
    try:
        process_wide._set_numpy(np.random.PCG64(4))
        mine = process_wide._get_numpy()
        BorrowedGenerators(is_repeatable=True).run(lambda _: draws(), None, 3)
        assert process_wide._get_numpy() is mine
    finally:
        process_wide._set_numpy(theirs)


def test_a_loan_travels_to_a_worker_without_what_it_has_learned() -> None:
    loan = BorrowedGenerators(is_repeatable=True)
    loan.run(lambda _: None, None, 1)
    again = pickle.loads(pickle.dumps(loan))
    assert (again.is_repeatable, again.num_unused) == (True, 0)


def test_loading_inline_leaves_the_trainers_numbers_alone() -> None:
    seed_all(4)
    wanted = [draws() for _ in range(60)]
    seed_all(4)
    loader = stoker.DataLoader(Augmented(60), batch_size=1, shuffle=True, seed=0)
    found = [draws() for _ in loader]
    assert found == wanted


def test_a_loader_inside_a_dataset_of_a_loader() -> None:
    class Outer(Numbers):
        def __getitem__(self, position: int) -> Any:
            first = draws()
            inner = listed(stoker.DataLoader(Augmented(4), batch_size=2, seed=position))
            return [*first, *draws(), float(stoker.rng().random()), inner[0]["python"][0]]

    arguments: dict[str, Any] = {"batch_size": 2, "seed": 1}
    assert listed(stoker.DataLoader(Outer(4), **arguments)) == listed(stoker.DataLoader(Outer(4), **arguments))
    keyed = [batch[10] for batch in listed(stoker.DataLoader(Outer(4), **arguments))]
    with stoker.sample_context(0, seed=1):
        assert stoker.rng().random() == keyed[0][0]


def test_ranks_do_not_augment_alike() -> None:
    ranks = [listed(stoker.DataLoader(Augmented(8), batch_size=2, seed=0, rank=rank, num_ranks=2)) for rank in (0, 1)]
    assert ranks[0][0]["python"] != ranks[1][0]["python"]
    assert ranks[0][0]["torch"] != ranks[1][0]["torch"]


# ---------------------------------------------------------------- the epoch


class Dated(Numbers):
    """Each sample says for which epoch it is read."""

    def __getitem__(self, position: int) -> int:
        return stoker.epoch()


def with_epoch(samples: list[int]) -> tuple[int, set[int]]:
    return stoker.epoch(), set(samples)


@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 1, "num_threads": 2}])
def test_samples_and_collate_functions_know_the_epoch(engine: dict[str, Any]) -> None:
    loader: Any = stoker.DataLoader(Dated(8), batch_size=4, collate_fn=with_epoch, **engine)
    assert stoker.epoch() == 0
    assert [list(loader) for _ in range(3)] == [[(epoch, {epoch})] * 2 for epoch in range(3)]
    loader.set_epoch(7)
    assert list(loader) == [(7, {7})] * 2
    assert stoker.epoch() == 0


def test_a_stream_knows_the_epoch() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            at_start = stoker.epoch()
            return iter([at_start] * 4) if at_start % 2 else (stoker.epoch() for _ in range(4))

    loader: Any = stoker.DataLoader(Stream(), batch_size=4, collate_fn=with_epoch)
    assert [list(loader) for _ in range(3)] == [[(epoch, {epoch})] for epoch in range(3)]


def test_a_loader_inside_a_sample_has_epochs_of_its_own() -> None:
    class Outer(Numbers):
        def __getitem__(self, position: int) -> Any:
            before = stoker.epoch()
            inner = [list(loader) for loader in [stoker.DataLoader(Dated(2), batch_size=2)] for _ in range(2)]
            assert stoker.epoch() == before
            return before, [int(batch[0]) for (batch,) in inner]

    mixture = stoker.mix({"often": (Outer(1), 0.5), "once": (Outer(2), 0.5)}, stop="all_exhausted")
    loader: Any = stoker.DataLoader(mixture, batch_size=4, collate_fn=list)
    own = [mixture.at(number)[1] for number in range(8)]
    assert max(own) > 1
    seen = [sample for _ in range(2) for batch in loader for sample in batch]
    assert seen == [(epoch, [0, 1]) for epoch in own]
