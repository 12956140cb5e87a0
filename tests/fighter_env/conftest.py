"""Shared environments: making one loads kernels, so the tests share what they do not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import warp as wp

from fighter_env import FighterConfig, FighterEnv, only
from fighter_env.config import EpisodeConfig, OpponentConfig

wp.config.log_level = wp.LOG_WARNING


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are fastest, and sums are the same, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def busy() -> FighterConfig:
    """Short episodes with many punches."""
    return FighterConfig(
        episode=EpisodeConfig(seconds=0.6),
        opponent=OpponentConfig(rest=(0.05, 0.2), speed=(1.5, 2.0)),
    )


@pytest.fixture
def single() -> Callable[[str], FighterConfig]:
    """A configuration with one task only."""

    def make(task: str, **fields: object) -> FighterConfig:
        config = FighterConfig()
        return replace(config, tasks=replace(config.tasks, ratios=only(task)), **fields)

    return make


@pytest.fixture(scope="session")
def warp_env() -> Iterator[FighterEnv]:
    """One MuJoCo Warp environment of 4 worlds for all tests; each begins with `reset(seed=...)`."""
    config = FighterConfig(
        episode=EpisodeConfig(seconds=0.3),
        opponent=OpponentConfig(rest=(0.02, 0.1), speed=(1.5, 2.0)),
    )
    env = FighterEnv(4, "cpu", "warp", config)
    yield env
    env.close()


@pytest.fixture
def actions() -> Callable[[int, int], torch.Tensor]:
    """Repeatable random actions of shape (steps, worlds, 25)."""

    def make(steps: int, worlds: int, seed: int = 5) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return 0.3 * (2.0 * torch.rand(steps, worlds, 25, generator=generator) - 1.0)

    return make
