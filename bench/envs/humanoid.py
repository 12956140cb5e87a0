"""Humanoid: walk without falling. After gymnasium's `Humanoid-v5` (humanoid_v5.py).

One difference: in the first observation of an episode the derived quantities (inertias, body
velocities, forces) are those of the undisturbed start pose, since nothing is simulated at a reset.
"""

from __future__ import annotations

import mujoco
import torch
import warp as wp
from torch import Tensor

from bench.envs.task import ContactTask, Outputs
from bench.models import Simulation

__all__ = ["Humanoid"]


class Humanoid(ContactTask):
    """Reward: forward velocity of the mass centre + 5 while healthy - control and contact cost."""

    forward_reward_weight = 1.25
    ctrl_cost_weight = 0.1
    contact_cost_weight = 5e-7
    contact_cost_high = 10.0
    healthy_reward = 5.0
    healthy_low, healthy_high = 1.0, 2.0
    reset_noise_scale = 1e-2

    def __init__(self, simulation: Simulation, *, frame_skip: int = 1, seed: int = 0) -> None:
        host, data = simulation.host, simulation.data
        self.xipos = wp.to_torch(data.xipos)
        self.cinert = wp.to_torch(data.cinert)
        self.cvel = wp.to_torch(data.cvel)
        self.qfrc_actuator = wp.to_torch(data.qfrc_actuator)
        mass = torch.tensor(host.body_mass, dtype=torch.float32)
        self.mass_share = (mass / mass.sum())[:, None]
        start = mujoco.MjData(host)
        mujoco.mj_forward(host, start)
        self.start_cinert = torch.tensor(start.cinert[1:], dtype=torch.float32).flatten()
        super().__init__(simulation, frame_skip=frame_skip, seed=seed)

    def position(self) -> Tensor:
        """(W, 2): x and y of the mass centre."""
        return (self.mass_share * self.xipos).sum(dim=1)[:, 0:2]

    def after_physics(self) -> Outputs:
        """Observes, rewards, ends episodes and resets."""
        velocity = (self.position() - self.position_before) / self.dt
        derived = torch.cat(
            [
                self.cinert[:, 1:].flatten(1),
                self.cvel[:, 1:].flatten(1),
                self.qfrc_actuator[:, 6:],
                self.cfrc_ext[:, 1:].flatten(1),
            ],
            dim=1,
        )
        final_observation = torch.cat([self.qpos[:, 2:], self.qvel, derived], dim=1)

        height = self.qpos[:, 2]
        healthy = (height > self.healthy_low) & (height < self.healthy_high)
        forward_reward = self.forward_reward_weight * velocity[:, 0]
        survive_reward = self.healthy_reward * healthy.to(torch.float32)
        ctrl_cost = self.ctrl_cost_weight * torch.square(self.ctrl).sum(dim=1)
        contact_cost = self.contact_cost_weight * torch.square(self.cfrc_ext).sum(dim=(1, 2))
        contact_cost = torch.clamp(contact_cost, max=self.contact_cost_high)
        reward = forward_reward + survive_reward - ctrl_cost - contact_cost

        terminated = ~healthy
        truncated = self.end_episodes(reward, terminated)
        fresh = (terminated | truncated)[:, None]
        at_rest = torch.zeros(derived.shape[1] - self.start_cinert.shape[0])
        start_derived = torch.cat([self.start_cinert, at_rest])
        derived = torch.where(fresh, start_derived, derived)
        observation = torch.cat([self.qpos[:, 2:], self.qvel, derived], dim=1)
        return Outputs(observation, reward, terminated, truncated, final_observation)

    def start_state(self) -> tuple[Tensor, Tensor]:
        """Uniform noise on positions and velocities."""
        scale = self.reset_noise_scale
        qpos = self.start_qpos + scale * (2.0 * self.uniform(self.qpos.shape[1], 0) - 1.0)
        qvel = scale * (2.0 * self.uniform(self.qvel.shape[1], 1) - 1.0)
        return qpos, qvel
