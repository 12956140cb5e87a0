"""Ant: run forward on four legs. After gymnasium's `Ant-v5` (envs/mujoco/ant_v5.py)."""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from bench.envs.task import ContactTask, Outputs
from bench.models import Simulation

__all__ = ["Ant"]


class Ant(ContactTask):
    """Reward: forward velocity + 1 while healthy - control cost - contact cost."""

    ctrl_cost_weight = 0.5
    contact_cost_weight = 5e-4
    healthy_low, healthy_high = 0.2, 1.0
    reset_noise_scale = 0.1

    def __init__(self, simulation: Simulation, *, frame_skip: int = 1, seed: int = 0) -> None:
        self.xpos = wp.to_torch(simulation.data.xpos)
        super().__init__(simulation, frame_skip=frame_skip, seed=seed)

    def position(self) -> Tensor:
        """(W, 2): x and y of the torso."""
        return self.xpos[:, 1, 0:2]

    def after_physics(self) -> Outputs:
        """Observes, rewards, ends episodes and resets."""
        velocity = (self.position() - self.position_before) / self.dt
        forces = torch.clamp(self.cfrc_ext, -1.0, 1.0)
        final_observation = self._observe(forces)

        height = self.qpos[:, 2]
        finite = torch.isfinite(self.qpos).all(dim=1) & torch.isfinite(self.qvel).all(dim=1)
        healthy = finite & (height >= self.healthy_low) & (height <= self.healthy_high)
        ctrl_cost = self.ctrl_cost_weight * torch.square(self.action).sum(dim=1)
        contact_cost = self.contact_cost_weight * torch.square(forces).sum(dim=(1, 2))
        reward = velocity[:, 0] + healthy.to(torch.float32) - ctrl_cost - contact_cost

        terminated = ~healthy
        truncated = self.end_episodes(reward, terminated)
        # The first observation of an episode has felt no contact yet.
        fresh = (terminated | truncated)[:, None, None]
        observation = self._observe(torch.where(fresh, 0.0, forces))
        return Outputs(observation, reward, terminated, truncated, final_observation)

    def start_state(self) -> tuple[Tensor, Tensor]:
        """Uniform noise on positions, normal noise on velocities."""
        scale = self.reset_noise_scale
        qpos = self.start_qpos + scale * (2.0 * self.uniform(self.qpos.shape[1], 0) - 1.0)
        qvel = scale * self.normal(self.qvel.shape[1], 1)
        return qpos, qvel

    def _observe(self, forces: Tensor) -> Tensor:
        return torch.cat([self.qpos[:, 2:], self.qvel, forces[:, 1:].flatten(1)], dim=1)
