"""The fighter's body as tables: segments, hinges, strengths, and where each number comes from.

Everything that describes the body is here; `body` only turns it into a model. Axes: x forward,
y to the left, z up; every segment frame equals the world frame when the fighter stands upright
with hanging arms, so that all joint angles are zero in that pose.

Sources. Segment masses: de Leva 1996 (J. Biomech. 29, 1223), men, as fractions of 75 kg; the
gloves add 0.34 kg each (12 oz). Lengths: Drillis and Contini's fractions of stature as printed in
Winter, "Biomechanics and Motor Control of Human Movement", at 1.75 m. Peak torques: rounded to the
middle of the ranges that Anderson et al. 2007 (J. Biomech. 40, 3105) give for hip, knee and ankle
of young adults, and Holzbaur et al. 2007 (J. Biomech. 40, 2442) for shoulder and elbow; the trunk
after extension tests of trained men. They are isometric peaks per joint, not single muscles.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BODIES",
    "HINGES",
    "LEG_HINGES",
    "MASS_KG",
    "SHAPES",
    "STATURE",
    "Hinge",
    "Segment",
    "Shape",
]

STATURE = 1.75
MASS_KG = 75.0
GLOVE_KG = 0.34
HIP_HEIGHT = 0.9275
SOLE_DEPTH = 0.068
THIGH, SHIN = 0.429, 0.4305
UPPER_ARM, FOREARM, FIST = 0.28, 0.255, 0.075
GLOVE_REACH = FOREARM + FIST


class Segment(NamedTuple):
    """One rigid body: `name`, `parent` ("" for the root), `offset` of its joint centre in the
    parent's frame (m), `mass` (kg)."""

    name: str
    parent: str
    offset: tuple[float, float, float]
    mass: float


class Hinge(NamedTuple):
    """One hinge: axis in the segment frame, range (rad), peak torques (N.m) towards + and -,
    PD stiffness (N.m/rad), and the largest offset (rad) that a full action adds to the guard."""

    name: str
    body: str
    axis: tuple[float, float, float]
    low: float
    high: float
    torque_plus: float
    torque_minus: float
    stiffness: float
    reach: float


class Shape(NamedTuple):
    """A capsule from `start` to `end` (m, segment frame), a sphere where they are equal, or a box
    (`half`) whose centre is `start`."""

    name: str
    body: str
    start: tuple[float, float, float]
    end: tuple[float, float, float]
    radius: float
    half: tuple[float, float, float] = (0.0, 0.0, 0.0)


def _both(side: int, offset: tuple[float, float, float]) -> tuple[float, float, float]:
    return (offset[0], side * offset[1], offset[2])


def _segments() -> tuple[Segment, ...]:
    rows = [
        Segment("pelvis", "", (0.0, 0.0, HIP_HEIGHT), 0.1117 * MASS_KG),
        Segment("torso", "pelvis", (0.0, 0.0, 0.10), 0.3229 * MASS_KG),
        Segment("head", "torso", (0.0, 0.0, 0.46), 0.0694 * MASS_KG),
    ]
    for name, side in (("left", 1), ("right", -1)):
        rows += [
            Segment(f"{name}_upper_arm", "torso", _both(side, (0.0, 0.18, 0.40)), 0.0271 * 75.0),
            Segment(
                f"{name}_forearm",
                f"{name}_upper_arm",
                (0.0, 0.0, -UPPER_ARM),
                (0.0162 + 0.0061) * MASS_KG + GLOVE_KG,
            ),
        ]
    for name, side in (("left", 1), ("right", -1)):
        rows += [
            Segment(f"{name}_thigh", "pelvis", _both(side, (0.0, 0.09, 0.0)), 0.1416 * MASS_KG),
            Segment(f"{name}_shin", f"{name}_thigh", (0.0, 0.0, -THIGH), 0.0433 * MASS_KG),
            Segment(f"{name}_foot", f"{name}_shin", (0.0, 0.0, -SHIN), 0.0137 * MASS_KG),
        ]
    return tuple(rows)


