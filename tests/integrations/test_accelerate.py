"""Accelerate drives our loader: what comes, on one and on two processes."""

from __future__ import annotations

import copy
import io
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # optimizers import it: here once, and not in every rank
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import set_seed
from torch.distributed.device_mesh import init_device_mesh

import stoker
from stoker.errors import ArgumentError
from tests.integrations.accelerated import LENGTH, LOADERS, Stream, accelerator, expected, flat, real, served, together
from tests.integrations.launch import launch
from tests.loader.datasets import Broken, Numbers

# ---------------------------------------------------------------- what two processes get


def prepared_epochs(
    name: str, options: dict[str, Any], configuration: dict[str, Any], num_epochs: int = 2, seed: int | None = None
) -> Any:
    """Run on each rank: prepare the loader, and return what its epochs have, or the error."""
    driver = accelerator(**configuration)
    if seed is not None:
        set_seed(seed, device_specific=True)
    if options.pop("is_own_share", False):
        options |= {"rank": driver.process_index, "num_ranks": driver.num_processes}
    try:
        loader = driver.prepare(LOADERS[name](**options))
        return served(loader, num_epochs)
    except (ArgumentError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def many_epochs(cases: list[Any]) -> list[Any]:
    return [prepared_epochs(*case) for case in cases]


EXACT = ["shuffled", "sequential", "padded", "threads", "workers", "pack", "mixture", "wrapped pack"]


def test_two_processes_get_the_global_batches_of_the_plain_loop() -> None:
    ranks = launch(many_epochs, [(name, {"seed": 3}, {}, 3) for name in EXACT])
    for name, *epochs in zip(EXACT, *ranks, strict=True):
        got = together(epochs)
        size = 4 if name in ("pack", "wrapped pack") else 8
        assert got == expected(name, 3, size, seed=3), name
        assert got[0] != got[1] or name == "sequential"
        shares = [[len(samples) for samples, _ in epoch] for rank in epochs for epoch in rank]
        assert {size for share in shares for size in share} == {size // 2}, name  # even batches


def test_streams_are_shared_out_and_come_once() -> None:
    names = ["stream", "shared stream", "hugging face stream"]
    ranks = launch(many_epochs, [(name, {}, {}, 2) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        first, second = together(epochs)
        if name == "hugging face stream":
            assert sorted(flat(first)) == sorted(flat(second)) == list(range(LENGTH))
            assert first != second  # which has an order for each epoch
        else:
            assert first == second == [list(range(8)), list(range(8, 16)), list(range(16, 21))], name


def test_processes_whose_seeds_differ_share_one_order() -> None:
    names = ["shuffled", "random sampler"]
    ranks = launch(many_epochs, [(name, {}, {}, 2, 7) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        # Accelerate fills up a user's own sampler with samples of the beginning, which are not marked
        first, second = [flat(epoch)[:LENGTH] for epoch in together(epochs)]
        assert sorted(first) == sorted(second) == list(range(LENGTH)), name
        assert first != second, name


def seeds_of_ranks(use_seedable_sampler: bool, data_seed: int | None) -> list[int]:
    driver = accelerator(use_seedable_sampler=use_seedable_sampler, data_seed=data_seed)
    set_seed(3, device_specific=True)
    torch.rand(3 + driver.process_index)
    loader = driver.prepare(LOADERS["shuffled"]())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        driver.skip_first_batches(loader, 1)
    return [loader.state_dict()["seed"], len(caught)]


def test_the_seed_is_the_first_processs_or_the_one_that_accelerate_is_given() -> None:
    drawn = launch(seeds_of_ranks, False, None)
    assert drawn[0] == drawn[1]
    assert drawn[0][1] == 1  # whoever skips by counting is warned: another run may draw another seed
    assert launch(seeds_of_ranks, True, None) == [[3, 0], [3, 0]]
    assert launch(seeds_of_ranks, False, 11) == [[11, 0], [11, 0]]


def test_a_loader_that_has_its_rank_already_is_not_shared_out_again() -> None:
    ranks = launch(
        many_epochs,
        [
            ("shuffled", {"seed": 3, "distributed": True}, {}),
            ("shuffled", {"seed": 3, "is_own_share": True}, {}),
            ("shuffled", {"seed": 3, "mesh": {"dp": 2}}, {}),
            ("shuffled", {"distributed": True}, {}),
        ],
    )
    for case in range(3):
        assert together([rank[case] for rank in ranks]) == expected("shuffled", 2, 8, seed=3)
    assert together([rank[3] for rank in ranks]) == expected("shuffled", 2, 8, seed=0)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("shuffled", {}, {"dispatch_batches": True}, "dispatch_batches=True.*leave it out"),
    (
        "shuffled",
        {"distributed": True},
        {"split_batches": True},
        "split_batches=True makes batch_size=4 that of all.*leave out distributed=",
    ),
    ("unbatched", {}, {"split_batches": True}, "a multiple of the 2 processes, got None"),
    ("shuffled", {"tail": "keep"}, {}, "tail='keep'.*even_batches=True.*leave out tail="),
    ("copied stream", {}, {}, "each of the 2 workers would read all.*shard='auto'"),
    (
        "shuffled",
        {"rank": 1, "num_ranks": 4},
        {},
        "already reads the share of rank 1 of 4, and Accelerate expects.*leave out distributed=",
    ),
    (
        "shuffled",
        {"mesh": {"tp": 2}},
        {},
        "already reads the share of rank 0 of 1, and Accelerate expects.*parallelism_config=",
    ),
    ("distributed sampler", {}, {}, "DistributedSampler already gives this process its share.*pass shuffle=True"),
]


def test_what_accelerate_cannot_have_is_refused_with_the_line_to_write() -> None:
    ranks = launch(many_epochs, [case[:3] for case in REFUSED])
    for (*case, pattern), *messages in zip(REFUSED, *ranks, strict=True):
        for message in messages:
            assert isinstance(message, str), case
            assert re.match(f"(?s)ArgumentError: .*{pattern}", message), (case, message)


def test_split_batches_keeps_the_global_batch() -> None:
    names = ["shuffled", "dropping", "stream", "sequential"]
    ranks = launch(many_epochs, [(name, {"seed": 3}, {"split_batches": True}, 2) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        assert together(epochs) == expected(name, 2, seed=3), name
        assert {len(samples) for rank in epochs for epoch in rank for samples, _ in epoch} == {2}, name


def test_without_even_batches_no_sample_is_added_and_ranks_stay_in_step() -> None:
    names = ["shuffled", "stream", "dropping"]
    ranks = launch(many_epochs, [(name, {"seed": 3}, {"even_batches": False}, 2) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        assert together(epochs) == expected(name, 2, 8, seed=3), name
        assert all(padding is None for rank in epochs for epoch in rank for _, padding in epoch), name
        assert [len(rank[0][-1][0]) for rank in epochs] == ([4, 4] if name == "dropping" else [2, 3]), name


# Accelerate sets the epoch of the last ones
NOT_AS_PLAIN = {"copied stream", "distributed sampler", "epoch sampler", "epoch batches", "hugging face stream"}


@pytest.mark.parametrize("name", sorted(set(LOADERS) - NOT_AS_PLAIN))
def test_one_process_gets_what_the_plain_loop_gets(name: str) -> None:
    options = {"seed": 3} if not name.startswith("torch") else {}
    torch.manual_seed(3)
    plain = served(LOADERS[name](**options), 3)
    torch.manual_seed(3)
    loader = accelerator().prepare(LOADERS[name](**options))
    assert served(loader, 3) == plain


OWN_ORDER = [
    "random sampler",
    "dropping sampler",
    "batch sampler",
    "sampler of batches",
    "epoch sampler",
    "epoch batches",
]


def ours_and_torchs(cases: list[Any]) -> list[Any]:
    """Return the epochs of samplers of the user's, in our loader and in torch's."""
    found = []
    for name, configuration in cases:
        for kind in (stoker.DataLoader, torch.utils.data.DataLoader):
            with patch.object(stoker, "DataLoader", kind):
                loader = LOADERS[name]()
            driver = accelerator(**configuration)
            set_seed(5, device_specific=True)
            epochs = served(driver.prepare(loader), 3)
            found.append([[batch for batch, _ in epoch] for epoch in epochs])
    return found


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_samplers_of_the_users_give_what_they_give_in_torchs_loader(num_ranks: int) -> None:
    configurations: list[dict[str, Any]] = [
        {},
        {"even_batches": False},
        {"use_seedable_sampler": True},
        {"split_batches": True},
    ]
    cases = [
        (name, configuration)
        for configuration in configurations
        for name in OWN_ORDER
        # which Accelerate cannot prepare in torch's loader
        if name != "sampler of batches" or (num_ranks == 2 and "split_batches" not in configuration)
    ]
    for found in launch(ours_and_torchs, cases, num_ranks=num_ranks):
        for case, ours, torchs in zip(cases, found[::2], found[1::2], strict=True):
            assert ours == torchs, case
            if "epoch" in case[0]:
                assert ours[0] != ours[1] != ours[2], case


class Shuffling(Stream):
    """Draws its order when it is read, from a generator of its own or from that of the process."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        if source == "own":
            self.generator = torch.Generator()
            self.generator.manual_seed(torch.initial_seed())

    def __iter__(self) -> Iterator[int]:
        if self.source == "python":
            return iter(random.sample(range(LENGTH), LENGTH))
        return iter(torch.randperm(LENGTH, generator=getattr(self, "generator", None)).tolist())


SHUFFLING = [
    (source, workers) for source in ("own", "torch", "python") for workers in ({}, {"num_workers": 2, "shard": "auto"})
]


def shuffled_streams() -> list[Any]:
    driver = accelerator()
    set_seed(3, device_specific=True)
    loaders = [
        stoker.DataLoader(Shuffling(source), batch_size=4, **options)  # type: ignore[arg-type]
        for source, options in SHUFFLING
    ]
    return [served(driver.prepare(loader), 2) for loader in loaders]


def test_streams_that_shuffle_give_every_process_the_same_order_to_share() -> None:
    ranks = launch(shuffled_streams)
    for case, *epochs in zip(SHUFFLING, *ranks, strict=True):
        for epoch in together(epochs):
            assert sorted(flat(epoch)) == list(range(LENGTH)), case


def unsynchronized() -> str:
    driver = Accelerator(cpu=True, rng_types=["torch"])
    with pytest.raises(ArgumentError) as caught:
        driver.prepare(stoker.DataLoader(Shuffling("own"), batch_size=4))
    return str(caught.value)


def test_a_stream_whose_generator_is_not_synchronized_is_refused() -> None:
    for message in launch(unsynchronized):
        assert re.search(r"(?s)Shuffling draws from a generator.*hint: add 'generator' to the rng_types", message)


class Drawing(Numbers):
    """Draws a random number for each sample."""

    def __getitem__(self, position: int) -> int:
        return int(stoker.rng().integers(1 << 30))


def beyond_torchs_loader() -> dict[str, Any]:
    """Use what a loader would lose if `prepare` made one of torch's from it."""
    driver = accelerator()
    skipping, drawing = driver.prepare(
        stoker.DataLoader(Broken(LENGTH, {5, 6}), batch_size=4, shuffle=True, on_error="skip", seed=3),
        stoker.DataLoader(Drawing(LENGTH), batch_size=4, seed=3),
    )
    report = io.StringIO()
    found = {"skipping": served(skipping, 2), "drawing": served(drawing, 2), "copy": served(copy.copy(drawing), 1)}
    skipping.report(file=report)
    return found | {
        "skipped": [skipped.position for skipped in skipping.ledger],
        "report": report.getvalue(),
        "places": [[place.step, place.rank, place.row] for place in skipping.find(7, epoch=1)],
    }


def test_a_prepared_loader_has_what_torchs_has_not() -> None:
    ranks = launch(beyond_torchs_loader)
    plain = stoker.DataLoader(Broken(LENGTH, {5, 6}), batch_size=8, shuffle=True, on_error="skip", seed=3)
    assert together([rank["skipping"] for rank in ranks]) == [
        [real(batch) for batch in epoch] for epoch in served(plain, 2)
    ]
    assert sorted(sum((rank["skipped"] for rank in ranks), [])) == [5, 5, 6, 6]
    drawing = stoker.DataLoader(Drawing(LENGTH), batch_size=8, seed=3)
    epochs = [[real(batch) for batch in epoch] for epoch in served(drawing, 3)]
    assert together([rank["drawing"] + rank["copy"] for rank in ranks]) == epochs
    for number, rank in enumerate(ranks):
        assert "6 batches, 24 samples" in rank["report"]
        assert f"rank {number} of 2" in rank["report"]
        [[step, owner, row]] = rank["places"]
        assert ranks[owner]["skipping"][1][step - 3][0][row] == 7


# ---------------------------------------------------------------- devices and meshes


def on_devices() -> list[Any]:
    """Return where batches are, with and without device placement."""
    driver, found = accelerator(), []
    for is_placed in (True, False):
        # a device that every machine has
        with patch.object(driver.state, "device", torch.device("meta")):
            plain, nested, stream = (
                driver.prepare_data_loader(LOADERS[name](), device_placement=is_placed)
                for name in ("shuffled", "pack", "stream")
            )
        found.append([batch.device.type for loader in (plain, stream) for batch in loader])
        found[-1] += [value.device.type for batch in nested for value in batch.values()]
    return found


def test_batches_are_put_on_the_accelerators_device_where_it_places_them() -> None:
    [[placed, left]] = launch(on_devices, num_ranks=1)
    assert set(placed) == {"meta"}
    assert set(left) == {"cpu"}
    assert len(placed) == len(left) > 12


def on_meshes(meshes: list[dict[str, int]]) -> list[Any]:
    """Prepare loaders with the device mesh that an accelerator makes of its parallelism_config."""
    accelerator()
    made = [init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes)) for sizes in meshes]
    return [served(prepare_data_loader(LOADERS["shuffled"](seed=3), torch_device_mesh=mesh), 2) for mesh in made]


def test_processes_that_share_data_get_the_same_batches() -> None:
    meshes = [{"tp": 2}, {"dp_replicate": 1, "cp": 2}, {"dp_shard": 2, "tp": 1}]
    for sizes, *epochs in zip(meshes, *launch(on_meshes, meshes), strict=True):
        if sizes.get("dp_shard") == 2:
            assert together(epochs) == expected("shuffled", 2, 8, seed=3)
        else:
            assert epochs[0] == epochs[1]
            assert together(epochs[:1]) == expected("shuffled", 2, seed=3)


# ---------------------------------------------------------------- metrics and gradients


def gathered(name: str, configuration: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return what gather_for_metrics gives in two epochs."""
    driver = accelerator(**configuration)
    loader = driver.prepare(LOADERS[name](**options))
    epochs: list[Any] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            own = batch["tokens"] if isinstance(batch, dict) else batch
            epochs[-1] += driver.gather_for_metrics(own).tolist()
    return epochs


def gathered_many(cases: list[Any]) -> Any:
    return [gathered(*case) for case in cases]


METRICS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("torch", {}, {}),
    ("torch dropping", {}, {}),
    ("sequential", {}, {}),
    ("sequential", {"split_batches": True}, {}),
    ("sequential", {}, {"tail": "pad"}),
    ("shuffled", {}, {"seed": 3}),
    ("dropping", {}, {"seed": 3}),
    ("stream", {}, {}),
    ("shared stream", {}, {}),
    ("batch sampler", {}, {}),
    ("sampler of batches", {}, {}),
    ("dropping sampler", {}, {}),
]


def test_metrics_are_of_each_sample_once_as_with_torchs_loader() -> None:
    ranks = launch(gathered_many, METRICS)
    assert ranks[0] == ranks[1]
    results = dict(zip([(name, *map(str, rest)) for name, *rest in METRICS], ranks[0], strict=True))
    whole, dropped = results[("torch", "{}", "{}")], results[("torch dropping", "{}", "{}")]
    assert whole == [list(range(LENGTH))] * 2
    for (name, *_), epochs in zip(METRICS, ranks[0], strict=True):
        if name == "shuffled":
            assert epochs == [flat(epoch) for epoch in expected(name, 2, seed=3)]
        elif name == "dropping":
            assert epochs == [flat(epoch) for epoch in expected(name, 2, 8, seed=3)]
        else:
            assert epochs == (dropped if "dropping" in name else whole), name


def test_metrics_on_one_process_are_of_each_sample_once() -> None:
    for name, *rest in METRICS:
        got = gathered(name, *rest)
        assert [len(epoch) for epoch in got] == [20 if "dropping" in name else 21] * 2, name


def optimizer_steps(cases: list[Any], num_epochs: int) -> Any:
    """Return after which batches the optimizer has made a step."""
    found = []
    for name, options, accumulated in cases:
        driver = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
        driver.gradient_state.plugin_kwargs = {**driver.gradient_state.plugin_kwargs, "num_steps": accumulated}
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = driver.prepare(model, optimizer, LOADERS[name](**options))
        steps = []
        for _ in range(num_epochs):
            for batch in loader:
                with driver.accumulate(model):
                    driver.backward(model(batch.float()[:, None]).sum())
                    optimizer.step()
                    optimizer.zero_grad()
                steps.append(driver.sync_gradients)
        found.append(steps)
        driver.free_memory()
    return found


OURS_AND_TORCHS: list[Any] = [("torch", {}, 2), ("shuffled", {}, 2), ("workers", {}, 2), ("batch sampler", {}, 2)]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_gradients_are_accumulated_to_the_end_of_the_epoch_as_with_torchs_loader(num_ranks: int) -> None:
    for ours in launch(optimizer_steps, OURS_AND_TORCHS, 2, num_ranks=num_ranks):
        per_epoch = [False, True, False, True, False, True] if num_ranks == 1 else [False, True, True]
        assert ours == [per_epoch * 2] * len(OURS_AND_TORCHS)
    for streams in launch(optimizer_steps, [("torch stream", {}, 2), ("stream", {}, 2)], 2, num_ranks=num_ranks):
        assert streams[0] == streams[1]


def joined(name: str) -> Any:
    """Train on a loader inside join_uneven_inputs, evaluate on another one meanwhile."""
    driver = accelerator()
    model = torch.nn.Linear(1, 1)
    train, evaluation = LOADERS[name](seed=3), LOADERS[name](seed=4)
    model, train, evaluation = driver.prepare(model, train, evaluation)
    sizes: dict[str, list[int]] = {"train": [], "uneven": [], "after": []}
    for step, batch in enumerate(train):
        sizes["train"].append(len(batch))
        if step == 1:
            state = train.state_dict()
            # Accelerate joins processes that have devices of their own, and does nothing on CPUs
            with (
                patch.object(Accelerator, "multi_device", True),
                driver.join_uneven_inputs([model], even_batches=False),
            ):
                for other in evaluation:
                    model(other.float()[:, None]).sum().backward()
                    sizes["uneven"].append(len(other))
            assert train.state_dict() == state
            assert train.recipe.step == 1
    for other in evaluation:
        sizes["after"].append(len(other))
    return sizes


@pytest.mark.parametrize("name", ["shuffled", "stream"])
def test_even_batches_can_be_set_for_a_while_without_disturbing_an_epoch_that_has_begun(name: str) -> None:
    first, second = launch(joined, name)
    assert first["train"] == second["train"] == first["after"] == second["after"] == [4, 4, 4]
    assert (first["uneven"], second["uneven"]) == ([4, 4, 2], [4, 4, 3])
