"""Half cheetah: run forward in a plane. After gymnasium's `HalfCheetah-v5` (half_cheetah_v5.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.envs.task import Outputs, Task

__all__ = ["HalfCheetah"]


class HalfCheetah(Task):
    """Reward: forward velocity - control cost. It never terminates; the time limit ends it."""

    ctrl_cost_weight = 0.1
    reset_noise_scale = 0.1

    def position(self) -> Tensor:
        """(W, 1): x of the root."""
        return self.qpos[:, 0:1]

    def after_physics(self) -> Outputs:
        """Observes, rewards, ends episodes and resets."""
        velocity = (self.position() - self.position_before) / self.dt
        final_observation = self._observe()

        ctrl_cost = self.ctrl_cost_weight * torch.square(self.action).sum(dim=1)
        reward = velocity[:, 0] - ctrl_cost

        terminated = torch.zeros_like(self.age, dtype=torch.bool)
        truncated = self.end_episodes(reward, terminated)
        return Outputs(self._observe(), reward, terminated, truncated, final_observation)

    def start_state(self) -> tuple[Tensor, Tensor]:
        """Uniform noise on positions, normal noise on velocities."""
        scale = self.reset_noise_scale
        qpos = self.start_qpos + scale * (2.0 * self.uniform(self.qpos.shape[1], 0) - 1.0)
        qvel = scale * self.normal(self.qvel.shape[1], 1)
        return qpos, qvel

    def _observe(self) -> Tensor:
        return torch.cat([self.qpos[:, 1:], self.qvel], dim=1)
