"""What a dataset may offer, and where each offer is looked up.

A dataset needs `__len__` and `__getitem__`, an iterable one `__iter__`. Everything else here is optional, and each
protocol has one reason to exist. The rest of the package asks through the functions of this file and nowhere else:
names are looked up with `getattr`, so that wrappers with a `__getattr__` of their own offer what they wrap.
`stoker.testing.check_dataset` checks an implementation of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

from numpy.typing import DTypeLike, NDArray

Sample = Any

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Returns an array to be filled, in the shared memory of the batch's slot where there is one."""


@runtime_checkable
class Source(Protocol):
    """Samples addressed by position, readable from any thread. `__getitems__` reads many samples in one call."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Sample: ...

    def __getitems__(self, positions: Sequence[int], /) -> list[Sample]:
        """Return the samples at `positions`, in that order.

        One call spans a whole batch, so that an implementation can sort, join and overlap its reads.
        A position may occur more than once.
        """
        ...


def reads_many(dataset: Any) -> bool:
    """Return whether a dataset reads many samples in one call.

    torch's `Subset` has `__getitems__` whatever it is a part of. If that has none, nothing is gained, and the sample
    being read would be unknown, for its random numbers or an error.
    """
    while (inner := _subset_of(dataset)) is not None:
        dataset = inner.dataset
    return bool(getattr(dataset, "__getitems__", None))


class WholeBatches(Protocol):
    """Makes whole batches: for data where a batch is one gather. Used with the default collation alone."""

    is_pure: bool
    """Optional. True if reading draws no random numbers, so that generators need not be seeded for it."""

    def __getbatch__(self, positions: Any, empty: Empty, /) -> Any:
        """Return the batch of the samples at `positions`, equal to the collated samples.

        Arrays taken from `empty` reach the trainer without a copy, and become tensors. `NotImplemented` stands for "not
        this dataset after all": then samples are read and collated.
        """
        ...


def makes_batches(dataset: Any) -> bool:
    """Return whether a dataset may make whole batches."""
    return hasattr(dataset, "__getbatch__")


def is_pure(dataset: Any) -> bool:
    """Return whether reading whole batches draws no random numbers."""
    return getattr(dataset, "is_pure", False) is True


class RowWriter(Protocol):
    """Writes the samples of one batch, in any order, different ones from different threads at once."""

    def write(self, row: int, position: Any, /) -> None:
        """Read the sample at `position` into row `row`. After an error the row is written again, from elsewhere."""
        ...

    def batch(self) -> Any:
        """Return the batch, when every row is written. Arrays become tensors. More memory may be taken here."""
        ...


class WritesRows(Protocol):
    """Writes samples straight into their rows of the batch, instead of returning them to be copied there."""

    def open_batch(self, num_samples: int, empty: Empty, hint: Any, /) -> RowWriter:
        """Return the writer of one batch; `NotImplemented` if the shape of its samples is not known beforehand.

        Takes the memory that `write` fills from `empty`, and writes nothing yet: a slot that turns out too small is
        exchanged for a larger one, and then this is called again. `hint` is what `batch_hint()` returned.
        """
        ...


def writes_rows(dataset: Any) -> bool:
    """Return whether a dataset may write samples into their rows."""
    return callable(getattr(dataset, "open_batch", None))


class BatchHints(Protocol):
    """Passes a value from the training process to the worker that reads a batch, with each request."""

    def batch_hint(self) -> Any:
        """Return the hint for the next batch. It must not change which samples are in the batch, or their order."""
        ...


def batch_hint_of(dataset: Any) -> Callable[[], Any]:
    """Return the function that returns the hint for the next batch; None if the dataset gives no hints."""
    hint = getattr(dataset, "batch_hint", None)
    return hint if callable(hint) else _no_hint


def _no_hint() -> None:
    return None


class Epochs(Protocol):
    """Has another content in each epoch, such as documents packed differently."""

    def in_epoch(self, epoch: int, /) -> Any:
        """Return the dataset as it is in `epoch`: a pure function of the epoch, equal in every process."""
        ...


def has_epochs(dataset: Any) -> bool:
    """Return whether a dataset has another content in each epoch."""
    return callable(getattr(dataset, "in_epoch", None))


class TakesEpoch(Protocol):
    """Wants to know the epoch, as torch's `DistributedSampler` does. Called in worker processes too."""

    def set_epoch(self, epoch: int, /) -> None:
        """Take note of the epoch that the next iteration belongs to."""
        ...


