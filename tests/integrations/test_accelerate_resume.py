"""Accelerate resumes our loader: after a kill, at a boundary, twice, with other ranks and workers."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # optimizers import it: here once, and not in every rank
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

from stoker.errors import StateError, StateMismatch
from stoker.integrations.accelerate import write_state
from tests.integrations.accelerated import LENGTH, LOADERS, accelerator, expected, flat, numbers, real, served
from tests.integrations.launch import kill_this_process, launch

SEED = {"seed": 3}
PLANNED = ["shuffled", "sequential", "dropping", "padded", "threads", "workers", "pack", "mixture", "wrapped pack"]
OWN_ORDER = ["random sampler", "batch sampler", "sampler of batches", "own batches", "epoch sampler", "epoch batches"]


# ---------------------------------------------------------------- a run that is killed, and goes on


def run(names: list[str], folder: str, how: dict[str, Any]) -> Any:
    """Prepare loaders, go on from `how["resume"]`, draw some batches of each, save, and go on or die.

    Batches are noted on disk at the save, so that those of a killed run are known.
    """
    configuration = how.get("configuration", {})
    driver = accelerator(**configuration)
    set_seed(how.get("seed", 3), device_specific=how.get("device_specific", False))
    made = [LOADERS[name](**how.get("options", {})) for name in names]
    for loader in made if "batch_size" in how else []:
        loader.adapt(batch_size=how["batch_size"])
    prepared = driver.prepare(*made)
    loaders = list(prepared) if len(names) > 1 else [prepared]
    if how.get("resume"):
        driver.load_state(f"{folder}/{how['resume']}")
    iterators = [served_one_by_one(loader) for loader in loaders]
    seen: list[list[Any]] = [[] for _ in loaders]
    if "save" in how:
        for batches, iterator, loader in zip(seen, iterators, loaders, strict=True):
            num_steps = how["steps"]
            if num_steps in ("all", "over"):
                num_steps = len(loader) + (num_steps == "over")
            batches.extend(batch for _, batch in zip(range(num_steps), iterator, strict=False))
        driver.save_state(f"{folder}/{how['save']}")
        noted = Path(folder, f"{how['save']}_{driver.process_index}.json")
        noted.write_text(json.dumps(seen))
        driver.wait_for_everyone()
    if how.get("kill"):
        for iterator in iterators:
            next(iterator, None)  # work that is lost
        kill_this_process()
    rest: list[Any] = [list(iterator) for iterator in iterators]
    following = [served(loader, how.get("more", 1)) for loader in loaders]
    return [seen, rest, following]


def served_one_by_one(loader: Any) -> Any:
    for batch in loader:
        recipe = loader.recipe
        padding = None if recipe is None or recipe.padding is None else recipe.padding.tolist()
        yield [numbers(batch), padding]


def noted(folder: Path, save: str, num_ranks: int) -> list[Any]:
    """Return what each rank had before a save."""
    return [json.loads(Path(folder, f"{save}_{rank}.json").read_text()) for rank in range(num_ranks)]


def steps(parts: list[Any]) -> list[list[Any]]:
    """Return the global batches of what each rank had, one after the other."""
    assert len({len(part) for part in parts}) == 1, "ranks have different numbers of steps"
    return [sum(map(real, step), []) for step in zip(*parts, strict=True)]


def steps_of(number: int, saves: list[list[Any]], ranks: list[Any]) -> list[list[Any]]:
    """Return the global batches of one loader: those before each save, and those behind the last one."""
    before = [steps([rank[number] for rank in save]) for save in saves]
    behind = [rank[1][number] + sum(rank[2][number], []) for rank in ranks]
    return sum(before, []) + steps(behind)


def planned_steps(name: str, num_ranks: int, num_epochs: int = 3) -> list[list[Any]]:
    size = 2 if "pack" in name else 4
    return sum(expected(name, num_epochs, size * num_ranks, seed=3), [])


def assert_same_steps(got: list[Any], want: list[Any], at_least: int, name: str) -> None:
    assert len(got) >= at_least, name
    assert got == want[: len(got)], name


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_that_is_killed_twice_goes_on_exactly(tmp_path: Path, num_ranks: int) -> None:
    how, folder = {"options": SEED}, str(tmp_path)
    first = how | {"save": "a", "steps": 1, "kill": True}
    launch(run, PLANNED, folder, first, num_ranks=num_ranks, killed=True)
    second = how | {"resume": "a", "save": "b", "steps": 1, "kill": True, "seed": 8, "device_specific": True}
    launch(run, PLANNED, folder, second, num_ranks=num_ranks, killed=True)
    ranks = launch(run, PLANNED, folder, how | {"resume": "b", "seed": 9}, num_ranks=num_ranks)
    saves = [noted(tmp_path, save, num_ranks) for save in "ab"]
    for number, name in enumerate(PLANNED):
        want = planned_steps(name, num_ranks)
        assert_same_steps(steps_of(number, saves, ranks), want, 2 * len(want) // 3, name)


SEEDABLE = {"use_seedable_sampler": True}


@pytest.mark.parametrize("configuration", [{}, SEEDABLE, {"even_batches": False}], ids=["", "seedable", "uneven"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_streams_and_samplers_of_the_users_go_on_exactly(
    tmp_path: Path, num_ranks: int, configuration: dict[str, Any]
) -> None:
    names, folder = ["stream", "shared stream", "hugging face stream", *OWN_ORDER], str(tmp_path)
    how = {"configuration": configuration, "more": 2}
    whole = launch(run, names, folder, how, num_ranks=num_ranks)
    launch(run, names, folder, how | {"save": "a", "steps": 1, "kill": True}, num_ranks=num_ranks, killed=True)
    # what the process draws by itself is another: the state says it all
    ranks = launch(run, names, folder, how | {"resume": "a", "seed": 77, "device_specific": True}, num_ranks=num_ranks)
    saves = [noted(tmp_path, "a", num_ranks)]
    for number, name in enumerate(names):
        for rank in range(num_ranks):
            want = whole[rank][1][number] + sum(whole[rank][2][number], [])
            got = saves[0][rank][number] + ranks[rank][1][number] + sum(ranks[rank][2][number], [])
            if name == "random sampler" and num_ranks == 1 and configuration != SEEDABLE:
                # without a generator of its own, the sampler draws later epochs from the process's
                size = len(whole[rank][1][number])
                got, want = got[:size], want[:size]
            assert got == want, (name, rank)


def test_two_processes_made_one_and_two_again_go_on_exactly(tmp_path: Path) -> None:
    names, folder, how = [*PLANNED, "stream", "shared stream"], str(tmp_path), {"options": SEED}
    launch(run, names, folder, how | {"save": "a", "steps": 1, "kill": True}, killed=True)
    one = how | {"resume": "a", "save": "b", "steps": 1, "kill": True}
    launch(run, names, folder, one, num_ranks=1, killed=True)
    ranks = launch(run, names, folder, how | {"resume": "b"})
    for number, name in enumerate(names):
        before = [steps([rank[number] for rank in noted(tmp_path, *save)]) for save in (("a", 2), ("b", 1))]
        got = flat(sum(before, []) + steps([rank[1][number] for rank in ranks]))
        epochs = [flat(epoch) for epoch in expected(name, 2, seed=3)]
        if name == "dropping":  # what is left over at the end depends on the number of processes
            assert got == epochs[0][: len(got)], name
            assert len(got) >= len(epochs[0]) - 4, name
        else:
            assert got == epochs[0], name
        following = flat(steps([rank[2][number][0] for rank in ranks]))
        assert following == epochs[1][: len(following)], name


def test_another_number_of_workers_goes_on_exactly(tmp_path: Path) -> None:
    names, folder = ["shuffled", "pack", "mixture", "stream", "random sampler"], str(tmp_path)
    whole = launch(run, names, folder, {"options": SEED})
    how = {"options": SEED | {"num_workers": 0}, "save": "a", "steps": 1, "kill": True}
    launch(run, names, folder, how, killed=True)
    ranks = launch(run, names, folder, {"options": SEED | {"num_workers": 1, "prefetch_factor": 4}, "resume": "a"})
    saves = [noted(tmp_path, "a", 2)]
    for number, name in enumerate(names):
        assert steps_of(number, saves, ranks) == steps_of(number, [], whole), name


def test_another_batch_size_goes_on_exactly(tmp_path: Path) -> None:
    names, folder, how = ["shuffled", "padded", "mixture", "stream", "workers"], str(tmp_path), {"options": SEED}
    launch(run, names, folder, how | {"save": "a", "steps": 1, "kill": True}, killed=True)
    ranks = launch(run, names, folder, how | {"resume": "a", "batch_size": 2})
    before = noted(tmp_path, "a", 2)
    for number, name in enumerate(names):
        behind = steps([rank[1][number] for rank in ranks])
        assert {len(step) for step in behind[:-1]} == {4}
        first, second = [flat(epoch) for epoch in expected(name, 2, seed=3)]
        assert flat(steps([rank[number] for rank in before]) + behind) == first, name
        assert flat(steps([rank[2][number][0] for rank in ranks])) == second, name


@pytest.mark.parametrize("when", ["all", "over"])
def test_a_state_saved_at_the_end_of_an_epoch_goes_on_with_the_next_one(tmp_path: Path, when: str) -> None:
    names, folder = [*PLANNED, "stream", *OWN_ORDER], str(tmp_path)
    names.remove("own batches")  # whose length Accelerate rounds
    # behind the last batch inside the loop's body, or behind the loop
    whole = launch(run, names, folder, {"configuration": SEEDABLE, "options": SEED, "save": when, "steps": when})
    how = {"configuration": SEEDABLE, "options": SEED, "resume": when, "seed": 44}
    ranks = launch(run, names, folder, how)
    for number, name in enumerate(names):
        assert [rank[1][number] for rank in whole] == [[], []], name
        before = steps([rank[0][number] for rank in whole])
        if name in PLANNED:
            assert before == planned_steps(name, 2)[: len(before)], name
        got, want = ([rank[1][number] for rank in ranks], [rank[2][number][0] for rank in whole])
        assert got == want, name


# ---------------------------------------------------------------- skipping


def skipped(cases: list[Any]) -> list[Any]:
    """Return the batches of an epoch whose first ones were left out, and of the next epoch."""
    found = []
    for name, options, num_batches, seed in cases:
        driver = accelerator()
        set_seed(seed, device_specific=True)
        loader = driver.prepare(LOADERS[name](**options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a seed that was drawn
            first = served(driver.skip_first_batches(loader, num_batches), 1)
        found.append(first + served(loader, 1))
    return found


SKIPPED_NAMES = [*PLANNED, "stream", *OWN_ORDER]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_first_batches_are_left_out_once(num_ranks: int) -> None:
    cases: list[Any] = [(name, SEED, skip, 5) for name in SKIPPED_NAMES for skip in (0, 1, 2, 50, 2)]
    for found in launch(skipped, cases, num_ranks=num_ranks):
        for name, start in zip(SKIPPED_NAMES, range(0, len(found), 5), strict=True):
            (whole, following), *others = found[start : start + 5]
            for skip, (first, second) in zip((1, 2, 50, 2), others, strict=True):
                assert first == whole[skip:], (name, skip)
                # torch's sampler without a generator draws from the process's, which goes on
                assert second == following or (name == "random sampler" and num_ranks == 1), (name, skip)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_without_a_seed_of_the_loaders_set_seed_governs_what_is_left_out(num_ranks: int) -> None:
    cases: list[Any] = [("shuffled", {}, 0, 5), ("shuffled", {}, 1, 5), ("shuffled", {}, 1, 6)]
    for whole, same, other in launch(skipped, cases, num_ranks=num_ranks):
        assert same == [whole[0][1:], whole[1]]
        assert other != same


def resumed_by_counting(folder: str, how: dict[str, Any]) -> list[Any]:
    """Train as Accelerate's examples do: epochs and steps are counted from the name of the checkpoint."""
    driver = accelerator()
    set_seed(how["seed"])
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = driver.prepare(model, optimizer, LOADERS[how["name"]](**SEED))
    starting_epoch, resume_step, overall_step = 0, 0, 0
    if how["resume"]:
        driver.load_state(f"{folder}/step_{how['resume']}")
        starting_epoch, resume_step = divmod(how["resume"], len(loader))
        overall_step = how["resume"]
    seen = []
    for epoch in range(starting_epoch, 3):
        if how["sets_epoch"]:
            loader.set_epoch(epoch)
        is_resumed = bool(how["resume"]) and epoch == starting_epoch
        active = driver.skip_first_batches(loader, resume_step) if is_resumed else loader
        for batch in active:
            optimizer.zero_grad()
            driver.backward(model(batch.float()[:, None]).square().mean())
            optimizer.step()
            overall_step += 1
            seen.append(numbers(batch))
            if overall_step == how["stop"]:
                driver.save_state(f"{folder}/step_{overall_step}")
                return [seen, next(model.parameters()).tolist()]
    return [seen, next(model.parameters()).tolist()]


