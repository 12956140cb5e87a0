"""Where torch tensors and Warp arrays meet: the Warp device and stream of a torch device."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import warp as wp

__all__ = ["shared_stream", "warp_device"]


def warp_device(device: torch.device | str) -> Any:
    """The Warp device of a torch device; starts Warp when nobody has."""
    wp.init()
    return wp.device_from_torch(torch.device(device))


def shared_stream(device: torch.device) -> Any:
    """A context in which Warp launches on torch's current stream; on the CPU it does nothing."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    stream = wp.stream_from_torch(torch.cuda.current_stream(device))
    return wp.ScopedStream(stream, sync_enter=False)
