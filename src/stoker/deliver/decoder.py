"""Decode JPEG files on the device: nvJPEG, as part of torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from stoker.errors import ArgumentError, MissingExtra


class Decoder(Protocol):
    """Decodes files, many at once."""

    def decode(self, files: Sequence[Tensor], *, num_channels: int) -> list[Tensor]:
        """Return the images, uint8 [C, height, width], on the decoder's device.

        C is `num_channels`, 3 for RGB, or 1. Raises `RuntimeError` if one of the files cannot be decoded, without
        saying which. When it returns, the files are no longer needed, and the images are complete for work queued on
        the current stream from then on.
        """
        ...


class NvJpeg:
    """nvJPEG on one device.

    torchvision allocates the images from the current stream's pool and fills them on a stream of its own, which does
    not wait for the current one. So the caller has to wait: see `decode_thread`.
    """

    def __init__(self, device: torch.device) -> None:
        module = import_module("torchvision.io")
        self._decode: Any = module.decode_jpeg
        self._modes = {1: module.ImageReadMode.GRAY, 3: module.ImageReadMode.RGB}
        self._device = device

    def decode(self, files: Sequence[Tensor], *, num_channels: int) -> list[Tensor]:
        """Return the images."""
        return self._decode(  # type: ignore[no-any-return]
            list(files), mode=self._modes[num_channels], device=self._device
        )


def check_nvjpeg(device: torch.device | None, *, need: str) -> None:
    """Raise unless files can be decoded on `device`; `need` is what asks for it, for the message."""
    hint = 'decode="auto" decodes on the CPU where there is no such device, and decode="cpu" always does'
    if device is None or device.type != "cuda":
        given = "no device" if device is None else f"device={str(device)!r}"
        raise ArgumentError(
            f"{need} decodes images on a CUDA device, but the loader has {given}",
            hint=f'pass device="cuda" to the loader; {hint}',
        )
    try:
        version: Any = import_module("torchvision.version")
        import_module("torchvision.io")
    except ImportError as error:
        raise MissingExtra("torchvision", extra="nvjpeg", need=need) from error
    if getattr(version, "cuda", None) is None:
        raise ArgumentError(
            f"{need} needs nvJPEG, and this torchvision {getattr(version, '__version__', '')} is built without it",
            hint=f"install a torchvision for CUDA; {hint}",
        )
