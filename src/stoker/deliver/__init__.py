"""From a slot to the accelerator: page-locking, copies on a side stream, decoding and dtype conversion on the device.

The only room that touches CUDA.
"""

from __future__ import annotations

from stoker.deliver.copy_counter import CopyCounter
from stoker.deliver.decoder import NvJpeg, check_nvjpeg
from stoker.deliver.delivery import Delivery, checked_device
from stoker.deliver.page_lock import CudaPageLock
from stoker.deliver.split import DecodeSplit
from stoker.deliver.widen import Normalize, To, Widening

__all__ = [
    "CopyCounter",
    "CudaPageLock",
    "DecodeSplit",
    "Delivery",
    "Normalize",
    "NvJpeg",
    "To",
    "Widening",
    "check_nvjpeg",
    "checked_device",
]