def _side_hinges(name: str, side: int) -> tuple[list[Hinge], list[Hinge]]:
    x = (float(side), 0.0, 0.0)
    inward = (0.0, 0.0, -float(side))
    flex = (0.0, -1.0, 0.0)
    arm = [
        Hinge(f"{name}_shoulder_flex", f"{name}_upper_arm", flex, -1.0, 2.9, 100, 90, 40, 1.2),
        Hinge(f"{name}_shoulder_abduct", f"{name}_upper_arm", x, -0.7, 2.0, 80, 80, 40, 1.0),
        Hinge(f"{name}_shoulder_inward", f"{name}_upper_arm", inward, -1.2, 1.5, 60, 40, 40, 1.0),
        Hinge(f"{name}_elbow", f"{name}_forearm", flex, 0.0, 2.5, 75, 55, 25, 1.6),
    ]
    leg = [
        Hinge(f"{name}_hip_inward", f"{name}_thigh", inward, -0.9, 0.9, 80, 80, 315, 0.5),
        Hinge(f"{name}_hip_abduct", f"{name}_thigh", x, -0.5, 0.9, 140, 140, 315, 0.5),
        Hinge(f"{name}_hip_flex", f"{name}_thigh", flex, -0.6, 2.1, 140, 200, 315, 0.8),
        Hinge(f"{name}_knee", f"{name}_shin", (0.0, 1.0, 0.0), 0.0, 2.4, 130, 260, 245, 0.8),
        Hinge(f"{name}_ankle_flex", f"{name}_foot", flex, -0.9, 0.6, 60, 170, 210, 0.5),
        Hinge(f"{name}_ankle_roll", f"{name}_foot", x, -0.45, 0.45, 60, 60, 210, 0.3),
    ]
    return arm, leg


def _hinges() -> tuple[Hinge, ...]:
    trunk = [
        Hinge("spine_yaw", "torso", (0.0, 0.0, 1.0), -0.9, 0.9, 120, 120, 245, 0.6),
        Hinge("spine_pitch", "torso", (0.0, 1.0, 0.0), -0.5, 1.2, 200, 250, 245, 0.5),
        Hinge("spine_roll", "torso", (1.0, 0.0, 0.0), -0.6, 0.6, 150, 150, 245, 0.4),
        Hinge("neck_yaw", "head", (0.0, 0.0, 1.0), -1.2, 1.2, 20, 20, 30, 1.0),
        Hinge("neck_pitch", "head", (0.0, 1.0, 0.0), -0.7, 0.8, 30, 45, 30, 0.6),
    ]
    left_arm, left_leg = _side_hinges("left", 1)
    right_arm, right_leg = _side_hinges("right", -1)
    return (*trunk, *left_arm, *right_arm, *left_leg, *right_leg)


def _shapes() -> tuple[Shape, ...]:
    origin = (0.0, 0.0, 0.0)
    rows = [
        Shape("pelvis", "pelvis", (0.0, 0.06, 0.03), (0.0, -0.06, 0.03), 0.10),
        Shape("torso", "torso", (0.0, 0.0, 0.10), (0.0, 0.0, 0.32), 0.13),
        Shape("head", "head", (0.015, 0.0, 0.155), (0.015, 0.0, 0.155), 0.107),
    ]
    for name in ("left", "right"):
        glove = (0.0, 0.0, -GLOVE_REACH)
        rows += [
            Shape(f"{name}_upper_arm", f"{name}_upper_arm", origin, (0.0, 0.0, -0.26), 0.045),
            Shape(f"{name}_forearm", f"{name}_forearm", origin, (0.0, 0.0, -0.24), 0.038),
            Shape(f"{name}_glove", f"{name}_forearm", glove, glove, 0.07),
            Shape(f"{name}_thigh", f"{name}_thigh", (0.0, 0.0, -0.06), (0.0, 0.0, -0.38), 0.07),
            Shape(f"{name}_shin", f"{name}_shin", (0.0, 0.0, -0.04), (0.0, 0.0, -0.38), 0.048),
            Shape(
                f"{name}_foot",
                f"{name}_foot",
                (0.065, 0.0, -SOLE_DEPTH + 0.02),
                (0.065, 0.0, -SOLE_DEPTH + 0.02),
                0.0,
                (0.125, 0.045, 0.02),
            ),
        ]
    return tuple(rows)


BODIES: tuple[Segment, ...] = _segments()
HINGES: tuple[Hinge, ...] = _hinges()
SHAPES: tuple[Shape, ...] = _shapes()
LEG_HINGES: tuple[str, ...] = tuple(
    hinge.name for hinge in HINGES if any(part in hinge.name for part in ("hip", "knee", "ankle"))
)
HEAD_CENTRE = (0.015, 0.0, 0.155)
HEAD_RADIUS = 0.107
EYE = (0.09, 0.0, 0.15)
GLOVE_RADIUS = 0.07
