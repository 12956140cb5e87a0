"""MuJoCo C behind the `Physics` interface: `mujoco.rollout` over a pool of threads.

A control step is one rollout of `substeps + 1` steps: the extra one is there for its sensors only,
because a rollout's sensors belong to the state before each step. Worlds get a model of their own
once a per-world scale is asked for; until then they share one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import mujoco
import mujoco.rollout
import numpy as np
import torch
from torch import Tensor

from fighter_env import anatomy, body, layout
from fighter_env.physics import ModelScales, Physics, PhysicsConfig

__all__ = ["MujocoPhysics"]

_STATE = mujoco.mjtState
_CONTROL = (
    _STATE.mjSTATE_CTRL | _STATE.mjSTATE_XFRC_APPLIED | _STATE.mjSTATE_MOCAP_POS
) | _STATE.mjSTATE_MOCAP_QUAT
_CAPACITY = (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)


class MujocoPhysics(Physics):
    """See `Physics`; CPU only."""

    name = "mujoco"

    def __init__(self, num_envs: int, device: torch.device, config: PhysicsConfig) -> None:
        super().__init__(num_envs, device, config)
        model = self.model
        nmocap = model.nmocap
        self._threads = config.threads or len(os.sched_getaffinity(0))
        self._pool = mujoco.rollout.Rollout(nthread=self._threads)
        self._datas = [mujoco.MjData(model) for _ in range(self._threads)]
        self._models = [model]
        self._steps = config.substeps + 1
        self._full = np.zeros((num_envs, 1 + model.nq + model.nv + model.na))
        self._out = np.zeros((num_envs, self._steps, self._full.shape[1]))
        self._sensor = np.zeros((num_envs, self._steps, model.nsensordata))
        self._trunk = 6 * model.body("torso").id
        size = mujoco.mj_stateSize(model, int(_CONTROL))
        self._control = np.zeros((num_envs, self._steps, size))
        self._force_at = model.nu
        self._pos_at = model.nu + 6 * model.nbody
        self._quat_at = self._pos_at + 3 * nmocap
        self.qpos = torch.zeros(num_envs, model.nq)
        self.qvel = torch.zeros(num_envs, model.nv)
        self.act = torch.zeros(num_envs, model.na)
        self.warmstart = torch.zeros(num_envs, model.nv)
        self.mocap_pos = torch.zeros(num_envs, nmocap, 3)
        self.mocap_quat = torch.zeros(num_envs, nmocap, 4)
        self.mocap_quat[..., 0] = 1.0
        self.qpos.copy_(torch.tensor(body.guard_pose()))

    def step(self, ctrl: Tensor, mocap_pos: Tensor, mocap_quat: Tensor, push: Tensor) -> None:
        """Advances every world by one control step."""
        control, worlds = self._control, self.num_envs
        control[:, :, : self._force_at] = ctrl.numpy()[:, None]
        at = self._force_at + self._trunk
        control[:, :, at : at + 3] = push.numpy()[:, None]
        control[:, :, self._pos_at : self._quat_at] = mocap_pos.reshape(
            worlds, self._steps, -1
        ).numpy()
        control[:, :, self._quat_at :] = mocap_quat.reshape(worlds, self._steps, -1).numpy()
        self._roll(self._steps)
        last = self._out[:, self._steps - 2]
        nq, nv = self.model.nq, self.model.nv
        self.qpos.copy_(torch.from_numpy(last[:, 1 : 1 + nq]))
        self.qvel.copy_(torch.from_numpy(last[:, 1 + nq : 1 + nq + nv]))
        self.act.copy_(torch.from_numpy(last[:, 1 + nq + nv :]))
        self.sensor_history.copy_(torch.from_numpy(self._sensor))
        force = layout.FORCE_SENSORS
        self.sensor_history[:, -1, force] = self.sensor_history[:, -2, force]
        self.mocap_pos.copy_(mocap_pos[:, -1])
        self.mocap_quat.copy_(mocap_quat[:, -1])

    def restart(
        self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor, mocap_quat: Tensor
    ) -> None:
        """Puts the worlds of `mask` into a given state and refreshes their sensors."""
        column = mask[:, None]
        self.qpos.copy_(torch.where(column, qpos, self.qpos))
        self.qvel.copy_(torch.where(column, qvel, self.qvel))
        self.mocap_pos.copy_(torch.where(column[..., None], mocap_pos, self.mocap_pos))
        self.mocap_quat.copy_(torch.where(column[..., None], mocap_quat, self.mocap_quat))
        self.act.masked_fill_(column, 0.0)
        self.sensor_history.masked_fill_(mask[:, None, None], 0.0)
        self.refresh(np.flatnonzero(mask.numpy()))

    def refresh(self, worlds: np.ndarray | None = None) -> None:
        """Recomputes the sensors of the present state of `worlds` (all by default)."""
        chosen = range(self.num_envs) if worlds is None else worlds
        data, force = self._datas[0], layout.FORCE_SENSORS.start
        for world in chosen:
            model = self._models[world % len(self._models)]
            data.qpos[:] = self.qpos[world].numpy()
            data.qvel[:] = self.qvel[world].numpy()
            data.act[:] = self.act[world].numpy()
            data.mocap_pos[:] = self.mocap_pos[world].numpy()
            data.mocap_quat[:] = self.mocap_quat[world].numpy()
            mujoco.mj_fwdPosition(model, data)
            mujoco.mj_sensorPos(model, data)
            mujoco.mj_fwdVelocity(model, data)
            mujoco.mj_sensorVel(model, data)
            self.sensors[world, :force] = torch.from_numpy(data.sensordata[:force])

    def scale_model(self, mask: Tensor, scales: ModelScales) -> None:
        """Sets mass, floor friction and muscle strength of the worlds of `mask`."""
        if self._models[0] is self.model:
            self._models = [self.model.__copy__() for _ in range(self.num_envs)]
        base, first = self.model, _own(self.model)
        floor = base.geom("floor").id
        for world in np.flatnonzero(mask.numpy()):
            model = self._models[world]
            mass = float(scales.mass[world])
            model.body_mass[first:] = base.body_mass[first:] * mass
            model.body_inertia[first:] = base.body_inertia[first:] * mass
            model.body_subtreemass[first:] = base.body_subtreemass[first:] * mass
            model.geom_friction[floor] = base.geom_friction[floor] * float(scales.friction[world])
            strength = float(scales.strength[world])
            model.actuator_gainprm[:, 2] = base.actuator_gainprm[:, 2] * strength
            model.actuator_biasprm[:, 2] = base.actuator_biasprm[:, 2] * strength

    def close(self) -> None:
        """Stops the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _roll(self, steps: int) -> None:
        nq, nv = self.model.nq, self.model.nv
        full = self._full
        full[:, 1 : 1 + nq] = self.qpos.numpy()
        full[:, 1 + nq : 1 + nq + nv] = self.qvel.numpy()
        full[:, 1 + nq + nv :] = self.act.numpy()
        with _quiet():
            self._pool.rollout(
                self._models,
                self._datas,
                full,
                self._control,
                control_spec=int(_CONTROL),
                skip_checks=False,
                nstep=steps,
                state=self._out,
                sensordata=self._sensor,
            )
        for data in self._datas:
            full_up = sum(data.warning[kind].number for kind in _CAPACITY)
            if full_up:
                self.overflow |= 1
                for kind in _CAPACITY:
                    data.warning[kind].number = 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without MuJoCo's warnings of unstable worlds, which go to a file in the working directory.

    The environment counts broken worlds itself.
    """
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _own(model: mujoco.MjModel) -> int:
    """The first body of our fighter; all later bodies are ours too."""
    return model.body(anatomy.BODIES[0].name).id
