"""Widening and normalizing: the plain formula, on every shape; and the structure of a batch is kept."""

from __future__ import annotations

import dataclasses
import pickle
from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stoker import DataLoader
from stoker.deliver import Normalize, Widening
from stoker.deliver.structure import mapped, moved, tensors_in
from stoker.errors import ArgumentError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64]


def formula(images: Tensor, normalize: Normalize, dim: int) -> Tensor:
    shape = [1] * images.ndim
    shape[dim] = -1
    mean, std = (torch.tensor(part, dtype=torch.float64).reshape(shape) for part in (normalize.mean, normalize.std))
    return (images.to(torch.float64) / normalize.scale - mean) / std


@st.composite
def pictures(draw: st.DrawFn) -> tuple[Tensor, Normalize, int]:
    num_channels = draw(st.integers(1, 4))
    is_first = draw(st.booleans())
    sides = draw(st.lists(st.integers(5, 9), min_size=2, max_size=2))
    outer = draw(st.lists(st.integers(0, 3), max_size=2))
    shape = [*outer, num_channels, *sides] if is_first else [*outer, *sides, num_channels]
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    if is_first and len(shape) == 4 and draw(st.booleans()):
        images = images.contiguous(memory_format=torch.channels_last)
    numbers = st.floats(0.01, 1.0)
    channels = st.lists(numbers, min_size=num_channels, max_size=num_channels)
    normalize = Normalize(tuple(draw(channels)), tuple(draw(channels)), scale=draw(st.sampled_from([1.0, 255.0])))
    return images, normalize, -3 if is_first else -1


@given(picture=pictures(), target=st.sampled_from([None, *FLOATS]))
def test_normalizing_is_the_plain_formula(picture: tuple[Tensor, Normalize, int], target: torch.dtype | None) -> None:
    images, normalize, dim = picture
    got = Widening(target, normalize)(images)
    expected = formula(images, normalize, dim)
    assert got.dtype is (target or torch.float32)
    assert got.shape == images.shape
    assert got.stride() == images.stride() or 0 in images.shape
    digits = max(torch.finfo(got.dtype).eps, torch.finfo(torch.float32).eps)
    # what is added and subtracted may be far larger than what is left
    largest = (images.max().item() if images.numel() else 0) / normalize.scale / min(normalize.std)
    atol = 4 * digits * (largest + max(normalize.mean) / min(normalize.std))
    if target is torch.float16:
        expected = expected.clamp(-65504, 65504)
        got = got.clamp(-65504, 65504)
    torch.testing.assert_close(got.to(torch.float64), expected, rtol=2 * digits, atol=atol)


@given(source=st.sampled_from([*FLOATS, *INTEGERS, torch.bool]), target=st.sampled_from([*FLOATS, *INTEGERS]))
def test_a_plain_dtype_converts_what_it_should_and_nothing_else(source: torch.dtype, target: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1]]).to(source)
    got = Widening(target)(tensor)
    if target.is_floating_point:
        converts = source.is_floating_point or source in (torch.uint8, torch.int8)
    else:
        converts = source in INTEGERS and source.itemsize < target.itemsize
        converts = converts and (target.is_signed or not source.is_signed)
    assert got.dtype is (target if converts else source)
    assert got.tolist() == tensor.tolist()
    assert converts or got is tensor


def test_a_mapping_says_exactly_and_a_field_goes_before_a_dtype() -> None:
    widen = Widening({torch.uint8: torch.float16, "mask": torch.int64})
    pixels = torch.ones(2, dtype=torch.uint8)
    assert widen(pixels, "image").dtype is torch.float16
    assert widen(pixels, None).dtype is torch.float16
    assert widen(pixels, "mask").dtype is torch.int64
    assert widen(torch.ones(2), "image").dtype is torch.float32


def test_a_field_that_becomes_an_integer_is_not_normalized() -> None:
    widen = Widening({"mask": torch.int64}, ((0.5,) * 3, (0.5,) * 3))
    mask = torch.ones(2, 8, 8, dtype=torch.uint8)
    assert widen(mask, "mask").dtype is torch.int64
    assert torch.equal(widen(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "image"), torch.full((2, 3, 8, 8), -1.0))


