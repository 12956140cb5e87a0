"""From joint places of any recorded person to poses of our 13 segments.

Only directions are taken from the recording; lengths are ours. Each segment is turned along its
bone (with its twist from the way the limb bends), and the chain is put together again from the
pelvis, whose height is scaled by the length of the legs.
"""

from __future__ import annotations

import numpy as np

from fighter_env import anatomy
from fighter_env.clips import Clip
from fighter_env.errors import ClipError

__all__ = ["POINTS", "clip_from_points", "remove_root_motion"]

POINTS = (
    "pelvis",
    "neck",
    "head_top",
    *(
        f"{side}_{joint}"
        for side in ("left", "right")
        for joint in ("shoulder", "elbow", "wrist", "hip", "knee", "ankle", "toe")
    ),
)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-9)


def _frame(main: np.ndarray, second: np.ndarray, which: str) -> np.ndarray:
    """Rotation matrices with `main` as the axis `which[0]` and `second` near `which[1]`."""
    axis, near = "xyz".index(which[0]), "xyz".index(which[1])
    a = _unit(main)
    b = _unit(second - (second * a).sum(-1, keepdims=True) * a)
    third = 3 - axis - near
    sign = 1.0 if (axis, near) in ((0, 1), (1, 2), (2, 0)) else -1.0
    made = np.zeros((*a.shape[:-1], 3, 3))
    made[..., axis], made[..., near], made[..., third] = a, b, sign * np.cross(a, b)
    return made


def _bend(fold: np.ndarray, bone: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    """`fold` where the limb bends enough to show its twist, else `fallback`, both cross `bone`."""
    bone = _unit(bone)
    across = fold - (fold * bone).sum(-1, keepdims=True) * bone
    weight = np.clip((np.linalg.norm(across, axis=-1, keepdims=True) - 0.05) / 0.15, 0.0, 1.0)
    return weight * _unit(across) + (1.0 - weight) * fallback


def _quaternions(matrix: np.ndarray) -> np.ndarray:
    """Unit quaternions (w, x, y, z), each on the side of its predecessor."""
    import mujoco

    flat = matrix.reshape(-1, 9)
    made = np.zeros((len(flat), 4))
    for row, values in enumerate(flat):
        mujoco.mju_mat2Quat(made[row], values)
    made = made.reshape(*matrix.shape[:-2], 4)
    for frame in range(1, len(made)):
        flip = (made[frame] * made[frame - 1]).sum(-1) < 0
        made[frame][flip] *= -1.0
    return made


def _orientations(points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    p = points
    made = {
        "pelvis": _frame(p["left_hip"] - p["right_hip"], p["neck"] - p["pelvis"], "yz"),
        "torso": _frame(p["neck"] - p["pelvis"], p["left_shoulder"] - p["right_shoulder"], "zy"),
    }
    made["head"] = _frame(p["head_top"] - p["neck"], made["torso"][..., 1], "zy")
    for side in ("left", "right"):
        upper = p[f"{side}_elbow"] - p[f"{side}_shoulder"]
        lower = p[f"{side}_wrist"] - p[f"{side}_elbow"]
        fold = _bend(_unit(lower), upper, made["torso"][..., 0])
        made[f"{side}_upper_arm"] = _frame(-upper, fold, "zx")
        fold = _bend(-_unit(upper), lower, made[f"{side}_upper_arm"][..., 0])
        made[f"{side}_forearm"] = _frame(-lower, fold, "zx")
        thigh = p[f"{side}_knee"] - p[f"{side}_hip"]
        shin = p[f"{side}_ankle"] - p[f"{side}_knee"]
        foot = p[f"{side}_toe"] - p[f"{side}_ankle"]
        made[f"{side}_thigh"] = _frame(
            -thigh, _bend(-_unit(shin), thigh, made["pelvis"][..., 0]), "zx"
        )
        made[f"{side}_shin"] = _frame(-shin, _unit(foot), "zx")
        flat = foot * np.array([1.0, 1.0, 0.0])
        upright = np.broadcast_to(np.array([0.0, 0.0, 1.0]), foot.shape)
        made[f"{side}_foot"] = _frame(flat, upright, "xz")
    return made


def remove_root_motion(points: dict[str, np.ndarray], fps: float) -> dict[str, np.ndarray]:
    """Takes the slow travel and turn of the pelvis out (a moving mean of one second)."""
    centre = points["pelvis"][:, :2]
    across = (points["left_hip"] - points["right_hip"])[:, :2]
    yaw = np.unwrap(np.arctan2(-across[:, 0], across[:, 1]))
    width = max(1, min(round(fps), len(yaw)))

    def smooth(values: np.ndarray) -> np.ndarray:
        half = width // 2
        padded = np.pad(values, (half, width - 1 - half), mode="edge")
        return np.convolve(padded, np.full(width, 1.0 / width), "valid")

    slow = np.stack([smooth(centre[:, 0]), smooth(centre[:, 1])], 1)
    turn = smooth(yaw)
    c, s = np.cos(turn), np.sin(turn)
    made = {}
    for name, value in points.items():
        x, y = (value[:, :2] - slow).T
        made[name] = np.stack([c * x + s * y, c * y - s * x, value[:, 2]], 1)
    return made


def clip_from_points(
    name: str, points: dict[str, np.ndarray], fps: float, source: str, *, keep_root: bool = False
) -> Clip:
    """A clip from the places of joints.

    Args:
        name: Name of the clip.
        points: Place of each of `POINTS` per frame, x forward and z up, any unit, shape (T, 3).
        fps: Frames per second.
        source: Where the motion comes from.
        keep_root: Keep the travel and turn of the pelvis.

    Raises:
        ClipError: A point is missing, there are fewer than 2 frames, or the legs have no length.
    """
    missing = [point for point in POINTS if point not in points]
    if missing:
        raise ClipError(f"clip {name!r}: joints are missing: {', '.join(missing)}")
    if len(points["pelvis"]) < 2:
        raise ClipError(f"clip {name!r}: needs at least 2 frames")
    if not keep_root:
        points = remove_root_motion(points, fps)
    legs = [
        np.linalg.norm(points[f"{s}_hip"] - points[f"{s}_knee"], axis=-1)
        + np.linalg.norm(points[f"{s}_knee"] - points[f"{s}_ankle"], axis=-1)
        for s in ("left", "right")
    ]
    long = float(np.mean(legs))
    if not 1e-9 < long < np.inf:
        raise ClipError(f"clip {name!r}: the legs are {long} long")
    scale = (anatomy.THIGH + anatomy.SHIN) / long
    turns = _orientations(points)
    places: dict[str, np.ndarray] = {}
    for segment in anatomy.BODIES:
        if segment.parent:
            offset = turns[segment.parent] @ np.array(segment.offset)
            places[segment.name] = places[segment.parent] + offset
        else:
            hips = 0.5 * (points["left_hip"] + points["right_hip"])
            places[segment.name] = hips * scale
    pos = np.stack([places[segment.name] for segment in anatomy.BODIES], 1)
    quat = np.stack([_quaternions(turns[segment.name]) for segment in anatomy.BODIES], 1)
    pos[..., :2] -= pos[0, 0, :2]
    feet = [index for index, segment in enumerate(anatomy.BODIES) if "foot" in segment.name]
    pos[..., 2] -= np.percentile(pos[:, feet, 2].min(1), 5) - anatomy.SOLE_DEPTH
    return Clip(name, pos.astype(np.float32), quat.astype(np.float32), fps, source=source)