@pytest.mark.parametrize("sets_epoch", [True, False])
@pytest.mark.parametrize("name", ["shuffled", "stream"])
def test_scripts_that_count_steps_and_leave_them_out_go_on_exactly(tmp_path: Path, name: str, sets_epoch: bool) -> None:
    how = {"name": name, "sets_epoch": sets_epoch}
    whole = launch(resumed_by_counting, str(tmp_path), how | {"seed": 1, "resume": 0, "stop": 9})
    resumes = [(0, 2), (2, 3), (3, 7), (7, 9)]  # inside an epoch, at its end, inside another one
    parts = [
        launch(resumed_by_counting, str(tmp_path), how | {"seed": 1 + first, "resume": first, "stop": stop})
        if first
        else launch(resumed_by_counting, str(tmp_path), how | {"seed": 1, "resume": 0, "stop": stop})
        for first, stop in resumes
    ]
    for rank in range(2):
        assert sum((part[rank][0] for part in parts), []) == whole[rank][0]
        assert parts[-1][rank][1] == whole[rank][1]


# ---------------------------------------------------------------- other ways to save and load


def by_hand(names: list[str], folder: str, way: str) -> list[Any]:
    """Save and load in one of the ways there are; return what is left of the epoch and the next one, and what comes."""
    configuration = {"use_stateful_dataloader": True} if way == "use_stateful_dataloader" else {}
    results: list[Any] = []
    for is_resumed in (False, True):
        # as in a new process: Accelerate keeps nothing of the first run
        driver = accelerator(**configuration)
        if way == "automatic naming":
            driver = Accelerator(
                cpu=True,
                project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2),
            )
        loaders = [LOADERS[name](**SEED) for name in names]
        states = Path(folder, f"states_{driver.process_index}.pt")
        if way == "registered":
            driver.register_for_checkpointing(*loaders)
        if way == "loaded before" and is_resumed:
            for loader, state in zip(loaders, torch.load(states), strict=True):
                loader.load_state_dict(state)
        prepared = list(driver.prepare(*loaders))
        if is_resumed:
            if way == "automatic naming":
                driver.load_state()
            elif way in ("use_stateful_dataloader", "registered"):
                driver.load_state(folder)
            elif way == "loaded behind":
                for loader, state in zip(prepared, torch.load(states), strict=True):
                    loader.load_state_dict(state)
            results.append([served(loader, 2) for loader in prepared])
            continue
        iterators = [iter(loader) for loader in prepared]
        for _ in range(2):
            for iterator in iterators:
                next(iterator)
            driver.save_state(None if way == "automatic naming" else folder)
        torch.save([loader.state_dict() for loader in prepared], states)
        rest = [[list(served_behind(loader, iterator))] for loader, iterator in zip(prepared, iterators, strict=True)]
        results.append([epoch + served(loader, 1) for epoch, loader in zip(rest, prepared, strict=True)])
        driver.wait_for_everyone()
    return results


