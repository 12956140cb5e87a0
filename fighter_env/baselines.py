"""Scripted and random baselines: what a policy has to beat.

`posture` holds the guard; `guard` also moves its gloves to the guard that is asked for, and high
when a punch is on its way; `random` draws actions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fighter_env import layout
from fighter_env.env import FighterEnv
from fighter_env.errors import ConfigError
from fighter_env.tasks import ARM_COLUMNS

__all__ = ["BASELINES", "make_baseline"]

BASELINES = ("posture", "guard", "random")


def make_baseline(
    name: str, env: FighterEnv, seed: int = 0
) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function from observations to actions.

    Args:
        name: One of `BASELINES`.
        env: The environment that the actions are for; ``posture`` and ``guard`` need
            ``action="targets"``.
        seed: Seed of ``random``.

    Raises:
        ConfigError: There is no such baseline, or it cannot act in this environment.
    """
    if name not in BASELINES:
        raise ConfigError(f"unknown baseline {name!r}; baselines are: {', '.join(BASELINES)}")
    if name == "random":
        return _random(env, seed)
    if env.config.action != "targets":
        raise ConfigError(f'baseline {name!r} needs action="targets", not {env.config.action!r}')
    size = layout.ACTION_SIZE["targets"]

    def hold(observations: dict[str, Tensor]) -> Tensor:
        return torch.zeros(env.num_envs, size, device=env.device)

    def guard(observations: dict[str, Tensor]) -> Tensor:
        action = hold(observations)
        offset = env.tasks.arms.flatten(1) - env.guard[ARM_COLUMNS]
        asked = env.tasks.cue.to(torch.float32)[:, None]
        action[:, ARM_COLUMNS] = asked * (offset / env.reach[ARM_COLUMNS]).clamp(-1.0, 1.0)
        return action

    return hold if name == "posture" else guard


def _random(env: FighterEnv, seed: int) -> Callable[[dict[str, Tensor]], Tensor]:
    generator = torch.Generator(device=env.device).manual_seed(seed)
    shape = (env.num_envs, layout.ACTION_SIZE[env.config.action])
    low, high = layout.ACTION_RANGE[env.config.action]

    def act(observations: dict[str, Tensor]) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, device=env.device)

    return act
