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
    assert state["sampler_state"] == {"at": 12}
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
