"""The share of each batch's images that the device decodes, adjusted so that training waits for neither it nor workers.

Decoding on the device takes time from training, so the share is kept as small as possible: it grows while the training
loop waits for workers, shrinks while it waits for the device, and is lowered now and then while it waits for neither.
The order of the data does not depend on the share.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 8
"""Batches that are observed before the share changes; all of them made after the last change."""

START = 12
"""Batches at the start of an iteration that are ignored: workers start one after the other."""

NEGLIGIBLE = 0.02
"""A share of the time that is ignored: timings are not more precise than that."""

COARSE, FINE = 1 / 4, 1 / 64
"""The largest change of the share at a time, and how much it is lowered for a try."""

MAX_PATIENCE = 64
"""The most windows between two tries of a smaller share, after others have failed."""

DEVICE_RATE, CORE_RATE, TRAINER_RATE = 10_000, 450, 6_000
"""Photographs per second, roughly, that a large GPU decodes, one core decodes, and fast training consumes. The share
starts at what the workers could not manage of that.
"""


@dataclass(frozen=True, slots=True)
class Waits:
    """The shares of the time, 0 to 1, that the training loop waited, in the latest complete window."""

    for_workers: float = 0.0
    for_device: float = 0.0


class DecodeSplit:
    """The share of images that the device decodes, found by observing what the training loop waits for.

    `num_cores` is the number of cores that workers decode with.
    """

    def __init__(self, *, num_cores: int = 1) -> None:
        workers = CORE_RATE * max(1, num_cores)
        self.share = min(DEVICE_RATE / (DEVICE_RATE + workers), max(0.0, 1 - workers / TRAINER_RATE))
        """From 0, where workers decode all images, to 1, where the device does."""
        self.waits = Waits()
        self._num_told = self._num_handed = 0
        self._first_new = 0
        """The first batch that was made with the current share."""
        self._last: float | None = None
        self._periods: list[float] = []
        self._for_workers: list[float] = []
        self._for_device: list[float] = []
        self._workers = 0.0
        """Seconds per batch if workers decoded all of it, as of the last wait for them."""
        self._enough: float | None = None
        """A share without waits, while a smaller one is tried."""
        self._probe = FINE
        self._num_quiet, self._patience = 0, 2

    def __repr__(self) -> str:
        return (
            f"<DecodeSplit: {self.share:.0%} decoded by the device; waited {self.waits.for_workers:.0%} of the time "
            f"for workers, {self.waits.for_device:.0%} for the device>"
        )

    def begin(self) -> None:
        """Start an iteration: nothing is in flight, and the waits for its first batches are ignored."""
        self._num_told = self._num_handed = 0
        self._changed(self.share)
        self._first_new = START

    def batch_hint(self) -> float:
        """Return the share for the next batch that is asked for."""
        self._num_told += 1
        return self.share

    def note(self, now: float, *, for_workers: float, for_device: float, whole: float) -> None:
        """Note a batch that is handed over at the time `now`, after so many seconds of waiting.

        `whole` is how long the device would take to decode all of its images; 0 if that is unknown.
        """
        last, self._last = self._last, now
        self._num_handed += 1
        if last is None or self._num_handed <= self._first_new:
            return
        # Each batch separately, so that a pause for validation counts as one batch without waits.
        seconds = max(now - last, 1e-9)
        self._periods.append(seconds)
        self._for_workers.append(min(1.0, for_workers / seconds))
        self._for_device.append(min(1.0, for_device / seconds))
        if len(self._periods) < WINDOW:
            return
        period = sorted(self._periods)[WINDOW // 2]
        self.waits = Waits(sum(self._for_workers) / WINDOW, sum(self._for_device) / WINDOW)
        self._forget()
        self._consider(self.waits, period, whole)

    def _consider(self, waits: Waits, period: float, whole: float) -> None:
        if max(waits.for_workers, waits.for_device) < NEGLIGIBLE:
            self._try_less()
            return
        self._num_quiet = 0
        enough, self._enough = self._enough, None
        excess = waits.for_workers - waits.for_device
        if enough is not None and excess > 0:  # that was too little
            self._patience = min(2 * self._patience, MAX_PATIENCE)
            self._probe = FINE
            self._changed(enough)
        elif excess > NEGLIGIBLE:
            workers = period / max(1 - self.share, FINE)
            if self._workers and waits.for_device > NEGLIGIBLE:
                # some of that time was the device's, so the balance is near: do not overshoot it
                workers = min(workers, 1.4 * self._workers)
            self._workers = workers
            # Assumes that reading a file costs nothing. It does cost something, so this is too little, and the next
            # change comes closer: the share approaches the balance from one side, without oscillating.
            wanted = self.share + (1 - self.share) * excess
            wanted = min(wanted, max(self.share, self._balance(whole)))
            self._changed(min(wanted, self.share + COARSE))
        elif excess < -NEGLIGIBLE:
            # The device needs less time with fewer files, but below the balance the workers would be the bottleneck.
            balance, wanted = min(self.share, self._balance(whole)), self.share * (1 + excess)
            if wanted < balance:
                wanted = balance
                self._workers *= 0.95  # they may be faster by now
            self._changed(max(wanted, self.share - COARSE))

    def _balance(self, whole: float) -> float:
        """Return the share with which workers and device take equally long, as far as that is known."""
        if not whole:
            return 1.0 if self._workers else 0.0
        return self._workers / (self._workers + whole)

    def _try_less(self) -> None:
        self._num_quiet += 1
        if self.share == 0 or self._num_quiet < self._patience:
            return
        self._num_quiet = 0
        if self._enough is not None:  # less was enough too: continue in larger steps
            self._probe = min(8 * FINE, 2 * self._probe)
        self._enough = self.share
        self._changed(self.share - self._probe)

    def _changed(self, share: float) -> None:
        self.share = min(1.0, max(0.0, share))
        # plus two, which were requested while this was noted
        self._first_new = max(self._num_told, self._num_handed) + 2
        self._forget()

    def _forget(self) -> None:
        for numbers in (self._periods, self._for_workers, self._for_device):
            numbers.clear()
