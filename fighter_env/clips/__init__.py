"""Motion clips: what the opponent does, as poses of its segments.

A clip is an ``.npz`` file: `pos` (frames, 13, 3) and `quat` (frames, 13, 4) of the segments of
`anatomy.BODIES`, `fps`, `hand`, `impact`, `source` and `sha256`. Its frame of reference lies on the
floor under the pelvis of the first frame, x towards the other fighter. The clips that ship here are
made by ``python -m fighter_env.clips``; recorded ones come in through the BVH and DeepMimic
importers and are then used by name like the others.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fighter_env import anatomy
from fighter_env.errors import ClipError

__all__ = ["BUILT_IN", "Clip", "clip_names", "load_clip", "save_clip"]

BUILT_IN = ("guard_idle", "jab", "cross", "left_hook", "uppercut")
_FOLDER = Path(__file__).parent
_BODIES = len(anatomy.BODIES)


@dataclass(frozen=True)
class Clip:
    """One motion of the opponent.

    Attributes:
        name: What the configuration calls it.
        pos: Segment origins in the clip's frame (m), float32, shape (T, 13, 3).
        quat: Segment orientations (w, x, y, z), float32, shape (T, 13, 4).
        fps: Frames per second.
        hand: "left", "right", or "" when it is no punch.
        impact: Frame in which the glove is meant to arrive; 0 when it is no punch.
        source: Where the motion comes from.
    """

    name: str
    pos: np.ndarray
    quat: np.ndarray
    fps: float
    hand: str = ""
    impact: int = 0
    source: str = "made"
    sha256: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        frames = self.pos.shape[0] if self.pos.ndim == 3 else 0
        if self.pos.shape != (frames, _BODIES, 3) or self.quat.shape != (frames, _BODIES, 4):
            names = ", ".join(segment.name for segment in anatomy.BODIES)
            raise ClipError(
                f"clip {self.name!r}: pos is {self.pos.shape} and quat is {self.quat.shape}; they "
                f"must be (frames, {_BODIES}, 3) and (frames, {_BODIES}, 4) for {names}"
            )
        if frames < 2 or not 0 < self.fps < math.inf:
            raise ClipError(
                f"clip {self.name!r}: it has {frames} frames at {self.fps} Hz; it needs at least "
                "2 frames and fps > 0"
            )
        if not (np.isfinite(self.pos).all() and np.isfinite(self.quat).all()):
            raise ClipError(f"clip {self.name!r}: a pose is not finite")
        if (np.abs(np.linalg.norm(self.quat, axis=-1) - 1.0) > 0.01).any():
            raise ClipError(f"clip {self.name!r}: a quaternion is not of length 1")
        if self.hand not in ("", "left", "right") or not 0 <= self.impact < frames:
            raise ClipError(
                f"clip {self.name!r}: hand is {self.hand!r} and impact is {self.impact}; hand must "
                f'be "left", "right" or "" and impact a frame in [0, {frames})'
            )
        object.__setattr__(self, "sha256", _digest(self))

    @property
    def seconds(self) -> float:
        """Length of the clip in seconds."""
        return (len(self.pos) - 1) / self.fps

    def glove(self) -> np.ndarray:
        """Centre of the punching glove (the left one if `hand` is ""), shape (T, 3)."""
        names = [segment.name for segment in anatomy.BODIES]
        index = names.index(f"{self.hand or 'left'}_forearm")
        down = _rotate(self.quat[:, index], np.array([0.0, 0.0, -anatomy.GLOVE_REACH]))
        return self.pos[:, index] + down


def _rotate(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    w, u = quat[..., :1], quat[..., 1:]
    t = 2.0 * np.cross(u, np.broadcast_to(vector, u.shape))
    return vector + w * t + np.cross(u, t)


def _digest(clip: Clip) -> str:
    made = hashlib.sha256()
    for part in (clip.pos, clip.quat):
        made.update(np.ascontiguousarray(part, np.float32).tobytes())
    made.update(f"{clip.name}|{clip.fps:.6f}|{clip.hand}|{clip.impact}".encode())
    return made.hexdigest()


def save_clip(clip: Clip, folder: str | Path = _FOLDER) -> Path:
    """Writes ``<name>.npz`` into `folder` and returns its path."""
    path = Path(folder) / f"{clip.name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        pos=clip.pos.astype(np.float32),
        quat=clip.quat.astype(np.float32),
        fps=np.float64(clip.fps),
        hand=clip.hand,
        impact=np.int64(clip.impact),
        source=clip.source,
        sha256=clip.sha256,
    )
    return path


def load_clip(name: str, folder: str | Path = "") -> Clip:
    """The clip called `name`.

    Args:
        name: Name of a clip that ships here, or of an ``.npz`` in `folder`.
        folder: Where imported clips are; searched first. "" means none.

    Raises:
        ClipError: There is no such clip, or its file is broken.
    """
    places = [Path(folder)] if folder else []
    if folder and not Path(folder).is_dir():
        raise ClipError(f"clip_folder is {str(folder)!r}, which is no folder")
    for place in (*places, _FOLDER):
        path = place / f"{name}.npz"
        if path.is_file():
            return _read(name, path)
    known = ", ".join(clip_names(folder))
    where = f" and in {folder}" if folder else ""
    raise ClipError(f"unknown clip {name!r}; clips that ship{where}: {known}")


def clip_names(folder: str | Path = "") -> list[str]:
    """Names of all clips that `load_clip` finds."""
    places = [_FOLDER, *([Path(folder)] if folder else [])]
    return sorted({path.stem for place in places for path in place.glob("*.npz")})


# What numpy raises for a file that is no .npz, is cut short, or holds entries of another kind.
_UNREADABLE = (
    *(KeyError, OSError, EOFError, ValueError, TypeError, NotImplementedError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)


def _read(name: str, path: Path) -> Clip:
    try:
        with np.load(path, allow_pickle=False) as stored:
            clip = Clip(
                name=name,
                pos=stored["pos"],
                quat=stored["quat"],
                fps=float(stored["fps"]),
                hand=str(stored["hand"]),
                impact=int(stored["impact"]),
                source=str(stored["source"]),
            )
            written = str(stored["sha256"])
    except ClipError:
        raise
    except _UNREADABLE as error:
        raise ClipError(f"clip {name!r}: {path} cannot be read: {error}") from error
    if written != clip.sha256:
        raise ClipError(f"clip {name!r}: {path} does not match its own hash; make it again")
    return clip
