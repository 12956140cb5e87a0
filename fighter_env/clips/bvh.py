"""Reads BVH motion files: the hierarchy, the channels, and the places of the joints."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fighter_env.clips import Clip
from fighter_env.clips.retarget import clip_from_points
from fighter_env.errors import ClipError

__all__ = ["Joint", "import_bvh", "read_bvh"]

# Our point, and what files call it (lower case, letters and digits only), the likeliest first:
# beside a joint called arm, one called shoulder is the collar bone.
_NAMES = {
    "pelvis": ("hips", "hip", "pelvis", "root"),
    "neck": ("neck", "neck1"),
    "head": ("head",),
    "shoulder": ("arm", "uparm", "upperarm", "shoulder"),
    "elbow": ("elbow", "forearm", "lowarm", "lowerarm"),
    "wrist": ("wrist", "hand"),
    "hip": ("hip", "upleg", "thigh", "upperleg"),
    "knee": ("knee", "leg", "lowleg", "lowerleg", "shin"),
    "ankle": ("ankle", "foot"),
    "toe": ("toes", "toe", "toebase", "ball"),
}
_CHANNELS = {f"{axis}{kind}" for axis in "xyz" for kind in ("position", "rotation")}
_SECONDS = (1e-4, 1.0)  # shortest and longest frame that a recording has


@dataclass
class Joint:
    """One joint of the hierarchy; an end site has no channels."""

    name: str
    parent: int
    offset: np.ndarray
    channels: list[str] = field(default_factory=list)


def read_bvh(path: str | Path) -> tuple[list[Joint], np.ndarray, float]:
    """The joints, the channel values (frames, channels), and the frames per second.

    Raises:
        ClipError: The file is no BVH file or is cut short.
    """
    joints: list[Joint] = []
    stack: list[int] = []
    at = 0
    try:
        words = Path(path).read_text().split()
        while words[at].upper() != "MOTION":
            word = words[at].upper()
            if word in ("ROOT", "JOINT", "END"):
                parent = stack[-1] if stack else -1
                name = words[at + 1] if word != "END" else f"{joints[parent].name}_end"
                joints.append(Joint(name, parent, np.zeros(3)))
                at += 2
            elif word == "{":
                stack.append(len(joints) - 1)
                at += 1
            elif word == "}":
                stack.pop()
                at += 1
            elif word == "OFFSET":
                joints[-1].offset = np.array([float(value) for value in words[at + 1 : at + 4]])
                at += 4
            elif word == "CHANNELS":
                count = int(words[at + 1])
                joints[-1].channels = [value.lower() for value in words[at + 2 : at + 2 + count]]
                at += 2 + count
            else:
                at += 1
        frames = int(words[words.index("Frames:", at) + 1])
        start = words.index("Time:", at) + 1
        seconds = float(words[start])
        total = sum(len(joint.channels) for joint in joints)
        values = np.array(words[start + 1 : start + 1 + frames * total], float)
        motion = values.reshape(max(frames, 0), total)
    except (IndexError, ValueError, OSError, OverflowError) as error:
        raise ClipError(f"{path}: not a complete BVH file ({error})") from error
    unknown = {channel for joint in joints for channel in joint.channels} - _CHANNELS
    if unknown:
        raise ClipError(f"{path}: unknown channels: {', '.join(sorted(unknown))}")
    if not _SECONDS[0] <= seconds <= _SECONDS[1]:
        raise ClipError(
            f"{path}: frame time is {seconds} s; it must be from {_SECONDS[0]} to {_SECONDS[1]} s"
        )
    if frames < 1 or total < 1:
        raise ClipError(f"{path}: it has {frames} frames of {total} channels; it needs some")
    offsets = np.array([joint.offset for joint in joints])
    if not (np.isfinite(motion).all() and np.isfinite(offsets).all()):
        raise ClipError(f"{path}: a value is not finite")
    return joints, motion, 1.0 / seconds


def _turn(axis: str, degrees: np.ndarray) -> np.ndarray:
    angle = np.radians(degrees)
    c, s = np.cos(angle), np.sin(angle)
    made = np.zeros((len(angle), 3, 3))
    i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    k = 3 - i - j
    made[:, k, k] = 1.0
    made[:, i, i], made[:, j, j], made[:, i, j], made[:, j, i] = c, c, -s, s
    return made


def joint_places(joints: list[Joint], motion: np.ndarray) -> np.ndarray:
    """Places of all joints, shape (frames, joints, 3), in the file's axes and unit."""
    frames = len(motion)
    places = np.zeros((frames, len(joints), 3))
    turns = np.zeros((frames, len(joints), 3, 3))
    column = 0
    for index, joint in enumerate(joints):
        local = np.repeat(np.eye(3)[None], frames, 0)
        offset = np.repeat(joint.offset[None], frames, 0)
        for channel in joint.channels:
            values = motion[:, column]
            column += 1
            if channel.endswith("position"):
                offset[:, "xyz".index(channel[0])] = values
            else:
                local = local @ _turn(channel[0], values)
        if joint.parent < 0:
            places[:, index], turns[:, index] = offset, local
        else:
            above = turns[:, joint.parent]
            places[:, index] = places[:, joint.parent] + np.einsum("fij,fj->fi", above, offset)
            turns[:, index] = above @ local
    return places


