"""What the tasks share: the order of a step, episode ends, counter-based noise, the masked reset.

A step is `before_physics` (torch), `physics` (Warp), `after_physics` (torch). Noise is a hash of
(seed, world, episode, lane): the same numbers for every strategy, and no generator state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from bench.models import Simulation

__all__ = ["Outputs", "Task", "Wrap"]

Wrap = Callable[[Callable[[], Any]], Callable[[], Any]]

_MASK32 = 0xFFFFFFFF


class Outputs(NamedTuple):
    """What a step returns, for W worlds.

    Attributes:
        observation: (W, n) float32; the first of the new episode where a world was reset.
        reward: (W,) float32.
        terminated: (W,) bool.
        truncated: (W,) bool.
        final_observation: (W, n) float32; the observation before any reset.
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Tensor


class Task:
    """A batched environment: subclasses say what is observed, rewarded and ended.

    Args:
        simulation: The worlds; their state is set to the start of episode 0.
        frame_skip: Physics steps per environment step.
        seed: Seed of the noise.

    Attributes:
        action: (W, nu) float32, written by the caller before each step.
        age: (W,) int64, steps since the episode began.
        episode: (W,) int64, number of the episode.
        episode_return: (W,) float32, sum of the rewards of the episode.
    """

    max_episode_steps = 1000
    first_end_steps = 10

    def __init__(self, simulation: Simulation, *, frame_skip: int = 1, seed: int = 0) -> None:
        self.simulation = simulation
        self.frame_skip = frame_skip
        self.seed = seed
        host, data, worlds = simulation.host, simulation.data, simulation.worlds
        self.dt = float(host.opt.timestep) * frame_skip
        self.worlds = worlds
        self.warp_action = wp.zeros((worlds, host.nu), dtype=float, device="cpu")
        self.action = wp.to_torch(self.warp_action)
        self.ctrl = wp.to_torch(data.ctrl)
        self.qpos = wp.to_torch(data.qpos)
        self.qvel = wp.to_torch(data.qvel)
        self.time = wp.to_torch(data.time)
        self.qacc_warmstart = wp.to_torch(data.qacc_warmstart)
        limits = torch.tensor(host.actuator_ctrlrange, dtype=torch.float32)
        self.ctrl_low, self.ctrl_high = limits[:, 0].contiguous(), limits[:, 1].contiguous()
        self.start_qpos = torch.tensor(host.qpos0, dtype=torch.float32)
        self.world = torch.arange(worlds)
        # Worlds begin at different ages, as in a batch that has run for a while; the oldest has
        # a few steps left, so that even a short run resets worlds.
        age = (self.world + 1) * self.max_episode_steps // worlds - self.first_end_steps
        self.age = torch.clamp(age, min=0)
        self.episode = torch.zeros(worlds, dtype=torch.int64)
        self.episode_return = torch.zeros(worlds)
        self.position_before = torch.zeros(worlds, self.position().shape[1])
        self.reset_worlds(torch.ones(worlds, dtype=torch.bool))

    def step(self) -> Outputs:
        """One environment step of all worlds with the action in `action`."""
        self.before_physics()
        self.physics()
        return self.after_physics()

    def by_parts(
        self, physics: Wrap | None = None, torch_part: Wrap | None = None
    ) -> Callable[[], Outputs]:
        """A step whose parts are changed by wrappers: what a user can build by hand.

        Args:
            physics: Makes the physics part from itself (captures it); None leaves it.
            torch_part: The same for the torch parts (compiles them).
        """
        physics, torch_part = physics or _unchanged, torch_part or _unchanged
        first, middle = torch_part(self.before_physics), physics(self.physics)
        last = torch_part(self.after_physics)

        def step() -> Outputs:
            first()
            middle()
            return last()

        return step

    def physics_step(self) -> None:
        """The action as control and one physics step, all in Warp: the `physics/` cases."""
        wp.copy(self.simulation.data.ctrl, self.warp_action)
        self.simulation.step()

    def before_physics(self) -> None:
        """Turns the action into control and remembers where each world was."""
        self.ctrl.copy_(torch.clamp(self.action, self.ctrl_low, self.ctrl_high))
        self.position_before.copy_(self.position())

    def physics(self) -> None:
        """The physics steps of one environment step."""
        for _ in range(self.frame_skip):
            self.simulation.step()

    def position(self) -> Tensor:
        """(W, k) float32: the position whose change the reward pays for."""
        raise NotImplementedError

    def after_physics(self) -> Outputs:
        """Observes, rewards, ends episodes and resets the worlds whose episode ended."""
        raise NotImplementedError

    def start_state(self) -> tuple[Tensor, Tensor]:
        """(W, nq) and (W, nv) float32: the noisy first state of each world's current episode."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """State that lives in torch alone."""
        return {
            "action": self.action,
            "age": self.age,
            "episode": self.episode,
            "episode_return": self.episode_return,
            "position_before": self.position_before,
        }

    def reset_worlds(self, mask: Tensor) -> None:
        """Sets the worlds of a (W,) bool mask to the start of their current episode."""
        qpos, qvel = self.start_state()
        column = mask[:, None]
        self.qpos.copy_(torch.where(column, qpos, self.qpos))
        self.qvel.copy_(torch.where(column, qvel, self.qvel))
        self.qacc_warmstart.copy_(torch.where(column, 0.0, self.qacc_warmstart))
        self.time.copy_(torch.where(mask, 0.0, self.time))

    def end_episodes(self, reward: Tensor, terminated: Tensor) -> Tensor:
        """Counts the step and resets the worlds whose episode is over.

        Args:
            reward: (W,) float32, the reward of this step.
            terminated: (W,) bool.

        Returns:
            (W,) bool: truncated, which is the time limit alone.
        """
        self.age.add_(1)
        self.episode_return.add_(reward)
        truncated = self.age >= self.max_episode_steps
        done = terminated | truncated
        self.episode.add_(done.to(torch.int64))
        self.age.copy_(torch.where(done, 0, self.age))
        self.episode_return.copy_(torch.where(done, 0.0, self.episode_return))
        self.reset_worlds(done)
        return truncated

    def uniform(self, count: int, stream: int) -> Tensor:
        """(W, count) float32 in [0, 1): noise of the current episode.

        Args:
            count: Numbers per world.
            stream: Which of the draws of one episode this is.
        """
        lane = torch.arange(count) + 1000 * stream + 1_000_003 * self.seed
        key = (self.world * 0x1F123BB5 + self.episode * 0x05491333) & _MASK32
        bits = (key[:, None] + lane * 0x3C6EF372) & _MASK32
        # Two rounds of xor-shift and multiply; factors below 2**31 keep int64 from overflowing.
        for _ in range(2):
            bits = bits ^ (bits >> 16)
            bits = (bits * 0x7FEB352D) & _MASK32
            bits = bits ^ (bits >> 15)
            bits = (bits * 0x2C1B3C6D) & _MASK32
        bits = bits ^ (bits >> 16)
        return (bits >> 8).to(torch.float32) * 2.0**-24

    def normal(self, count: int, stream: int) -> Tensor:
        """(W, count) float32, standard normal noise of the current episode (Box and Muller)."""
        radius = torch.sqrt(-2.0 * torch.log(1.0 - self.uniform(count, stream)))
        return radius * torch.cos(2.0 * torch.pi * self.uniform(count, stream + 1))


def _unchanged(part: Callable[[], Any]) -> Callable[[], Any]:
    return part


class ContactTask(Task):
    """A task that also observes contact forces (`cfrc_ext`), which MuJoCo computes on demand."""

    def __init__(self, simulation: Simulation, *, frame_skip: int = 1, seed: int = 0) -> None:
        self.cfrc_ext = wp.to_torch(simulation.data.cfrc_ext)
        super().__init__(simulation, frame_skip=frame_skip, seed=seed)

    def physics(self) -> None:
        """The physics steps, then the contact forces of the last one."""
        super().physics()
        mjw.rne_postconstraint(self.simulation.model, self.simulation.data)
