"""Reads DeepMimic motion files (JSON): rows of joint rotations of its humanoid, y up.

The skeleton's offsets are those of the humanoid that the files were made for (DeepMimic's
``humanoid3d``): x forward, y up, z to the right, metres.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np

from fighter_env.clips import Clip
from fighter_env.clips.retarget import clip_from_points
from fighter_env.errors import ClipError

__all__ = ["find_motion", "import_deepmimic", "read_deepmimic"]

# joint, parent, offset, columns of its rotation (4: quaternion wxyz; 1: angle about z)
_JOINTS = (
    ("root", "", (0.0, 0.0, 0.0), 4),
    ("chest", "root", (0.0, 0.236151, 0.0), 4),
    ("neck", "chest", (0.0, 0.223894, 0.0), 4),
    ("right_hip", "root", (0.0, 0.0, 0.084887), 4),
    ("right_knee", "right_hip", (0.0, -0.421546, 0.0), 1),
    ("right_ankle", "right_knee", (0.0, -0.409870, 0.0), 4),
    ("right_shoulder", "chest", (-0.02405, 0.24350, 0.18311), 4),
    ("right_elbow", "right_shoulder", (0.0, -0.274788, 0.0), 1),
    ("left_hip", "root", (0.0, 0.0, -0.084887), 4),
    ("left_knee", "left_hip", (0.0, -0.421546, 0.0), 1),
    ("left_ankle", "left_knee", (0.0, -0.409870, 0.0), 4),
    ("left_shoulder", "chest", (-0.02405, 0.24350, -0.18311), 4),
    ("left_elbow", "left_shoulder", (0.0, -0.274788, 0.0), 1),
)
_ENDS = {
    "head_top": ("neck", (0.0, 0.25, 0.0)),
    "right_wrist": ("right_elbow", (0.0, -0.258947, 0.0)),
    "left_wrist": ("left_elbow", (0.0, -0.258947, 0.0)),
    "right_toe": ("right_ankle", (0.15, -0.05, 0.0)),
    "left_toe": ("left_ankle", (0.15, -0.05, 0.0)),
}
_COLUMNS = 44


def read_deepmimic(path: str | Path) -> tuple[np.ndarray, float]:
    """The rows (frames, 44) without a last frame of no duration, and the frames per second.

    Raises:
        ClipError: The file is no DeepMimic motion of the 13-joint humanoid.
    """
    try:
        rows = np.array(json.loads(Path(path).read_text())["Frames"], float)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ClipError(f"{path}: not a DeepMimic motion ({error})") from error
    if rows.ndim != 2 or rows.shape[1] != _COLUMNS or len(rows) < 2:
        raise ClipError(f"{path}: rows are {rows.shape}; they must be (frames, {_COLUMNS})")
    if rows[-1, 0] <= 0.0:
        rows = rows[:-1]
    seconds = float(np.median(rows[:, 0]))
    if not np.isfinite(rows).all() or not 1e-4 <= seconds <= 1.0:
        raise ClipError(
            f"{path}: rows must be finite and last from 0.0001 to 1 s; they last {seconds} s"
        )
    return rows, 1.0 / seconds


def _matrices(quat: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(quat, axis=1, keepdims=True)
    if not (length > 1e-6).all():
        raise ClipError("a rotation is a quaternion of zeros")
    w, x, y, z = (quat / length).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def joint_places(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Places of the joints and ends, each (frames, 3), in the file's axes."""
    places, turns = {}, {}
    column = 4
    for name, parent, offset, width in _JOINTS:
        if width == 4:
            local = _matrices(rows[:, column : column + 4])
        else:
            half = rows[:, column] / 2.0
            zero = np.zeros_like(half)
            local = _matrices(np.stack([np.cos(half), zero, zero, np.sin(half)], 1))
        column += width
        if parent:
            places[name] = places[parent] + turns[parent] @ np.array(offset)
            turns[name] = turns[parent] @ local
        else:
            places[name], turns[name] = rows[:, 1:4], local
    for name, (parent, offset) in _ENDS.items():
        places[name] = places[parent] + turns[parent] @ np.array(offset)
    return places


def find_motion(name: str) -> Path:
    """The file of a motion that the package `pybullet` installs, such as ``"punch"``.

    Raises:
        ClipError: `pybullet` (the extra ``mocap``) is not installed, or has no such motion.
    """
    spec = importlib.util.find_spec("pybullet_data")
    if spec is None or not spec.submodule_search_locations:
        raise ClipError("recorded motions come with pybullet: pip install 'kscheduler[mocap]'")
    folder = Path(spec.submodule_search_locations[0]) / "data" / "motions"
    path = folder / f"humanoid3d_{name}.txt"
    if not path.is_file():
        known = sorted(p.stem.removeprefix("humanoid3d_") for p in folder.glob("humanoid3d_*.txt"))
        raise ClipError(f"pybullet has no motion {name!r}; it has: {', '.join(known)}")
    return path


def import_deepmimic(path: str | Path, name: str, *, keep_root: bool = False) -> Clip:
    """A clip from a DeepMimic motion file.

    Raises:
        ClipError: The file is broken.
    """
    rows, fps = read_deepmimic(path)
    places = joint_places(rows)
    places["pelvis"] = places.pop("root")
    points = {key: value[:, [0, 2, 1]] * (1.0, -1.0, 1.0) for key, value in places.items()}
    source = f"{Path(path).name} (DeepMimic)"
    return clip_from_points(name, points, fps, source, keep_root=keep_root)