def served_behind(loader: Any, iterator: Any) -> Any:
    for batch in iterator:
        recipe = loader.recipe
        yield [numbers(batch), None if recipe is None or recipe.padding is None else recipe.padding.tolist()]


WAYS = ["use_stateful_dataloader", "registered", "automatic naming", "loaded before", "loaded behind"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_way_to_save_and_load_goes_on_exactly(tmp_path: Path, way: str, num_ranks: int) -> None:
    names = ["shuffled", "sequential", "padded", "pack", "mixture", "wrapped pack", "stream"]
    if way != "loaded before" or num_ranks == 1:  # Accelerate's sampler around the user's is there only when prepared
        names += ["epoch sampler", "epoch batches"]
    for rank, (going_on, resumed) in enumerate(launch(by_hand, names, str(tmp_path), way, num_ranks=num_ranks)):
        for name, want, got in zip(names, going_on, resumed, strict=True):
            assert got == want, (name, rank)


def loaded_before(names: list[str]) -> list[str]:
    """Return how loaders of a user's own sampler refuse states that do not fit what Accelerate has made of them."""
    driver, found = accelerator(), []
    for name in names:
        state = driver.prepare(LOADERS[name]()).state_dict()
        loader = LOADERS[name]()
        try:
            loader.load_state_dict(state)
            driver.prepare(loader)
            found.append("")
        except StateError as error:
            found.append(str(error))
    return found


def test_a_state_of_shared_samplers_is_refused_before_they_are_shared() -> None:
    for messages in launch(loaded_before, ["epoch sampler", "epoch batches", "random sampler"]):
        for message in messages:
            assert "sampler: the state has 'BatchSamplerShard', this loader" in message


def saved(names: list[str], folder: str, configuration: dict[str, Any]) -> None:
    driver = accelerator(**configuration)
    loaders = list(driver.prepare(*[LOADERS[name]() for name in names]))
    for loader in loaders:
        next(iter(loader))
    driver.save_state(folder)


def refused(names: list[str], folder: str, configuration: dict[str, Any]) -> list[str]:
    """Load each state by itself; return the errors."""
    found = []
    for number, name in enumerate(names):
        driver = accelerator(**configuration)
        loader = driver.prepare(LOADERS[name]())
        state = torch.load(f"{folder}/stoker_loader_{number}_0.bin")
        with pytest.raises(StateMismatch) as caught:
            loader.load_state_dict(state)
        found.append(str(caught.value))
    return found


def test_samplers_of_the_users_resume_with_as_many_processes_and_the_same_kind_of_shuffling_only(
    tmp_path: Path,
) -> None:
    names = ["epoch sampler", "epoch batches", "random sampler"]
    launch(saved, names, str(tmp_path), {})
    for message in launch(refused, names, str(tmp_path), {}, num_ranks=1)[0]:
        assert "num_processes: the state has 2, this loader 1" in message
    launch(saved, ["random sampler", "random sampler"], str(tmp_path), {"use_seedable_sampler": True})
    for message in launch(refused, ["random sampler"], str(tmp_path), {})[0]:
        assert "use_seedable_sampler: the state has True, this loader False" in message


def of_two_saves(folder: str) -> list[str]:
    driver = accelerator()
    loader = driver.prepare(LOADERS["shuffled"](**SEED))
    iterator = iter(loader)
    next(iterator)
    driver.save_state(folder)
    next(iterator)
    if driver.is_main_process:  # the other one was killed before it could save a second time
        torch.save(loader.state_dict(), f"{folder}/stoker_loader_0_0.bin")
    driver.wait_for_everyone()
    try:
        driver.load_state(folder)
    except StateError as error:
        return [str(error)]
    return []


def test_states_of_two_saves_in_one_folder_are_refused(tmp_path: Path) -> None:
    first, [message] = launch(of_two_saves, str(tmp_path))
    assert first == []
    assert "has states of different saves: one process was at step 2 in epoch 0, this one at step 1" in message
    assert "hint: a save into this folder was interrupted" in message


def killed_while_saving(folder: str) -> list[Any]:
    """Return what comes after a save into the same folder that did not end."""
    driver = accelerator()
    loader = driver.prepare(LOADERS["shuffled"](**SEED))
    batches = iter(loader)
    next(batches)
    driver.save_state(folder)
    expected = [numbers(batch) for batch in batches]

    def half(state: Any, path: Any) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with patch.object(torch, "save", half), suppress(KeyboardInterrupt):
        write_state(loader.state_dict(), Path(folder, "stoker_loader_0_0.bin"))
    driver.load_state(folder)
    return [expected, [numbers(batch) for batch in loader]]


def test_a_save_that_is_cut_off_leaves_the_one_before(tmp_path: Path) -> None:
    [[want, got]] = launch(killed_while_saving, str(tmp_path), num_ranks=1)
    assert got == want


def test_a_checkpoint_without_our_state_is_a_warning(tmp_path: Path) -> None:
    driver = accelerator()
    driver.prepare(LOADERS["torch"]())
    driver.save_state(str(tmp_path))
    driver.free_memory()
    loader = driver.prepare(LOADERS["shuffled"](**SEED))
    with pytest.warns(UserWarning, match=r"(?s)has no state of the stoker.DataLoader .* number 0.*skip_first_batches"):
        driver.load_state(str(tmp_path))
    assert served(loader, 1) == served(LOADERS["shuffled"](**SEED), 1)


def test_loaders_of_torch_and_ours_are_saved_side_by_side(tmp_path: Path) -> None:
    def prepared() -> tuple[Accelerator, list[Any]]:
        driver = accelerator()
        return driver, list(driver.prepare(LOADERS["torch"](), LOADERS["shuffled"](**SEED), LOADERS["pack"](**SEED)))

    driver, loaders = prepared()
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    driver.save_state(str(tmp_path))
    again, others = prepared()
    again.load_state(str(tmp_path))
    for iterator, other in list(zip(iterators, others, strict=True))[1:]:
        assert [numbers(batch) for batch in iterator] == [numbers(batch) for batch in other]
    assert len(list(others[0])) == 6  # torch's starts over, as always


# ---------------------------------------------------------------- gradients and metrics behind a resume


def accumulated(folder: str, name: str, stop: int, is_resumed: bool) -> list[Any]:
    """Train with accumulated gradients; return after which batches the optimizer stepped, metrics, and the weights."""
    driver = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer, loader = driver.prepare(model, optimizer, LOADERS[name](**SEED))
    if is_resumed:
        driver.load_state(folder)
    found: list[Any] = []
    while len(found) < stop:
        for batch in loader:
            with driver.accumulate(model):
                driver.backward(model(batch.float()[:, None]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            found.append([driver.sync_gradients, driver.gather_for_metrics(batch).tolist()])
            if len(found) == stop:
                driver.save_state(folder)
                break
    return [found, [parameter.tolist() for parameter in model.parameters()]]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_accumulated_gradients_and_metrics_go_on_as_if_nothing_had_been(tmp_path: Path, num_ranks: int) -> None:
    for name in ("shuffled", "stream"):
        folder = str(tmp_path / name)
        total, first = (5, 2) if num_ranks == 2 else (10, 4)
        whole = launch(accumulated, folder, name, total, False, num_ranks=num_ranks)
        before = launch(accumulated, folder, name, first, False, num_ranks=num_ranks)
        behind = launch(accumulated, folder, name, total - first, True, num_ranks=num_ranks)
        for rank in range(num_ranks):
            assert before[rank][0] + behind[rank][0] == whole[rank][0], name
            assert behind[rank][1] == whole[rank][1], name
        epoch = flat([metrics for _, metrics in whole[0][0][: 6 // num_ranks]])
        assert sorted(epoch) == list(range(LENGTH)), name
