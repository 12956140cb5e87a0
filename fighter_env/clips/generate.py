"""The clips that ship: guard, jab, cross, left hook, uppercut, from minimum-jerk glove paths.

A punch moves the glove from the guard to its target and back along minimum-jerk time courses, with
a bow for hook and uppercut; the trunk turns, the pelvis shifts over planted feet, and arm inverse
kinematics fits both arms to every frame. The result is the pose of each segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import torch

from fighter_env import anatomy, body
from fighter_env.arm_ik import ARM_HINGES, ArmSolver
from fighter_env.clips import BUILT_IN, Clip

__all__ = ["PUNCHES", "Punch", "make_clips"]

FPS = 100.0
IDLE_SECONDS = 2.0


@dataclass(frozen=True)
class Punch:
    """How one punch is thrown.

    Attributes:
        hand: "left" or "right".
        target: Where the glove is at its far end, in the clip's frame (m).
        bow: How far the path bends at its middle (m).
        yaw: Turn of the spine at impact (rad).
        shift: Forward and upward move of the pelvis at impact (m).
        out, back: Seconds to the far end, and back.
    """

    hand: str
    target: tuple[float, float, float]
    bow: tuple[float, float, float]
    yaw: float
    shift: tuple[float, float]
    out: float
    back: float


PUNCHES = {
    "jab": Punch("left", (0.74, 0.02, 1.50), (0.0, 0.0, 0.0), -0.50, (0.08, 0.0), 0.18, 0.26),
    "cross": Punch("right", (0.74, 0.0, 1.50), (0.0, 0.0, 0.0), 0.95, (0.10, 0.0), 0.20, 0.30),
    "left_hook": Punch(
        "left", (0.55, -0.06, 1.50), (0.10, 0.30, 0.0), -0.75, (0.06, 0.0), 0.24, 0.34
    ),
    "uppercut": Punch(
        "right", (0.52, 0.0, 1.54), (-0.10, -0.02, -0.30), 0.50, (0.08, 0.04), 0.26, 0.34
    ),
}


def minimum_jerk(time: np.ndarray) -> np.ndarray:
    """Share of the way covered at `time` in [0, 1] (Flash and Hogan 1985)."""
    t = np.clip(time, 0.0, 1.0)
    return t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


class _Poser:
    """Poses one fighter from pelvis, spine and gloves, and reads off its segments."""

    def __init__(self) -> None:
        self.model = body.build_model()
        self.data = mujoco.MjData(self.model)
        self.home = np.array(body.guard_pose())
        self.bodies = [self.model.body(segment.name).id for segment in anatomy.BODIES]
        self.pelvis = self.model.joint("root").qposadr[0]
        self.data.qpos[:] = self.home
        mujoco.mj_kinematics(self.model, self.data)
        self.gloves = np.stack([self.data.site(f"{s}_glove").xpos for s in ("left", "right")])

    def trunk(self, yaw: float, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sets pelvis, planted legs and spine; returns the torso's pose."""
        data = self.data
        data.qpos[:] = self.home
        data.qpos[self.pelvis : self.pelvis + 3] += shift
        data.joint("spine_yaw").qpos = body.GUARD["spine_yaw"] + yaw
        data.joint("neck_yaw").qpos = body.GUARD["neck_yaw"] - yaw
        for side, sole in body.STANCE.items():
            body.place_leg(self.model, data, side, sole)
        mujoco.mj_kinematics(self.model, data)
        torso = data.body("torso")
        return torso.xpos.copy(), torso.xquat.copy()

    def segments(self, arms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for name, value in zip(ARM_HINGES, arms, strict=True):
            self.data.joint(name).qpos = value
        mujoco.mj_kinematics(self.model, self.data)
        return self.data.xpos[self.bodies].copy(), self.data.xquat[self.bodies].copy()


def _frames(
    poser: _Poser, yaws: np.ndarray, shifts: np.ndarray, gloves: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Segment poses of every frame from spine yaw (T), pelvis shift (T, 3), gloves (T, 2, 3)."""
    count = len(yaws)
    torsos = [poser.trunk(yaws[frame], shifts[frame]) for frame in range(count)]
    solver = ArmSolver(count, torch.device("cpu"), iterations=80)
    solver.fit(
        torch.ones(count, dtype=torch.bool),
        torch.tensor(np.array([pose[0] for pose in torsos]), dtype=torch.float32),
        torch.tensor(np.array([pose[1] for pose in torsos]), dtype=torch.float32),
        torch.tensor(gloves, dtype=torch.float32),
    )
    arms = solver.angles.reshape(count, 8).double().numpy()
    pos, quat = [], []
    for frame in range(count):
        poser.trunk(yaws[frame], shifts[frame])
        where, turned = poser.segments(arms[frame])
        pos.append(where)
        quat.append(turned)
    return np.array(pos, np.float32), np.array(quat, np.float32)


def _make_punch(name: str, punch: Punch, poser: _Poser) -> Clip:
    out, back = round(punch.out * FPS), round(punch.back * FPS)
    time = np.concatenate([np.arange(out + 1) / out, 1.0 + np.arange(1, back + 1) / back])
    share = np.where(time <= 1.0, minimum_jerk(time), minimum_jerk(2.0 - time))
    hand = 0 if punch.hand == "left" else 1
    start, far = poser.gloves[hand], np.array(punch.target)
    bow = np.array(punch.bow) * np.sin(np.pi * share)[:, None]
    gloves = np.repeat(poser.gloves[None], len(share), 0)
    shifts = np.zeros((len(share), 3))
    shifts[:, 0], shifts[:, 2] = punch.shift[0] * share, punch.shift[1] * share
    gloves[:, 1 - hand] += shifts  # the other hand stays at the chin
    # Outwards the path bows; back it is straight, as a fist is pulled home.
    bow[out + 1 :] = 0.0
    gloves[:, hand] = start + (far - start) * share[:, None] + bow
    pos, quat = _frames(poser, punch.yaw * share, shifts, gloves)
    return Clip(name, pos, quat, FPS, punch.hand, out, "minimum-jerk glove path and arm IK")


def _make_idle(poser: _Poser) -> Clip:
    time = np.arange(round(IDLE_SECONDS * FPS) + 1) / (IDLE_SECONDS * FPS)
    wave = 0.5 * (1.0 - np.cos(2.0 * np.pi * time))
    shifts = np.zeros((len(time), 3))
    shifts[:, 0], shifts[:, 2] = 0.015 * np.sin(2.0 * np.pi * time), -0.015 * wave
    gloves = np.repeat(poser.gloves[None], len(time), 0) + shifts[:, None]
    pos, quat = _frames(poser, 0.04 * np.sin(2.0 * np.pi * time), shifts, gloves)
    return Clip("guard_idle", pos, quat, FPS, "", 0, "two slow shifts of weight in the guard")


def make_clips(names: tuple[str, ...] = BUILT_IN) -> list[Clip]:
    """Clips that ship, freshly made: all of them, or those of `names`."""
    poser = _Poser()
    return [
        _make_punch(name, PUNCHES[name], poser) if name in PUNCHES else _make_idle(poser)
        for name in names
    ]
