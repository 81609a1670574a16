"""Transforms of others: handed what they expect, taken back whatever they return, seeded by the sample."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import stoker
from stoker.compose.images import Images
from stoker.errors import ArgumentError
from stoker.foundation.randomness import rng
from stoker.transform import Apply, CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from stoker.transform.image.pipeline import Pipeline
from stoker.transform.image.uniforms import uniforms
from tests.compose.image_sets import InMemory
from tests.transform.pictures import encoded, photograph


def made(pipeline: Pipeline, data: bytes | None = None) -> Any:
    return pipeline.picture(data or encoded(photograph(40, 30), "PNG"), pipeline.drawing(uniforms(rng())))


def test_a_function_gets_a_pil_image_and_the_next_what_it_returned() -> None:
    seen: list[Any] = []

    def first(image: Any) -> Any:
        seen.append(image)
        return "anything"

    assert made(Pipeline([CenterCrop(20), first, lambda text: text + " goes"])) == "anything goes"
    assert isinstance(seen[0], Image.Image)
    assert (seen[0].size, seen[0].mode) == ((20, 20), "RGB")


@pytest.mark.parametrize(
    ("form", "kind", "shape"),
    [("array", np.ndarray, (30, 40, 3)), ("tensor", torch.Tensor, (3, 30, 40)), ("image", Image.Image, None)],
    ids=["array", "tensor", "image"],
)
def test_apply_hands_over_the_form_that_is_asked_for(form: str, kind: type, shape: Any) -> None:
    found = made(Pipeline(Apply(lambda picture: picture, form=form)))
    assert isinstance(found, kind)
    assert shape is None or tuple(found.shape) == shape  # type: ignore[attr-defined]


def test_ours_may_follow_theirs() -> None:
    pipeline = Pipeline([Apply(np.flipud), Resize((10, 12)), RandomHorizontalFlip(0)])
    assert pipeline.size == (10, 12)
    assert pipeline.is_ours
    expected = photograph(40, 30).transpose(Image.Transpose.FLIP_TOP_BOTTOM).resize((12, 10), Image.Resampling.BILINEAR)
    assert (made(pipeline) == np.asarray(expected)).all()
    with pytest.raises(ArgumentError, match="float64"):
        made(Pipeline([Apply(lambda array: array / 255), Resize(10)]))


def test_nothing_returned_is_an_error() -> None:
    with pytest.raises(ValueError, match="returned None"):
        made(Pipeline(lambda image: None))


class Lookalike:
    """Called as albumentations' transforms are, and with generators of its own as they have."""

    __module__ = "albumentations.core"

    def __init__(self) -> None:
        self.random = random.Random(0)

    def set_random_seed(self, seed: int) -> None:
        self.random.seed(seed)

    def __call__(self, *, image: Any) -> dict[str, Any]:
        assert isinstance(image, np.ndarray)
        return {"image": image // 2 + self.random.randrange(100)}


def test_albumentations_gets_arrays_by_name_and_is_seeded() -> None:
    pipeline = Pipeline(Lookalike())
    found = []
    for position in (5, 6, 5):
        with stoker.sample_context(position, seed=1):
            found.append(made(pipeline))
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()


def drawing_from_everything(image: Any) -> Any:
    """Return numbers of every generator there is."""
    return torch.tensor([random.random(), float(np.random.random()), float(torch.rand(()))])


def test_all_generators_are_seeded_by_the_sample_and_put_back() -> None:
    pipeline = Pipeline(drawing_from_everything)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = drawing_from_everything(None)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    found = []
    for position in (3, 4, 3):
        with stoker.sample_context(position, seed=9):
            found.append(made(pipeline).tolist())
    assert found[0] == found[2] != found[1]
    assert len(set(found[0])) == 3
    assert torch.equal(drawing_from_everything(None), expected)  # as if nothing had been


def test_outside_a_sample_they_draw_as_they_always_do() -> None:
    pipeline = Pipeline(drawing_from_everything)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = drawing_from_everything(None)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    assert torch.equal(made(pipeline), expected)


def test_threads_of_the_trainer_leave_its_generators_alone() -> None:
    def seeding(image: Any) -> Any:
        return image

    pipeline = Pipeline(seeding)
    torch.manual_seed(2)
    state = torch.get_rng_state(), random.getstate()

    def read() -> None:
        with stoker.sample_context(1):
            made(pipeline)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


def test_a_fork_while_another_thread_has_its_turn_leaves_the_child_free() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow(image: Any) -> Any:
        inside.set()
        leave.wait()
        return image

    def read() -> None:
        with stoker.sample_context(1):
            made(Pipeline(slow))

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait()
    images = Images(InMemory(4), transform=[Resize((8, 8)), np.asarray])
    loader: Any = stoker.DataLoader(images, batch_size=4, num_workers=1, timeout=30)
    try:
        assert len(list(loader)) == 1
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize(
    ("transform", "words"), [(3, "expected a transform"), ([Resize], "call it")], ids=["number", "class"]
)
def test_what_is_no_transform_is_refused(transform: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Pipeline(transform)


def test_a_form_that_is_not_known_is_refused() -> None:
    with pytest.raises(ArgumentError, match="choose one of image, array, tensor"):
        Apply(str, form="pil")


class Compose:
    """As torchvision's."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


def test_ours_in_a_compose_are_drawn_before_decoding() -> None:
    ours = [RandomResizedCrop(32), RandomHorizontalFlip()]
    assert Pipeline(Compose([Compose(ours), repr])).head == tuple(ours)
    foreign = Compose([repr])
    assert not Pipeline(foreign).head
    assert Pipeline(foreign).transforms == (foreign,)
