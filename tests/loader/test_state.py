"""States: small, exact, at any moment; samplers; epochs; digests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

import stoker
from stoker.errors import StateError
from tests.loader.datasets import Numbers, listed, plain

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}]
NAMES = ["inline", "threads", "workers"]


def loader(**arguments: Any) -> stoker.DataLoader[Any]:
    return stoker.DataLoader(Numbers(50), **({"batch_size": 7, "shuffle": True, "seed": 3} | arguments))


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_state_tells_what_was_yielded_not_what_was_prefetched(engine: dict[str, Any]) -> None:
    made = loader(**engine)
    assert made.state_dict()["step"] == 0
    iterator = iter(made)
    for step in range(4):
        assert made.state_dict()["step"] == step
        assert made.state_dict()["position"] == 7 * step
        next(iterator)
    iterator.close()


def test_a_state_is_small_and_json() -> None:
    made = loader()
    next(iter(made))
    text = json.dumps(made.state_dict())
    assert len(text) < 1000
    assert json.loads(text) == made.state_dict()


def test_a_seed_that_was_drawn_travels_with_the_state() -> None:
    torch.manual_seed(1)
    made = loader(seed=None)
    iterator = iter(made)
    seen = [plain(next(iterator)) for _ in range(3)]
    rest, following = listed(iterator), listed(made)
    iterator = iter(fresh := loader(seed=None))
    torch.manual_seed(2)
    again = loader(seed=None)
    state = loader(seed=None).state_dict()
    assert state["seed"] != fresh.state_dict()["seed"]
    torch.manual_seed(1)
    stopped = loader(seed=None)
    iterator = iter(stopped)
    assert [plain(next(iterator)) for _ in range(3)] == seen
    again.load_state_dict(stopped.state_dict())
    assert listed(again) == rest
    assert listed(again) == following


def test_the_end_of_an_epoch_is_exact_before_and_after_it_is_noticed() -> None:
    made = loader()
    iterator = iter(made)
    for _ in range(len(made)):
        next(iterator)
    before = made.state_dict()
    assert (before["epoch"], before["position"]) == (0, 50)
    with pytest.raises(StopIteration):
        next(iterator)
    after = made.state_dict()
    assert (after["epoch"], after["position"]) == (1, 0)
    second = listed(made)
    # saved after the last batch: what is left of that epoch is nothing, as it would have been
    again = loader()
    again.load_state_dict(before)
    assert listed(again) == []
    assert listed(again) == second
    again.load_state_dict(after)
    assert listed(again) == second


def test_set_epoch_chooses_the_order() -> None:
    made = loader()
    epochs = [listed(made) for _ in range(3)]
    made.set_epoch(1)
    assert listed(made) == epochs[1]
    assert listed(made) == epochs[2]


def test_set_epoch_in_the_usual_loop_does_not_spoil_a_resume() -> None:
    made = loader()
    whole = [listed(made) for _ in range(3)]
    stopped = loader()
    listed(stopped)
    iterator = iter(stopped)
    seen = [plain(next(iterator)) for _ in range(2)]
    again = loader()
    again.load_state_dict(stopped.state_dict())
    epochs = []
    for epoch in range(1, 3):
        again.set_epoch(epoch)
        epochs.append(listed(again))
    assert [seen + epochs[0], epochs[1]] == whole[1:]
    again.load_state_dict(stopped.state_dict())
    again.set_epoch(0)
    assert listed(again) == whole[0]


def test_an_epoch_before_a_change_of_batch_size_can_be_had_again() -> None:
    made = loader()
    iterator = iter(made)
    next(iterator)
    again = loader(batch_size=5)
    again.load_state_dict(made.state_dict())
    listed(again)
    again.set_epoch(0)
    assert listed(again) == listed(loader(batch_size=5))


def test_the_recipe_of_the_last_batch_can_be_seen() -> None:
    made = loader(tail="pad", batch_size=8)
    before: Any = made.recipe
    assert before is None
    for batch in made:
        assert made.recipe is not None
        assert made.recipe.positions.tolist() == plain(batch)
    assert made.recipe is not None
    assert made.recipe.padding is not None
    assert made.recipe.padding.sum() == 6
    assert made.plan is not None
    assert made.plan.find(plain(batch)[0]) == (6, 0, 0, False)
    assert loader(shuffle=None, sampler=range(3)).plan is None


def test_skipping_after_a_loss_spike() -> None:
    whole = listed(loader(batch_size=5))
    made = loader(batch_size=5)
    iterator = iter(made)
    for _ in range(3):
        next(iterator)
    again = loader(batch_size=5, skip=[(4, 6)])
    again.load_state_dict(made.state_dict())
    assert listed(again) == [whole[3], *whole[6:]]
    assert len(loader(batch_size=5, skip=[(4, 6)])) == 8


def test_unordered_workers_resume_exactly_what_was_not_yielded() -> None:
    made = stoker.DataLoader(SlowFirst(), batch_size=4, num_workers=2, in_order=False, seed=1)
    iterator = iter(made)
    seen = [plain(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(made.state_dict()))
    iterator.close()
    assert state["ahead"], "batches have overtaken the slow one"
    again = stoker.DataLoader(Numbers(40), batch_size=4, seed=1)
    again.load_state_dict(state)
    assert sorted(seen + listed(again)) == listed(stoker.DataLoader(Numbers(40), batch_size=4))
    with pytest.raises(StateError, match="only fits the same batch size"):
        stoker.DataLoader(Numbers(40), batch_size=5, seed=1).load_state_dict(state)


class SlowFirst(Numbers):
    """The first batch comes late."""

    def __init__(self) -> None:
        super().__init__(40)

    def __getitem__(self, position: int) -> int:
        if position == 0:
            import time

            time.sleep(1.0)
        return position


class Remembering(Sampler[int]):
    """A sampler that knows where it is."""

    def __init__(self) -> None:
        self.at = 0
        self.num_drawn = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 30:
            self.at += 1
            self.num_drawn += 1
            yield 30 - self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


SAMPLERS: dict[str, Any] = {
    "list": lambda: list(range(29, -1, -1)),
    "random": lambda: RandomSampler(range(30)),
    "generator": lambda: RandomSampler(range(30), generator=torch.Generator().manual_seed(4)),
    "replacement": lambda: RandomSampler(range(30), replacement=True, num_samples=45),
    "weighted": lambda: WeightedRandomSampler([float(i + 1) for i in range(30)], 40),
    "distributed": lambda: DistributedSampler(range(30), num_replicas=2, rank=1),  # type: ignore[arg-type]
    "own state": Remembering,
}


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_resume_exactly(sampler: Any, engine: dict[str, Any]) -> None:
    for stop in (0, 1, 3):
        torch.manual_seed(stop)
        made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=sampler(), **engine)
        iterator = iter(made)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(made.state_dict()))
        rest = listed(iterator)
        if stop:
            torch.manual_seed(99)
            before = torch.get_rng_state()
            again = stoker.DataLoader(Numbers(30), batch_size=4, sampler=sampler(), **engine)
            again.load_state_dict(state)
            resumed = iter(again)
            assert listed(resumed) == rest
            assert again.state_dict()["digest"] == made.state_dict()["digest"]
            # the loader draws one number as torch's does; replaying the sampler's takes none
            torch.set_rng_state(before)
            torch.empty((), dtype=torch.int64).random_()
            wanted = torch.get_rng_state()
            torch.set_rng_state(before)
            again.load_state_dict(state)
            iterator = iter(again)
            next(iterator)
            iterator.close()
            assert torch.equal(torch.get_rng_state(), wanted)


def test_a_sampler_that_draws_nothing_has_a_small_state() -> None:
    made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=range(30))
    next(iter(made))
    assert len(json.dumps(made.state_dict())) < 500


def test_a_sampler_with_a_state_is_not_drawn_again() -> None:
    made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=Remembering(), num_threads=1)
    iterator = iter(made)
    seen = [plain(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(made.state_dict()))
    iterator.close()
    assert state["sampler_state"] == [{"at": 12}]
    sampler = Remembering()
    again = stoker.DataLoader(Numbers(30), batch_size=4, sampler=sampler)
    again.load_state_dict(state)
    assert seen + listed(again) == listed(stoker.DataLoader(Numbers(30), batch_size=4, sampler=Remembering()))
    assert sampler.num_drawn == 18
    assert len(listed(again)) == 8


def test_a_sampler_resumes_with_another_batch_size() -> None:
    made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=range(30))
    iterator = iter(made)
    next(iterator)
    next(iterator)
    again = stoker.DataLoader(Numbers(30), batch_size=3, sampler=range(30))
    again.load_state_dict(made.state_dict())
    assert sum(listed(again), []) == list(range(8, 30))


def test_batch_samplers_resume_by_batches() -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Numbers(30), batch_sampler=BatchSampler(RandomSampler(range(30)), 4, False))

    torch.manual_seed(0)
    made = make()
    iterator = iter(made)
    seen = [plain(next(iterator)) for _ in range(3)]
    state = made.state_dict()
    rest = listed(iterator)
    again = make()
    again.load_state_dict(state)
    assert listed(again) == rest
    assert len(seen + rest) == 8


def test_a_distributed_sampler_is_put_back_to_its_epoch() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(30), num_replicas=2, rank=0)
    sampler.set_epoch(5)
    made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=sampler)
    iterator = iter(made)
    next(iterator)
    state, rest = made.state_dict(), listed(iterator)
    other: DistributedSampler[int] = DistributedSampler(Numbers(30), num_replicas=2, rank=0)
    again = stoker.DataLoader(Numbers(30), batch_size=4, sampler=other)
    again.load_state_dict(state)
    assert other.epoch == 5
    assert listed(again) == rest


def test_another_sampler_is_refused() -> None:
    state = stoker.DataLoader(Numbers(30), sampler=range(3)).state_dict()
    with pytest.raises(StateError, match="sampler: the state has 'range', this loader 'RandomSampler'"):
        stoker.DataLoader(Numbers(30), sampler=RandomSampler(range(3))).load_state_dict(state)


def test_digests_tell_orders_apart() -> None:
    def digest(**arguments: Any) -> str:
        made = loader(**arguments)
        list(made)
        return str(made.state_dict()["digest"])

    assert digest() == digest(batch_size=3) == digest(num_threads=2) != digest(seed=4)
    forward = stoker.DataLoader(Numbers(9), batch_size=2, sampler=range(9))
    backward = stoker.DataLoader(Numbers(9), batch_size=2, sampler=range(8, -1, -1))
    plan = stoker.DataLoader(Numbers(9), batch_size=4)
    for made in (forward, backward, plan):
        list(made)
    assert forward.state_dict()["digest"] == plan.state_dict()["digest"] != backward.state_dict()["digest"]


def test_digests_go_on_over_epochs_and_tell_from_where() -> None:
    made = loader()
    list(made)
    first = made.state_dict()
    list(made)
    assert made.state_dict()["digest"] != first["digest"]
    assert first["digest_since"] == made.state_dict()["digest_since"] == [0, 0]
    other = loader(rank=0, num_ranks=2)
    iterator = iter(made)
    next(iterator)
    other.load_state_dict(made.state_dict())
    assert (other.state_dict()["digest"], other.state_dict()["digest_since"]) == ("0" * 16, [2, 7])


SAMPLERS_WITH_A_MEMORY: dict[str, Any] = {
    "generator": lambda: RandomSampler(range(30), generator=torch.Generator().manual_seed(4)),
    "own state": lambda: CountingEpochs(),
    "batch sampler": lambda: BatchSampler(CountingEpochs(), 4, False),
}


class CountingEpochs(Remembering):
    """Its order depends on how many epochs it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        for position in super().__iter__():
            yield (position + 7 * self.epochs) % 30
        self.epochs += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epochs = state["at"], state["epochs"]


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("sampler", SAMPLERS_WITH_A_MEMORY.values(), ids=SAMPLERS_WITH_A_MEMORY)
def test_samplers_resume_between_epochs_and_before_the_first_batch(sampler: Any, engine: dict[str, Any]) -> None:
    def make() -> stoker.DataLoader[Any]:
        made = sampler()
        batching = {"batch_sampler": made} if isinstance(made, BatchSampler) else {"sampler": made, "batch_size": 4}
        return stoker.DataLoader(Numbers(30), **batching, **engine)

    whole = make()
    epochs = [listed(whole) for _ in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    first = make()
    assert [listed(first), listed(first)] == epochs[:2]
    between = json.loads(json.dumps(first.state_dict()))
    iterator = iter(first)
    begun = json.loads(json.dumps(first.state_dict()))
    iterator.close()
    for state in (between, begun):
        again = make()
        again.load_state_dict(state)
        assert [listed(again), listed(again)] == epochs[2:]


def test_unordered_workers_with_a_sampler_resume_what_was_not_yielded() -> None:
    made = stoker.DataLoader(SlowFirst(), batch_size=4, sampler=range(40), num_workers=2, in_order=False)
    iterator = iter(made)
    seen = [plain(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(made.state_dict()))
    iterator.close()
    assert state["ahead"]
    again = stoker.DataLoader(Numbers(40), batch_size=4, sampler=range(40))
    again.load_state_dict(state)
    assert sorted(seen + listed(again)) == listed(stoker.DataLoader(Numbers(40), batch_size=4))
    with pytest.raises(StateError, match="only fits the same batch size"):
        stoker.DataLoader(Numbers(40), batch_size=5, sampler=range(40)).load_state_dict(state)


def test_a_batch_sampler_of_another_size_is_refused() -> None:
    def make(size: int) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Numbers(40), batch_sampler=BatchSampler(range(40), size, False))

    made = make(4)
    iterator = iter(made)
    next(iterator)
    next(iterator)
    again = make(8)
    again.load_state_dict(made.state_dict())
    with pytest.raises(StateError, match="samples in the first 2 batches: the state has 8, this loader 16"):
        listed(again)


def test_states_of_samplers_and_streams_of_another_length_are_refused() -> None:
    state = stoker.DataLoader(Numbers(100), sampler=range(100)).state_dict()
    with pytest.raises(StateError, match="sampler_length: the state has 100, this loader 50"):
        stoker.DataLoader(Numbers(100), sampler=range(50)).load_state_dict(state)
    with pytest.raises(StateError, match="dataset_length: the state has 100, this loader 60"):
        stoker.DataLoader(Numbers(60), sampler=range(50)).load_state_dict(state)


def test_the_epoch_of_a_sampler_inside_a_batch_sampler_is_put_back() -> None:
    def make() -> tuple[Any, stoker.DataLoader[Any]]:
        inner: DistributedSampler[int] = DistributedSampler(Numbers(30), num_replicas=2, rank=0)
        return inner, stoker.DataLoader(Numbers(30), batch_sampler=BatchSampler(inner, 4, False))

    sampler, made = make()
    sampler.set_epoch(3)
    iterator = iter(made)
    next(iterator)
    state, rest = made.state_dict(), listed(iterator)
    sampler, again = make()
    again.load_state_dict(state)
    assert sampler.epoch == 3
    assert listed(again) == rest


def test_a_dataset_that_was_told_its_epoch_is_told_again() -> None:
    class Told(Numbers):
        epoch_seen = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch_seen = epoch

    made = stoker.DataLoader(Told(30), batch_size=4, seed=1)
    made.set_epoch(7)
    next(iter(made))
    dataset = Told(30)
    again = stoker.DataLoader(dataset, batch_size=4, seed=1)
    again.load_state_dict(made.state_dict())
    assert dataset.epoch_seen == 7


def test_the_same_skip_is_not_applied_twice_when_the_batch_size_changes() -> None:
    made = loader(batch_size=10, skip=[(3, 4)])
    next(iter(made))
    again = loader(batch_size=5, skip=[(3, 4)])
    again.load_state_dict(made.state_dict())
    assert again.plan is not None
    assert again.plan.skip == ((5, 7),)
    skipped = set(listed(loader(batch_size=10))[3])
    assert not skipped & set(sum(listed(again), []))


def test_unordered_workers_and_a_skip_at_the_next_epochs_start() -> None:
    made = stoker.DataLoader(Numbers(40), batch_size=10, num_workers=2, in_order=False, skip=[(4, 6)], seed=1)
    iterator = iter(made)
    for _ in range(4):
        next(iterator)
    state = made.state_dict()
    iterator.close()
    assert (state["epoch"], state["step"]) == (0, 4)
    again = stoker.DataLoader(Numbers(40), batch_size=10, seed=1)
    again.load_state_dict(state)
    assert listed(again) == []
    assert len(listed(again)) == 2


def test_len_is_that_of_a_whole_epoch_after_any_resume() -> None:
    made = loader(batch_size=10)
    next(iter(made))
    for batch_size in (10, 5):
        again = loader(batch_size=batch_size)
        again.load_state_dict(made.state_dict())
        assert len(again) == 50 // batch_size


def test_a_fingerprint_that_is_not_a_text_is_left_out() -> None:
    class Odd(Numbers):
        def fingerprint(self) -> str:
            return "x"

    assert json.loads(json.dumps(stoker.DataLoader(Odd(10)).state_dict()))["dataset"] is None


def test_numpy_integers_are_seeds() -> None:
    import numpy as np

    assert listed(loader(seed=np.int64(3))) == listed(loader(seed=3))
    json.dumps(loader(seed=np.int64(3)).state_dict())


def test_an_order_of_ones_own_is_told_in_the_state() -> None:
    class Backwards:
        name = "backwards"

        def positions(self, ordinals: Any, *, epoch: int, num_samples: int, seed: int) -> Any:
            return num_samples - 1 - ordinals

        ordinals = positions

        def __repr__(self) -> str:
            return "Backwards()"

    made = stoker.DataLoader(Numbers(10), batch_size=4, order=Backwards())
    assert listed(made) == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert made.state_dict()["plan"]["order"] == {"name": "backwards", "is": "Backwards()"}


def test_the_planned_sampler_serves_another_loader() -> None:
    made = loader(tail="pad", batch_size=8, rank=1, num_ranks=2)
    assert len(made.sampler) == len(list(made.sampler))  # type: ignore[arg-type]
    sampler = loader().sampler  # its own loader is gone
    rebuilt = stoker.DataLoader(Numbers(50), batch_size=7, sampler=sampler)
    own = loader()
    assert [listed(rebuilt), listed(rebuilt)] == [listed(own), listed(own)]


def test_loaders_that_share_a_generator_take_turns_as_in_torch() -> None:
    def orders(kind: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        made = [kind(Numbers(8), 8, sampler=RandomSampler(range(8), generator=generator)) for _ in range(2)]
        return [plain(pair) for pair in zip(*made)]

    ours, theirs = orders(stoker.DataLoader), orders(torch.utils.data.DataLoader)
    assert ours == theirs
    assert ours[0][0] != ours[0][1]


def test_a_state_after_a_short_last_batch_leaves_nothing_of_that_epoch() -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Numbers(30), batch_size=4, sampler=CountingEpochs())

    made = make()
    iterator = iter(made)
    for _ in range(8):
        next(iterator)
    state = json.loads(json.dumps(made.state_dict()))
    assert (state["epoch"], state["is_ended"]) == (0, True)
    assert next(iterator, None) is None
    following = listed(made)
    again = make()
    again.load_state_dict(state)
    assert listed(again) == []
    assert listed(again) == following


def test_a_batch_sampler_that_keeps_the_generator_itself() -> None:
    class Buckets(Sampler[list[int]]):
        """Shuffles whole batches of what an inner sampler gives."""

        def __init__(self) -> None:
            self.sampler = list(range(24))
            self.generator = torch.Generator().manual_seed(2)

        def __iter__(self) -> Iterator[list[int]]:
            for bucket in torch.randperm(6, generator=self.generator).tolist():
                yield self.sampler[4 * bucket : 4 * bucket + 4]

    made = stoker.DataLoader(Numbers(24), batch_sampler=Buckets())
    epochs = [listed(made) for _ in range(3)]
    stopped = stoker.DataLoader(Numbers(24), batch_sampler=Buckets())
    listed(stopped)
    iterator = iter(stopped)
    seen = [plain(next(iterator)) for _ in range(2)]
    again = stoker.DataLoader(Numbers(24), batch_sampler=Buckets())
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert seen + listed(again) == epochs[1]
    assert listed(again) == epochs[2]


def test_a_planned_sampler_in_another_loader_resumes_in_its_epoch() -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Numbers(50), batch_size=7, sampler=loader().sampler)

    made = make()
    epochs = [listed(made) for _ in range(4)]
    stopped = make()
    listed(stopped)
    listed(stopped)
    between = stopped.state_dict()
    iterator = iter(stopped)
    seen = [plain(next(iterator)) for _ in range(3)]
    again = make()
    again.load_state_dict(stopped.state_dict())
    assert seen + listed(again) == epochs[2]
    assert listed(again) == epochs[3]
    again = make()
    again.load_state_dict(between)
    assert listed(again) == epochs[2]


class Failing(Sampler[int]):
    """Raises at one point."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)
        raise OSError("the index server is gone")


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_sampler_that_fails_is_never_taken_for_the_end(engine: dict[str, Any]) -> None:
    made = stoker.DataLoader(Numbers(30), batch_size=4, sampler=Failing(), **engine)
    iterator = iter(made)
    assert [plain(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(3):
        with pytest.raises(OSError, match="the index server is gone") as caught:
            next(iterator)
        assert "raise OSError" in caught.value.__notes__[0]
        del caught
    assert (made.state_dict()["epoch"], made.state_dict()["num_batches"]) == (0, 2)
    iterator.close()


def test_a_state_that_turns_out_not_to_fit_is_refused_again() -> None:
    def make(size: int) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Numbers(40), batch_sampler=BatchSampler(range(40), size, False))

    made = make(4)
    iterator = iter(made)
    next(iterator)
    again = make(8)
    again.load_state_dict(made.state_dict())
    for _ in range(2):
        with pytest.raises(StateError, match="samples in the first 1 batches"):
            iter(again)
