"""`env/fighter`: one whole step of `fighter_env.FighterEnv` on MuJoCo Warp, with given actions.

The environment is run as it is. By hand, Warp can capture the two halves of a physics substep; the
torch copies between them, and the launches of sight, scoring and clips, stay eager. `torch.compile`
takes the functions of torch ops alone, one by one (`FighterTask._compilable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mujoco_warp as mjw
import numpy as np
import torch
from torch import Tensor

import fighter_env.env as environment
from bench.envs.task import Wrap
from bench.errors import UnusableOptionError
from bench.models import named_arrays
from fighter_env import FighterConfig, FighterEnv
from fighter_env.counters import TOTALS
from fighter_env.physics import PhysicsConfig

__all__ = ["FighterSimulation", "FighterTask"]

_PARTS = ("draws", "opponent", "sight", "scoring", "tasks", "posture", "counters", "physics")
_HALVES = ("solve", "derive")


class FighterSimulation:
    """The worlds of a `FighterEnv`, with the attributes of `bench.models.Simulation`."""

    def __init__(self, env: FighterEnv) -> None:
        self._env = env
        self.host = env.physics.model
        self.model: mjw.Model = env.physics.m
        self.data: mjw.Data = env.physics.d
        self.worlds = env.num_envs

    def overflowed(self) -> bool:
        """Whether a world ran out of contacts or constraint rows since the start state."""
        return bool(self._env.counters.totals[TOTALS.index("overflow_steps")] > 0)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array of `Data` by name, as NumPy views of the live memory."""
        return dict(named_arrays(self.data))


class FighterTask:
    """A `FighterEnv` behind the attributes that `bench.cases.Program` needs of a task.

    Args:
        worlds: Number of worlds W.
        conditional: Whether the solver loop stops when all worlds have converged.
        frame_skip: Must be 1: the environment has substeps of its own.
        seed: Seed of the environment.

    Attributes:
        action: (W, 25) float32, written by the caller before each step.
        frame_skip: Physics steps per environment step.

    Raises:
        UnusableOptionError: `frame_skip` is not 1.
    """

    def __init__(self, worlds: int, *, conditional: bool, frame_skip: int, seed: int) -> None:
        if frame_skip != 1:
            raise UnusableOptionError(
                "env/fighter has substeps of its own: leave --frame-skip at 1"
            )
        physics = PhysicsConfig(conditional_solver=conditional)
        self.env = FighterEnv(worlds, "cpu", "warp", FighterConfig(physics=physics), seed=seed)
        self.frame_skip = physics.substeps
        self.simulation = FighterSimulation(self.env)
        space = self.env.single_action_space
        self.ctrl_low, self.ctrl_high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.action = torch.zeros(worlds, *space.shape)
        # Buffers are made when first used: after one step all of them exist.
        self.env.reset(seed=seed)
        self.env.step(self.action)
        self.env.reset(seed=seed)
        self._spread(worlds)

    def _spread(self, worlds: int) -> None:
        # As in a batch that has run for a while: even a short run has punches and restarts.
        env, world = self.env, torch.arange(worlds)
        steps = round(env.config.episode.seconds / env.config.control_step)
        env.elapsed.copy_(((world + 1) * steps // worlds - 10).clamp_min(0))
        env.opponent.rest.mul_(world / worlds)

    def step(self) -> Any:
        """One step of all worlds with the action in `action`; returns what the step returns."""
        return self.env.step(self.action)

    def by_parts(self, physics: Wrap | None = None, torch_part: Wrap | None = None) -> Callable:
        """See `bench.envs.task.Task.by_parts`."""
        parts: list[tuple[Any, str, Any]] = []
        if physics is not None:
            simulator = self.env.physics
            parts += [(simulator, name, physics(getattr(simulator, name))) for name in _HALVES]
        if torch_part is not None:
            parts += [
                (owner, name, torch_part(getattr(owner, name)))
                for owner, names in self._compilable().items()
                for name in names
            ]

        def step() -> Any:
            with _replaced(parts):
                return self.step()

        return step

    def _compilable(self) -> dict[Any, tuple[str, ...]]:
        env = self.env
        return {
            environment: ("read_scene", "reward_terms", "weigh", "observe"),
            env.posture: ("excite",),
            env.sight: ("remember",),
            env.opponent: ("advance",),
            env.counters: ("add",),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the environment and its parts, clips and tables aside."""
        owners = {"env": self.env} | {name: getattr(self.env, name) for name in _PARTS}
        found = {"action": self.action}
        for name, owner in owners.items():
            for key, value in vars(owner).items():
                found |= _tensors(value, f"{name}.{key}")
        return found


@contextmanager
def _replaced(parts: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Other functions in place of some attributes, for one call."""
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in parts]
    for owner, name, part in parts:
        setattr(owner, name, part)
    try:
        yield
    finally:
        for owner, name, part in before:
            if part is None:
                delattr(owner, name)
            else:
                setattr(owner, name, part)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}.{index}")