def test_labels_and_tokens_are_left_alone() -> None:
    widen = Widening(torch.bfloat16, ((0.5,) * 3, (0.5,) * 3))
    labels, tokens, few = torch.arange(4), torch.ones(3, 7, 9, dtype=torch.int32), torch.ones(3, 4, dtype=torch.uint8)
    assert widen(labels) is labels
    assert widen(tokens) is tokens
    assert torch.equal(widen(few), few.to(torch.bfloat16))  # converted, not normalized


def test_named_fields_are_normalized_whatever_their_dtype() -> None:
    widen = Widening(None, Normalize((1.0, 2.0), (2.0, 4.0), scale=1, fields=("signal",)))
    signal = torch.ones(5, 2, dtype=torch.int16)
    assert widen(signal, "signal").tolist() == [[0.0, -0.25]] * 5
    assert widen(signal, "other") is signal
    image = torch.ones(5, 7, 7, dtype=torch.uint8)
    assert widen(image, "image") is image


def test_an_image_without_a_fitting_channel_says_what_to_do() -> None:
    widen = Widening(None, ((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(ArgumentError, match=r"'depth' of shape \(8, 1, 32, 32\).*\n.*fields=\('image',\)"):
        widen(torch.zeros(8, 1, 32, 32, dtype=torch.uint8), "depth")


@pytest.mark.parametrize(
    ("to", "normalize", "what"),
    [
        (torch.bool, None, "not a floating or integer dtype"),
        ("float32", None, "not a floating or integer dtype"),
        ({torch.uint8: "float32"}, None, "which dtype becomes which"),
        ({3: torch.float32}, None, "which dtype becomes which"),
        (None, 0.5, "not a mean and a standard deviation"),
        (None, (0.5, 0.5), "one number per channel"),
        (None, ((0.5, 0.5), (0.5,)), "2 means and 1 standard"),
        (None, ((), ()), "0 means"),
        (None, ((0.5,), (0.0,)), "not positive"),
        (None, ((float("nan"),), (1.0,)), "one number per channel"),
        ({torch.uint8: torch.int64}, ((0.5,), (0.5,)), "uint8 tensors are normalized"),
        ({"a": torch.int64}, Normalize((0.5,), (0.5,), fields=("a",)), "'a' is normalized"),
    ],
)
def test_wrong_arguments_are_refused_at_once(to: Any, normalize: Any, what: str) -> None:
    with pytest.raises(ArgumentError, match=what):
        Widening(to, normalize)


def test_a_scale_and_fields_are_checked_too() -> None:
    with pytest.raises(ArgumentError, match="scale=0"):
        Normalize((0.5,), (0.5,), scale=0)
    with pytest.raises(ArgumentError, match="does not name fields"):
        Normalize((0.5,), (0.5,), fields=())
    assert Normalize((0.5,), (0.5,), fields="image").fields == ("image",)  # type: ignore[arg-type]
    assert Normalize(np.array([0.5]), torch.tensor([2.0])).std == (2.0,)  # type: ignore[arg-type]


def test_a_widening_travels_without_its_constants() -> None:
    widen = Widening(torch.float32, ((0.5,), (0.5,)))
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    assert torch.equal(widen(image), pickle.loads(pickle.dumps(widen))(image))
    assert Widening.of(None, None) is None
    assert Widening.of(torch.float32, None) is not None


# -------------------------------------------------------------------- structure


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    pixels: Any
    note: str = "as it was"


@dataclasses.dataclass
class Counted:
    values: Any
    length: int = dataclasses.field(init=False, default=7)


class Listed(list):  # type: ignore[type-arg]
    pass


def fields_of(batch: Any) -> list[tuple[str | None, Any]]:
    found: list[tuple[str | None, Any]] = []

    def note(tensor: Tensor, field: str | None) -> Tensor:
        found.append((field, tensor.tolist()))
        return tensor

    mapped(note, batch)
    return found


def test_containers_are_kept_and_fields_are_reported() -> None:
    one = torch.tensor(1)
    array = np.ones(2)
    batch = {
        "a": one,
        "b": [one, (one, "text", None)],
        3: one,
        "c": Pair(one, Frozen(one)),
        "d": Counted(one),
        "e": defaultdict(lambda: one, x=one),
        "f": OrderedDict(y=one),
        "g": UserDict(z=one),
        "h": MappingProxyType({"m": one}),
        "i": Listed([one]),
        "j": array,
        "k": b"bytes",
    }
    got = mapped(lambda tensor, field: (field, tensor.item()), batch)
    assert got["a"] == ("a", 1) and got["b"] == [("b", 1), (("b", 1), "text", None)] and got[3] == (None, 1)
    assert got["c"] == Pair(("left", 1), Frozen(("pixels", 1)))
    assert got["d"] == Counted(("values", 1)) and got["d"].length == 7
    assert type(got["e"]) is defaultdict and got["e"]["x"] == ("x", 1) and got["e"].default_factory is not None
    assert type(got["f"]) is OrderedDict and got["f"]["y"] == ("y", 1)
    assert type(got["g"]) is UserDict and got["g"]["z"] == ("z", 1)
    assert dict(got["h"]) == {"m": ("m", 1)}
    assert type(got["i"]) is Listed and got["i"] == [("i", 1)]
    assert got["j"] is array and got["k"] == b"bytes"
    assert batch["a"] is one and batch["g"]["z"] is one and batch["e"]["x"] is one  # type: ignore[index]


trees = st.recursive(
    st.sampled_from(["text", 1, None]) | st.builds(torch.tensor, st.integers(-5, 5)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Frozen, inner)
    ),
    max_leaves=12,
)


@given(tree=trees)
def test_mapping_a_function_that_does_nothing_changes_nothing(tree: Any) -> None:
    same = mapped(lambda tensor, field: tensor, tree)
    assert type(same) is type(tree)
    assert fields_of(same) == fields_of(tree)
    seen = tensors_in(tree)
    assert seen is not None and len(seen) <= len(fields_of(tree))


class OwnBatch:
    """A user's class that moves itself, in place, without `non_blocking`."""

    __slots__ = ("__hidden", "values")

    def __init__(self, values: Tensor, hidden: Tensor) -> None:
        self.values, self.__hidden = values, hidden

    def to(self, device: Any) -> OwnBatch:
        self.values, self.__hidden = self.values.to(device), self.__hidden.to(device)
        return self


class Quantity:
    """Has a `to` that has nothing to do with devices."""

    def __init__(self) -> None:
        self.magnitude = np.ones(3)

    def to(self, unit: str) -> Quantity:
        raise AssertionError(unit)


def test_objects_that_move_themselves_are_seen_through_where_that_is_possible() -> None:
    one, two = torch.tensor(1), torch.tensor(2)
    assert tensors_in(OwnBatch(one, two)) in ([one, two], [two, one])
    assert tensors_in(Quantity()) == []
    assert tensors_in({"a": iter([one])}) is None  # who knows what it holds
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    again = moved(packed, torch.device("cpu"), is_blocking=False)
    assert isinstance(again, PackedSequence)
    assert isinstance(moved(OwnBatch(one, two), torch.device("cpu"), is_blocking=False), OwnBatch)
    asked: list[Any] = []
    mapped(lambda tensor, field: tensor, [packed, one], on_mover=lambda thing, field: asked.append(thing))
    assert asked == [packed]


def test_images_that_normalizing_passes_by_are_told_once() -> None:
    floats, pixels = torch.rand(4, 3, 8, 8), torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    constants = ((0.5,) * 3, (0.25,) * 3)
    loader = DataLoader(floats, batch_size=2, normalize=constants)
    with pytest.warns(UserWarning, match="`normalize` is for uint8 images") as shown:
        assert torch.equal(torch.cat(list(loader)), floats)
    assert len(shown) == 1
    for dataset in (pixels, torch.rand(4, 16, 8), [{"image": one, "heat": floats[0]} for one in pixels]):
        assert len(list(DataLoader(dataset, batch_size=2, normalize=constants))) == 2  # warnings are errors here


def test_fields_that_no_batch_has_are_reported() -> None:
    with pytest.warns(UserWarning, match="names fields that the first batch does not have: imgae"):
        list(DataLoader([{"image": torch.zeros(3)}] * 4, batch_size=2, to={"imgae": torch.float16}))