def set_epoch(part: Any, epoch: int) -> None:
    """Call `set_epoch` of a dataset or sampler, if it has one."""
    if hasattr(part, "set_epoch"):
        part.set_epoch(epoch)


class OwnOrder(Protocol):
    """Has an order of its own, which the loader keeps: a mixture, whose shares another order would undo."""

    owns_order: Literal[True]
    """An attribute of the class. The loader refuses `shuffle`, `order` and samplers."""

    def others(self, position: int, /) -> Sequence[int]:
        """Return the positions that may replace a bad sample at `position`."""
        ...

    def instead(self, position: int, other: int, /) -> Sample:
        """Return the sample `other` as it appears at `position`."""
        ...


def owns_order(dataset: Any) -> bool:
    """Return whether a dataset has an order of its own."""
    return getattr(type(dataset), "owns_order", False) is True


class SavesOrder(OwnOrder, Protocol):
    """Has an order that may change from one run to the next, so that the loader's state must hold what it was."""

    def state(self, epoch: int, position: int, /) -> dict[str, Any]:
        """Return what the order is and where it is at `position` of `epoch`, as plain data."""
        ...

    def resumed(self, state: Any, /) -> Self:
        """Return the dataset that continues where `state` was taken. Raise `StateMismatch` if it cannot.

        `state` is None if the loader's state was taken with a dataset that saves none.
        """
        ...

    def has_changed_since(self, state: Mapping[str, Any], /) -> bool:
        """Return whether the order is another one than when `state` was taken."""
        ...


def saves_order(dataset: Any) -> bool:
    """Return whether a dataset with an order of its own has a state for it."""
    return owns_order(dataset) and callable(getattr(dataset, "resumed", None))


class MixesSources(OwnOrder, Protocol):
    """Takes its samples from several named datasets. Samples are numbered over all epochs: 0, 1, 2, ..."""

    names: tuple[str, ...]
    """All sources, also those that have left since the order began."""
    steps_of: int | None
    """Samples in a step, if the order was made for steps of a certain size."""

    @property
    def sources(self) -> Mapping[str, Any]:
        """The datasets by name, without those that have left."""
        ...

    def in_epoch(self, epoch: int, /) -> Self:
        """Return the samples of an epoch, whose number is the length of what is returned."""
        ...

    def number(self, epoch: int, position: int, /) -> int:
        """Return the number of the sample at `position` in `epoch`."""
        ...

    def place(self, number: int, /) -> tuple[int, int]:
        """Return epoch and position of sample `number`."""
        ...

    def at(self, number: int, /) -> tuple[str, int, int]:
        """Return the source of sample `number`, the source's own epoch, and the position in it."""
        ...

    def find(self, source: str, position: int, epoch: int = 0, /) -> int | None:
        """Return the number of the sample at `position` of `source` in the source's own `epoch`; None if none is."""
        ...

    def counts(self, number: int, /) -> dict[str, int]:
        """Return how many of the first `number` samples each source gives."""
        ...

    def check_readable(self, epoch: int, position: int, /) -> None:
        """Raise `ArgumentError` if `epoch` has samples from `position` on of a source that has left."""
        ...

    def filling(self, positions: Any, /) -> Any:
        """Return positions of this epoch to fill up a batch with: `positions`, without those of sources that left."""
        ...

    def check_forms(self, positions: Sequence[int], samples: Sequence[Any], /) -> None:
        """Raise `ArgumentError` if samples of several sources cannot be put into one batch."""
        ...


def mixes_sources(dataset: Any) -> bool:
    """Return whether a dataset with an order of its own takes its samples from several named ones."""
    return owns_order(dataset) and hasattr(dataset, "sources")


class Describes(Protocol):
    """Says where a sample comes from: a file, a line, a row. Shown in errors and in the ledger."""

    def describe(self, position: Any, /) -> str:
        """Return where the sample at `position` comes from."""
        ...


def has_descriptions(dataset: Any) -> bool:
    """Return whether a dataset describes its samples."""
    return callable(getattr(dataset, "describe", None))


def describe_sample(dataset: Any, position: Any) -> str | None:
    """Return where a sample comes from, if the dataset says so; looks into torch's `Subset`. Never raises."""
    try:
        while (subset := _subset_of(dataset)) is not None:
            dataset, position = subset.dataset, subset.indices[position]
        return str(dataset.describe(position)) if has_descriptions(dataset) else None
    except Exception as error:  # a description must not hide the error that it is for
        return f"describe() raised {type(error).__name__}"


