"""Physics: one interface over MuJoCo Warp and MuJoCo C, with float32 torch tensors on both sides.

`Physics` owns the state of `num_envs` worlds. A control step is `substeps` physics steps of the
same length; positions and sensors afterwards belong to the same instant, on both implementations.
`sensor_history[:, k]` holds what the sensors say at the start of substep `k`, and the last row what
they say after the step (force sensors there are those of the last substep).

MuJoCo Warp runs `step2` then `step1` per substep, so derived fields are never one substep old; it
works on the CPU and on CUDA and makes no host read. MuJoCo C runs `mujoco.rollout` threads; the
host reads its tensors, which costs nothing there because they are the host's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fighter_env import body, layout
from fighter_env.errors import ConfigError

__all__ = ["ModelScales", "Physics", "PhysicsConfig", "make_physics"]


@dataclass(frozen=True)
class PhysicsConfig:
    """Step and capacities.

    Attributes:
        timestep: Seconds per substep.
        substeps: Substeps per control step.
        nconmax: Contacts per world that MuJoCo Warp has room for (pooled over the batch).
        njmax: Constraint rows per world that MuJoCo Warp has room for.
        threads: Rollout threads of MuJoCo C; 0 means one per core of this process.
        conditional_solver: MuJoCo Warp leaves its solver loop when every world has converged
            (a loop node when recorded); False runs all iterations, without any condition.
    """

    timestep: float = body.TIMESTEP
    substeps: int = 5
    nconmax: int = 48
    njmax: int = 192
    threads: int = 0
    conditional_solver: bool = True


@dataclass
class ModelScales:
    """Per-world multipliers of the model, each of shape (N,)."""

    mass: Tensor
    friction: Tensor
    strength: Tensor


class Physics(ABC):
    """State and stepping of `num_envs` worlds.

    Attributes:
        qpos, qvel, act: State, shapes (N, nq), (N, nv), (N, nu).
        warmstart: Accelerations that the solver starts from, shape (N, nv).
        mocap_pos, mocap_quat: Mocap poses, shapes (N, nmocap, 3) and (N, nmocap, 4).
        sensors: Sensor values of the present state, shape (N, nsensordata).
        sensor_history: Sensor values per substep, shape (N, substeps + 1, nsensordata).
        overflow: Capacity bits since the caller last zeroed them, int32, shape (N,).
        solver_limit: 1 where the solver hit its iteration limit, int32, shape (N,).
    """

    name = ""

    def __init__(self, num_envs: int, device: torch.device, config: PhysicsConfig) -> None:
        self.num_envs, self.device, self.config = num_envs, device, config
        self.model = body.build_model(timestep=config.timestep)
        history = (num_envs, config.substeps + 1, layout.NSENSOR)
        self.sensor_history = torch.zeros(history, device=device)
        self.overflow = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self.solver_limit = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self.qpos: Tensor
        self.qvel: Tensor
        self.act: Tensor
        self.warmstart: Tensor
        self.mocap_pos: Tensor
        self.mocap_quat: Tensor

    @property
    def sensors(self) -> Tensor:
        """Sensor values of the present state, shape (N, nsensordata): a view."""
        return self.sensor_history[:, -1]

    @abstractmethod
    def step(self, ctrl: Tensor, mocap_pos: Tensor, mocap_quat: Tensor, push: Tensor) -> None:
        """Advances every world by one control step.

        Args:
            ctrl: Excitations in [0, 1], shape (N, nu).
            mocap_pos: Mocap positions at the start of each substep and at the end, shape
                (N, substeps + 1, nmocap, 3). The first must be where they are now.
            mocap_quat: The same for orientations, shape (N, substeps + 1, nmocap, 4).
            push: Force on the trunk in the world frame (N), shape (N, 3).
        """

    @abstractmethod
    def restart(
        self, mask: Tensor, qpos: Tensor, qvel: Tensor, mocap_pos: Tensor, mocap_quat: Tensor
    ) -> None:
        """Puts the worlds of `mask` into a given state, clears what they remember, and refreshes
        `sensors`; other worlds are not changed by a bit.

        Args:
            mask: Worlds to restart, bool, shape (N,).
            qpos: New positions, shape (N, nq).
            qvel: New velocities, shape (N, nv).
            mocap_pos: New mocap positions, shape (N, nmocap, 3).
            mocap_quat: New mocap orientations, shape (N, nmocap, 4).
        """

    @abstractmethod
    def refresh(self) -> None:
        """Recomputes `sensors` from the present state, as after `load`."""

    @abstractmethod
    def scale_model(self, mask: Tensor, scales: ModelScales) -> None:
        """Sets mass, floor friction and muscle strength of the worlds of `mask`."""

    @abstractmethod
    def close(self) -> None:
        """Stops threads and drops buffers; calling it twice is fine."""

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on."""
        return {name: getattr(self, name).clone() for name in STATE}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes a state over; model scales are set by the caller before."""
        for name in STATE:
            getattr(self, name).copy_(state[name])
        self.refresh()
        # MuJoCo C's sensors come from a float64 state that float32 positions do not give back.
        self.sensor_history.copy_(state["sensor_history"])


STATE = (
    "qpos",
    "qvel",
    "act",
    "warmstart",
    "mocap_pos",
    "mocap_quat",
    "sensor_history",
    "overflow",
    "solver_limit",
)


def make_physics(
    name: str, num_envs: int, device: torch.device | str, config: PhysicsConfig
) -> Physics:
    """The physics called `name`: ``"warp"`` or ``"mujoco"``.

    Raises:
        ConfigError: The name is unknown, or `mujoco` was asked for on a device that is no CPU.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {str(device)!r}, but torch finds no CUDA device; use 'cpu'")
    kinds: dict[str, Any] = {}
    if name == "warp":
        from fighter_env.physics_warp import WarpPhysics

        kinds[name] = WarpPhysics
    elif name == "mujoco":
        from fighter_env.physics_mujoco import MujocoPhysics

        kinds[name] = MujocoPhysics
    if name not in kinds:
        raise ConfigError(f'physics is {name!r}; it must be "warp" or "mujoco"')
    if name == "mujoco" and device.type != "cpu":
        raise ConfigError(f'physics="mujoco" runs on the CPU; device is {device}')
    return kinds[name](num_envs, device, config)
