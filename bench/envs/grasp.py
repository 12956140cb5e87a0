"""Grasp: pick a ball up and bring it to a target. The task of Brax's `grasp`, our own model.

The target is a point in the air that moves, by mask, as soon as the ball has reached it; an
episode ends when the ball has left the table's reach.
"""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from bench.envs.task import Outputs, Task
from bench.models import Simulation

__all__ = ["Grasp"]


class Grasp(Task):
    """Reward: palm near the ball + ball held off the floor + ball moving to the target + hits."""

    near_weight = 0.1
    lift_weight = 1.0
    progress_weight = 10.0
    hit_reward = 5.0
    ctrl_cost_weight = 1e-3
    hit_radius = 0.06
    reach = 0.5
    ball_radius = 0.045
    grasp_offset = 0.06
    ball_noise = 0.1
    joint_noise = 0.02
    palm_body = 2

    def __init__(self, simulation: Simulation, *, frame_skip: int = 1, seed: int = 0) -> None:
        self.xpos = wp.to_torch(simulation.data.xpos)
        self.target = torch.zeros(simulation.worlds, 3)
        self.hits = torch.zeros(simulation.worlds, dtype=torch.int64)
        super().__init__(simulation, frame_skip=frame_skip, seed=seed)

    def position(self) -> Tensor:
        """(W, 3): the ball."""
        return self.qpos[:, 0:3]

    def after_physics(self) -> Outputs:
        """Observes, rewards, moves reached targets, ends episodes and resets."""
        ball, palm = self.position(), self.xpos[:, self.palm_body]
        final_observation = self._observe()

        below_palm = palm[:, 2] - self.grasp_offset
        held_at = torch.cat([palm[:, 0:2], below_palm[:, None]], dim=1)
        palm_distance = torch.linalg.vector_norm(held_at - ball, dim=1)
        distance = torch.linalg.vector_norm(self.target - ball, dim=1)
        distance_before = torch.linalg.vector_norm(self.target - self.position_before, dim=1)
        hit = distance < self.hit_radius
        near = self.near_weight / (1.0 + 10.0 * palm_distance)
        lifted = torch.clamp(ball[:, 2] - self.ball_radius, 0.0, 0.2)
        held = self.lift_weight * lifted * (palm_distance < 0.08).to(torch.float32)
        progress = self.progress_weight * (distance_before - distance)
        ctrl_cost = self.ctrl_cost_weight * torch.square(self.action).sum(dim=1)
        reward = near + held + progress + self.hit_reward * hit.to(torch.float32) - ctrl_cost

        self.hits.add_(hit.to(torch.int64))
        self.target.copy_(torch.where(hit[:, None], self._next_target(), self.target))
        away = torch.linalg.vector_norm(ball[:, 0:2], dim=1) > self.reach
        terminated = away | ~torch.isfinite(self.qpos).all(dim=1)
        truncated = self.end_episodes(reward, terminated)
        return Outputs(self._observe(), reward, terminated, truncated, final_observation)

    def reset_worlds(self, mask: Tensor) -> None:
        """Resets physics, and the target to the first one of the episode."""
        super().reset_worlds(mask)
        self.hits.copy_(torch.where(mask, 0, self.hits))
        self.target.copy_(torch.where(mask[:, None], self._next_target(), self.target))

    def start_state(self) -> tuple[Tensor, Tensor]:
        """The ball lies somewhere near the middle; uniform noise on the hand's joints."""
        floor = 2.0 * self.uniform(2, 0) - 1.0
        joints = 2.0 * self.uniform(self.qpos.shape[1] - 7, 1) - 1.0
        ball = self.start_qpos[0:2] + self.ball_noise * floor
        rest = self.start_qpos[2:7].expand(self.worlds, 5)
        hand = self.start_qpos[7:] + self.joint_noise * joints
        return torch.cat([ball, rest, hand], dim=1), torch.zeros_like(self.qvel)

    def tensors(self) -> dict[str, Tensor]:
        """State that lives in torch alone: the target and the hits as well."""
        return super().tensors() | {"target": self.target, "hits": self.hits}

    def _next_target(self) -> Tensor:
        drawn = self.uniform(3, 2)
        moved = torch.remainder(drawn + 0.381966 * self.hits[:, None].to(torch.float32), 1.0)
        return torch.stack(
            [0.4 * moved[:, 0] - 0.2, 0.4 * moved[:, 1] - 0.2, 0.15 + 0.25 * moved[:, 2]], dim=1
        )

    def _observe(self) -> Tensor:
        ball = self.position()
        to_target = self.target - ball
        to_palm = self.xpos[:, self.palm_body] - ball
        return torch.cat([self.qpos[:, 7:], self.qvel, ball, to_target, to_palm], dim=1)