class Fingerprinted(Protocol):
    """Identifies its data, so that a state is not resumed on other data."""

    @property
    def fingerprint(self) -> str:
        """Identifies the samples and their order. Equal in every process, different for different data."""
        ...


def own_fingerprint(dataset: Any) -> str | None:
    """Return the fingerprint that a dataset itself has, wrappers left aside."""
    try:
        fingerprint = getattr(dataset, "fingerprint", None)
    except Exception:  # a property may need what is not there yet
        return None
    return fingerprint if isinstance(fingerprint, str) else None


class Grows(Protocol):
    """Data to which more was added at the end: it knows the fingerprints that it had before."""

    def earlier_fingerprints(self) -> Iterable[str]:
        """Return the fingerprints of the shorter data that this one begins with."""
        ...


def earlier_fingerprints(dataset: Any) -> Iterable[str]:
    """Return the fingerprints that a dataset had before it grew; nothing if it does not know them."""
    earlier = getattr(dataset, "earlier_fingerprints", None)
    return earlier() if callable(earlier) else ()


def has_grown_from(dataset: Any, fingerprint: Any) -> bool:
    """Return whether a dataset begins with the data of this fingerprint, and has more behind it."""
    return any(known == fingerprint for known in earlier_fingerprints(dataset))


class KnowsSettings(Protocol):
    """Knows the settings that it was prepared with, for `DataLoader(expect=...)`."""

    def expect(self, settings: Mapping[str, Any], /) -> None:
        """Raise if the data was prepared with other settings."""
        ...


def knows_settings(dataset: Any) -> bool:
    """Return whether a dataset knows the settings that it was prepared with."""
    return callable(getattr(dataset, "expect", None))


class Preferences(Protocol):
    """Preferences for the loader. Each attribute is optional."""

    prefers_process: bool
    """True if threads in the training process would slow the training down: use a worker process instead."""


def prefers_process(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is a part of or put together from, prefers a worker process."""
    return getattr(dataset, "prefers_process", False) is True or any(map(prefers_process, wrapped_by_torch(dataset)))


class DeviceDecoding(Protocol):
    """Can leave files in a batch, as `stoker.batch.encoded.Encoded`, for the device to decode."""

    decode: Literal["cpu", "device", "auto"]
    """Where images are to be decoded."""
    leaves_files: bool
    """Optional. False if these cannot be decoded on the device."""


def decodes_on(dataset: Any) -> Any:
    """Return where a dataset wants its images decoded: "cpu", "device" or "auto"; None if it decodes none."""
    return getattr(dataset, "decode", None)


def leaves_files(dataset: Any) -> bool:
    """Return whether a dataset that writes rows can leave files for the device."""
    return getattr(dataset, "leaves_files", True) is True


# ------------------------------------------------------------ iterable datasets


@runtime_checkable
class Stream(Protocol):
    """Samples that come one after the other; each `iter` starts from the beginning."""

    def __iter__(self) -> Iterator[Sample]: ...


@runtime_checkable
class Splittable(Stream, Protocol):
    """A stream that can be split into parts, so that workers and ranks read only their own."""

    def split(self, index: int, count: int, /) -> Self:
        """Return part `index` of `count`. The parts together hold every sample exactly once."""
        ...


def can_split(dataset: Any) -> bool:
    """Return whether a stream can be split into parts."""
    return callable(getattr(dataset, "split", None))


class Stateful(Protocol):
    """A stream, iterator or sampler that can save where it is, by torchdata's convention."""

    def state_dict(self) -> Any:
        """Return where it is."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Continue where `state` was taken."""
        ...


def has_state(part: Any) -> bool:
    """Return whether a stream, iterator or sampler can say where it is."""
    return hasattr(part, "state_dict")


def loads_state(part: Any) -> bool:
    """Return whether a stream, iterator or sampler can continue from a state."""
    return hasattr(part, "load_state_dict")


# ------------------------------------------------------------ torch's wrappers


def wrapped_by_torch(dataset: Any) -> list[Any]:
    """Return the datasets inside torch's `Subset` or `ConcatDataset`."""
    from torch.utils.data import ConcatDataset

    if (subset := _subset_of(dataset)) is not None:
        return [subset.dataset]
    return list(dataset.datasets) if isinstance(dataset, ConcatDataset) else []


def _subset_of(dataset: Any) -> Any:
    """Return the dataset if it is torch's `Subset`, else None. Imported late: sources are read without torch too."""
    from torch.utils.data import Subset

    return dataset if isinstance(dataset, Subset) else None
