"""The posture controller: joint targets in, muscle excitations out, for a batch of worlds.

A PD law gives a torque per hinge; the excitation is that torque divided by the torque that the
pulling muscle can give *now*, at its present length and speed (MuJoCo's muscle curves). Both ankles
also press against the capture point of the whole body, which is what keeps the fighter standing.
It runs once per control step and reads nothing from the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fighter_env import anatomy, body, layout, rotations

__all__ = ["PostureConfig", "PostureController", "muscle_gain"]


@dataclass(frozen=True)
class PostureConfig:
    """Gains of the posture controller.

    Attributes:
        stiffness_scale: Multiplies every stiffness of `anatomy.HINGES` (N.m/rad).
        damping_ratio: Damping over stiffness (s).
        capture_gain: Ankle torque per metre of capture point offset, per foot (N.m/m).
        capture_time: Seconds by which the velocity of the centre of mass counts.
        least_gain: Smallest share of a muscle's peak torque that is divided by.
        hip_share: Hip torque per unit of ankle torque, the same way round; helps in wide pushes.
    """

    stiffness_scale: float = 1.0
    damping_ratio: float = 0.045
    capture_gain: float = 800.0
    capture_time: float = 0.3
    least_gain: float = 0.05
    hip_share: float = 0.0


def muscle_gain(length: Tensor, speed: Tensor) -> Tensor:
    """Torque over peak torque that a fully active muscle gives.

    Args:
        length: Normalised length (1 is optimal), any shape.
        speed: Normalised speed (-1 is the fastest shortening), same shape.

    Returns:
        The force-length times the force-velocity curve of `mju_muscleGain`, same shape.
    """
    low, high = body.MUSCLE["lmin"], body.MUSCLE["lmax"]
    peak = body.MUSCLE["fvmax"]
    a, b = 0.5 * (low + 1.0), 0.5 * (1.0 + high)
    rising = torch.where(
        length <= a,
        0.5 * ((length - low).clamp_min(0.0) / (a - low)) ** 2,
        1.0 - 0.5 * ((1.0 - length) / (1.0 - a)) ** 2,
    )
    falling = torch.where(
        length <= b,
        1.0 - 0.5 * ((length - 1.0) / (b - 1.0)) ** 2,
        0.5 * ((high - length).clamp_min(0.0) / (high - b)) ** 2,
    )
    force_length = torch.where(length <= 1.0, rising, falling)
    y = peak - 1.0
    shortening = (speed.clamp(-1.0, 0.0) + 1.0) ** 2
    lengthening = peak - (y - speed.clamp(0.0, y)) ** 2 / y
    return force_length * torch.where(speed <= 0.0, shortening, lengthening)


class PostureController:
    """Turns joint targets into the 50 excitations of the fighter.

    Args:
        device: Torch device of the tensors that will be passed.
        config: Gains.
    """

    def __init__(self, device: torch.device | str, config: PostureConfig | None = None) -> None:
        self.config = config or PostureConfig()
        hinges = anatomy.HINGES
        names = [hinge.name for hinge in hinges]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.stiffness = column([h.stiffness * self.config.stiffness_scale for h in hinges])
        self.low = column([hinge.low for hinge in hinges])
        self.high = column([hinge.high for hinge in hinges])
        plus = column([hinge.torque_plus for hinge in hinges])
        minus = column([hinge.torque_minus for hinge in hinges])
        self._strength = torch.stack((minus, plus), 1)
        near, far = body.MUSCLE["range"]
        self._scale = (far - near) / (self.high - self.low)
        self._ankle = {
            side: (names.index(f"{side}_ankle_flex"), names.index(f"{side}_ankle_roll"))
            for side in ("left", "right")
        }
        self._hip = {
            side: (names.index(f"{side}_hip_flex"), names.index(f"{side}_hip_abduct"))
            for side in ("left", "right")
        }

    def excite(self, targets: Tensor, qpos: Tensor, qvel: Tensor, sensors: Tensor) -> Tensor:
        """Excitations that pull every hinge to its target.

        Args:
            targets: Hinge angles to hold (rad), shape (N, 25).
            qpos: Positions, shape (N, nq).
            qvel: Velocities, shape (N, nv).
            sensors: Fresh sensor values, shape (N, nsensordata).

        Returns:
            Excitations in [0, 1], shape (N, 50), in the order of the model's actuators.
        """
        angle, rate = qpos[:, layout.HINGE_QPOS], qvel[:, layout.HINGE_QVEL]
        wanted = torch.minimum(torch.maximum(targets, self.low), self.high)
        torque = self.stiffness * (wanted - angle - self.config.damping_ratio * rate)
        return self._divide(torque + self._balance(sensors), angle, rate)

    def _balance(self, sensors: Tensor) -> Tensor:
        """Ankle torques against the capture point, shape (N, 25)."""
        read = layout.sensor
        point = read(sensors, "com_pos") + self.config.capture_time * read(sensors, "com_linvel")
        middle = 0.5 * (read(sensors, "left_sole_pos") + read(sensors, "right_sole_pos"))
        offset = (point - middle)[:, :2]
        zero = torch.zeros_like(offset[:, 0])
        columns = [zero] * len(anatomy.HINGES)
        for side, sign in (("left", 1.0), ("right", -1.0)):
            toes = rotations.heading(read(sensors, f"{side}_foot_quat"))
            push = -self.config.capture_gain * rotations.to_heading(toes, offset)
            flex, roll = self._ankle[side]
            columns[flex], columns[roll] = push[:, 0], sign * push[:, 1]
            if self.config.hip_share:
                flex, abduct = self._hip[side]
                columns[flex] = self.config.hip_share * push[:, 0]
                columns[abduct] = self.config.hip_share * sign * push[:, 1]
        return torch.stack(columns, 1)

    def _divide(self, torque: Tensor, angle: Tensor, rate: Tensor) -> Tensor:
        near = body.MUSCLE["range"][0]
        fastest = body.MUSCLE["vmax"]
        least = self.config.least_gain
        speed = rate * self._scale / fastest
        # Per hinge: the muscle that pulls towards minus, then the one that pulls towards plus.
        length = near + torch.stack((angle - self.low, self.high - angle), 2) * self._scale[:, None]
        gain = muscle_gain(length, torch.stack((speed, -speed), 2)).clamp_min(least)
        wanted = torch.stack((-torque, torque), 2)
        return (wanted / (self._strength * gain)).flatten(1).clamp(0.0, 1.0)
