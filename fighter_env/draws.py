"""Random numbers without state: each is a hash of (seed, global world, counter, purpose, index).

What a world draws therefore does not depend on the batch that it is in, on other worlds, or on how
often somebody asked before: one process of 32 worlds draws what four processes of 8 draw. The seed
lives on the device, so that a recorded step follows a later `reseed`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
import warp as wp
from torch import Tensor

from fighter_env.devices import warp_device

__all__ = ["Draws", "Purpose"]

wp.set_module_options({"enable_backward": False})


class Purpose(IntEnum):
    """What a draw is for; each purpose is a stream of its own."""

    START = 1
    TASK = 2
    OPPONENT = 3
    PUNCH = 4
    CUE = 5
    SPOT = 6
    PUSH = 7
    MODEL = 8


@wp.func
def _mix(value: wp.uint32) -> wp.uint32:
    x = value
    x = x ^ (x >> wp.uint32(16))
    x = x * wp.uint32(0x21F0AAAD)
    x = x ^ (x >> wp.uint32(15))
    x = x * wp.uint32(0x735A2D97)
    return x ^ (x >> wp.uint32(15))


@wp.kernel
def draw_uniform(
    # In:
    seed_in: wp.array[int],
    episode_in: wp.array[int],
    counter_in: wp.array[int],
    first_world: int,
    purpose: int,
    # Out:
    value_out: wp.array2d[float],
):
    """Fills `value_out` with draws in [0, 1); dim (N, count)."""
    world, index = wp.tid()
    h = _mix(wp.uint32(seed_in[0]) + wp.uint32(0x1E3779B9))
    h = _mix(h ^ wp.uint32(first_world + world) * wp.uint32(0x45EBCA6B))
    h = _mix(h ^ wp.uint32(episode_in[world]) * wp.uint32(0x42B2AE35))
    h = _mix(h ^ wp.uint32(counter_in[world]) * wp.uint32(0x27D4EB2F))
    h = _mix(h ^ wp.uint32(purpose * 4096 + index) * wp.uint32(0x165667B1))
    value_out[world, index] = float(h >> wp.uint32(8)) * (1.0 / 16777216.0)


class Draws:
    """Uniform draws for `num_envs` worlds.

    Args:
        num_envs: Worlds N.
        device: Torch device.
        first_world: Global number of world 0.
    """

    def __init__(self, num_envs: int, device: torch.device, first_world: int = 0) -> None:
        self._device = warp_device(device)
        self._first, self._num = first_world, num_envs
        self.seed = torch.zeros(1, dtype=torch.int32, device=device)
        self._seed = wp.from_torch(self.seed)
        self._buffers: dict[int, tuple[Any, ...]] = {}

    def reseed(self, seed: int) -> None:
        """Starts another set of draws."""
        self.seed.fill_(seed % 2**31)

    def uniform(self, purpose: int, episode: Tensor, counter: Tensor, count: int) -> Tensor:
        """Draws in [0, 1), float32, shape (N, count).

        Args:
            purpose: A `Purpose`.
            episode: Number of the episode per world, int32, shape (N,).
            counter: Number of the event within the episode, int32, shape (N,).
            count: Draws per world.

        Returns:
            A buffer that the next draw for the same purpose overwrites.
        """
        if purpose not in self._buffers:
            self._buffers[purpose] = self._make(count)
        made, keys, views = self._buffers[purpose]
        keys[0].copy_(episode)
        keys[1].copy_(counter)
        wp.launch(
            draw_uniform,
            dim=(self._num, count),
            inputs=[self._seed, *views[1:], self._first, int(purpose)],
            outputs=[views[0]],
            device=self._device,
        )
        return made

    def _make(self, count: int) -> tuple[Any, ...]:
        device = self.seed.device
        made = torch.zeros(self._num, count, device=device)
        keys = torch.zeros(2, self._num, dtype=torch.int32, device=device)
        return made, keys, [wp.from_torch(v) for v in (made, keys[0], keys[1])]


def between(draw: Tensor, pair: tuple[float, float]) -> Tensor:
    """Draws in [0, 1) as values in a range."""
    low, high = pair
    return low + (high - low) * draw