def _find(joints: list[Joint], side: str, point: str) -> int | None:
    """The joint that is our point, or None; a name that says no more than that comes first."""
    names = _plain_names(joints)
    for wanted in _NAMES[point]:
        for exact in (f"{side}{wanted}", f"{side[:1]}{wanted}"):
            if exact in names:
                return names.index(exact)
    for wanted in _NAMES[point] if side else ():
        for index, name in enumerate(names):
            if name.endswith(f"{side}{wanted}"):
                return index
    return None


def _plain_names(joints: list[Joint]) -> list[str]:
    """Names in lower case, without a prefix that all of them have (such as mixamorig:)."""
    names = [re.sub(r"[^a-z0-9]", "", joint.name.lower().split(":")[-1]) for joint in joints]
    columns = zip(*names, strict=False)
    prefix = "".join(c[0] for c in itertools.takewhile(lambda c: len(set(c)) == 1, columns))
    return [name.removeprefix(prefix) for name in names] if prefix not in names else names


def import_bvh(
    path: str | Path,
    name: str,
    *,
    start: float = 0.0,
    end: float = float("inf"),
    keep_root: bool = False,
) -> Clip:
    """A clip from seconds `start` to `end` of a BVH file (y up, z forward).

    Raises:
        ClipError: The file is broken, joints that we need are missing from it, or there is no
            motion from `start` to `end`.
    """
    joints, motion, fps = read_bvh(path)
    if not 0.0 <= start < end:
        raise ClipError(f"start is {start} s and end is {end} s; they must be 0 <= start < end")
    first, last = round(min(start, 1e9) * fps), min(len(motion), round(min(end, 1e9) * fps) + 1)
    if last - first < 2:
        raise ClipError(
            f"{path}: fewer than 2 frames from {start} s to {end} s; it is "
            f"{(len(motion) - 1) / fps:g} s long"
        )
    places = joint_places(joints, motion[first:last])[..., [2, 0, 1]]
    points, missing = {}, []
    wanted = [("", "pelvis", "pelvis"), ("", "neck", "neck"), ("", "head", "head_top")]
    for side in ("left", "right"):
        for point in ("shoulder", "elbow", "wrist", "hip", "knee", "ankle", "toe"):
            wanted.append((side, point, f"{side}_{point}"))
    for side, point, ours in wanted:
        index = _find(joints, side, point)
        if index is None:
            missing.append(ours)
        else:
            points[ours] = places[:, index]
    if missing:
        raise ClipError(f"{path}: joints are missing: {', '.join(missing)}")
    head = _find(joints, "", "head")
    tip = next((i for i, joint in enumerate(joints) if joint.parent == head), head)
    points["head_top"] = places[:, tip]
    return clip_from_points(name, points, fps, f"{Path(path).name} (BVH)", keep_root=keep_root)
