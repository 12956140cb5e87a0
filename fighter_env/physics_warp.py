"""MuJoCo Warp behind the `Physics` interface, on the CPU or on CUDA.

The torch tensors are views of the arrays that MuJoCo Warp steps, so nothing is copied between the
two and nothing is read by the host. A restart writes through masks and is followed by one `step1`
of the whole batch, which recomputes what it finds unchanged to the same bits.
"""

from __future__ import annotations

from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from fighter_env import anatomy, body, layout
from fighter_env.devices import warp_device
from fighter_env.physics import ModelScales, Physics, PhysicsConfig

__all__ = ["WarpPhysics"]

_SOLVER_LIMIT = int(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
_SCALED = (
    "body_mass",
    "body_inertia",
    "body_subtreemass",
    "geom_friction",
    "actuator_gainprm",
    "actuator_biasprm",
)


class WarpPhysics(Physics):
    """See `Physics`.

    Attributes:
        m, d: The `mujoco_warp.Model` and `mujoco_warp.Data` that are stepped.
    """

    name = "warp"

    def __init__(self, num_envs: int, device: torch.device, config: PhysicsConfig) -> None:
        super().__init__(num_envs, device, config)
        # MuJoCo Warp never resets a world by itself and refuses the flag that asks for that.
        self.model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self._device = warp_device(device)
        with wp.ScopedDevice(self._device):
            self.m = mjw.put_model(self.model, dict.fromkeys(_SCALED, num_envs))
            self.m.opt.warn_overflow = 0
            self.m.opt.graph_conditional = config.conditional_solver
            self.d: Any = mjw.make_data(
                self.model, nworld=num_envs, nconmax=config.nconmax, njmax=config.njmax
            )
        data = self.d
        self.qpos, self.qvel = wp.to_torch(data.qpos), wp.to_torch(data.qvel)
        self.act, self.warmstart = wp.to_torch(data.act), wp.to_torch(data.qacc_warmstart)
        self.mocap_pos, self.mocap_quat = wp.to_torch(data.mocap_pos), wp.to_torch(data.mocap_quat)
        self._ctrl, self._sensordata = wp.to_torch(data.ctrl), wp.to_torch(data.sensordata)
        self._bits = wp.to_torch(data.overflow)
        self._force = wp.to_torch(data.xfrc_applied)[:, self.model.body("torso").id, :3]
        self._cleared = [wp.to_torch(getattr(data, name)) for name in ("qacc", "act_dot")]
        self._scaled = {name: wp.to_torch(getattr(self.m, name)) for name in _SCALED}
        self._base = {name: value[:1].clone() for name, value in self._scaled.items()}
        self.qpos.copy_(torch.tensor(body.guard_pose()))
        self._first = self.model.body(anatomy.BODIES[0].name).id
        self._floor = self.model.geom("floor").id
        self.refresh()

    def step(self, ctrl: Tensor, mocap_pos: Tensor, mocap_quat: Tensor, push: Tensor) -> None:
        """Advances every world by one control step."""
        self._ctrl.copy_(ctrl)
        self._force.copy_(push)
        with wp.ScopedDevice(self._device):
            for substep in range(self.config.substeps):
                self.solve()
                self.sensor_history[:, substep].copy_(self._sensordata)
                self.mocap_pos.copy_(mocap_pos[:, substep + 1])
                self.mocap_quat.copy_(mocap_quat[:, substep + 1])
                self.derive()
        self._take_sensors()
        force = layout.FORCE_SENSORS
        self.sensor_history[:, -1, force] = self.sensor_history[:, -2, force]
        self.solver_limit |= ((self._bits & _SOLVER_LIMIT) != 0).to(torch.int32)
        self.overflow |= self._bits & ~_SOLVER_LIMIT
        self._bits.zero_()

    def solve(self) -> None:
        """Forces and integration of one substep: Warp launches alone, so it can be captured."""
        mjw.step2(self.m, self.d)

    def derive(self) -> None:
        """Everything that follows from positions and velocities, sensors included; likewise."""
        mjw.step1(self.m, self.d)

    def restart(
        self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor, mocap_quat: Tensor
    ) -> None:
        """Puts the worlds of `mask` into a given state and refreshes `sensors`."""
        column = mask[:, None]
        self.qpos.copy_(torch.where(column, qpos, self.qpos))
        self.qvel.copy_(torch.where(column, qvel, self.qvel))
        self.mocap_pos.copy_(torch.where(column[..., None], mocap_pos, self.mocap_pos))
        self.mocap_quat.copy_(torch.where(column[..., None], mocap_quat, self.mocap_quat))
        for values in (self.act, self.warmstart, self._ctrl, *self._cleared):
            values.masked_fill_(column, 0.0)
        self.sensor_history.masked_fill_(column[..., None], 0.0)
        self.refresh()

    def refresh(self) -> None:
        """Recomputes `sensors` of every world from its present state."""
        with wp.ScopedDevice(self._device):
            self.derive()
        self._take_sensors()

    def scale_model(self, mask: Tensor, scales: ModelScales) -> None:
        """Sets mass, floor friction and muscle strength of the worlds of `mask`."""
        base, first = self._base, self._first
        for name in ("body_mass", "body_inertia", "body_subtreemass"):
            values, origin = self._scaled[name][:, first:], base[name][:, first:]
            self._mix(mask, values, origin, scales.mass)
        friction = self._scaled["geom_friction"][:, self._floor]
        self._mix(mask, friction, base["geom_friction"][:, self._floor], scales.friction)
        for name in ("actuator_gainprm", "actuator_biasprm"):
            self._mix(mask, self._scaled[name][..., 2], base[name][..., 2], scales.strength)

    def close(self) -> None:
        """Drops the arrays."""
        self.m = self.d = None

    def _take_sensors(self) -> None:
        force = layout.FORCE_SENSORS.start
        self.sensor_history[:, -1, :force].copy_(self._sensordata[:, :force])

    @staticmethod
    def _mix(mask: Tensor, values: Tensor, base: Tensor, scale: Tensor) -> None:
        shape = (-1,) + (1,) * (values.dim() - 1)
        values.copy_(torch.where(mask.view(shape), base * scale.view(shape), values))
