"""Walker: walk on two legs in a plane. After gymnasium's `Walker2d-v5` (walker2d_v5.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.envs.task import Outputs, Task

__all__ = ["Walker2d"]


class Walker2d(Task):
    """Reward: forward velocity + 1 while healthy - control cost."""

    ctrl_cost_weight = 1e-3
    height_low, height_high = 0.8, 2.0
    angle_low, angle_high = -1.0, 1.0
    reset_noise_scale = 5e-3

    def position(self) -> Tensor:
        """(W, 1): x of the root."""
        return self.qpos[:, 0:1]

    def after_physics(self) -> Outputs:
        """Observes, rewards, ends episodes and resets."""
        velocity = (self.position() - self.position_before) / self.dt
        final_observation = self._observe()

        height, angle = self.qpos[:, 1], self.qpos[:, 2]
        upright = (height > self.height_low) & (height < self.height_high)
        straight = (angle > self.angle_low) & (angle < self.angle_high)
        healthy = upright & straight
        ctrl_cost = self.ctrl_cost_weight * torch.square(self.action).sum(dim=1)
        reward = velocity[:, 0] + healthy.to(torch.float32) - ctrl_cost

        terminated = ~healthy
        truncated = self.end_episodes(reward, terminated)
        return Outputs(self._observe(), reward, terminated, truncated, final_observation)

    def start_state(self) -> tuple[Tensor, Tensor]:
        """Uniform noise on positions and velocities."""
        scale = self.reset_noise_scale
        qpos = self.start_qpos + scale * (2.0 * self.uniform(self.qpos.shape[1], 0) - 1.0)
        qvel = scale * (2.0 * self.uniform(self.qvel.shape[1], 1) - 1.0)
        return qpos, qvel

    def _observe(self) -> Tensor:
        return torch.cat([self.qpos[:, 1:], torch.clamp(self.qvel, -10.0, 10.0)], dim=1)
