"""Where torch tensors and Warp arrays meet: the Warp device of a torch device."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

__all__ = ["warp_device"]


def warp_device(device: torch.device | str) -> Any:
    """The Warp device of a torch device; starts Warp when nobody has."""
    wp.init()
    return wp.device_from_torch(torch.device(device))
