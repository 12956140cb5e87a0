"""``python -m fighter_env.clips``: makes the clips that ship, or imports a recorded motion."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro
import warp as wp
from rich.console import Console

from fighter_env.clips import Clip, save_clip
from fighter_env.clips.bvh import import_bvh
from fighter_env.clips.deepmimic import find_motion, import_deepmimic
from fighter_env.clips.generate import make_clips
from fighter_env.errors import ClipError, FighterError


def make(out: Path = Path(__file__).parent) -> None:
    """Makes guard_idle, jab, cross, left_hook and uppercut.

    Args:
        out: Folder to write to.
    """
    for clip in make_clips():
        _report(clip, save_clip(clip, out))


def add(
    file: tyro.conf.Positional[str],
    name: tyro.conf.Positional[str],
    out: Path,
    hand: str = "",
    start: float = 0.0,
    end: float = float("inf"),
    keep_root: bool = False,
) -> None:
    """Imports a BVH file, a DeepMimic file, or a motion of pybullet by its name.

    Args:
        file: Path ending in .bvh, or of a DeepMimic JSON file, or a pybullet motion (punch).
        name: Name of the clip.
        out: Folder to write to; give it to the environment as `clip_folder`.
        hand: Punching hand, left or right; "" if it is no punch.
        start: First second (BVH).
        end: Last second (BVH).
        keep_root: Keep the travel and turn of the pelvis.
    """
    if hand not in ("", "left", "right"):
        raise ClipError(f"hand is {hand!r}; it must be left or right, or empty for no punch")
    if file.lower().endswith(".bvh"):
        clip = import_bvh(file, name, start=start, end=end, keep_root=keep_root)
    else:
        path = Path(file) if Path(file).exists() else find_motion(file)
        clip = import_deepmimic(path, name, keep_root=keep_root)
    if hand:
        clip = with_hand(clip, hand)
    out.mkdir(parents=True, exist_ok=True)
    _report(clip, save_clip(clip, out))


def with_hand(clip: Clip, hand: str) -> Clip:
    """The clip as a punch of `hand`, whose impact is where the glove is farthest forward."""
    marked = Clip(clip.name, clip.pos, clip.quat, clip.fps, hand, 0, clip.source)
    impact = int(marked.glove()[:, 0].argmax())
    return Clip(clip.name, clip.pos, clip.quat, clip.fps, hand, impact, clip.source)


def _report(clip: Clip, path: Path) -> None:
    Console().print(f"{path}: {len(clip.pos)} frames at {clip.fps:g} Hz, {clip.sha256[:12]}")


def main() -> None:
    """Entry of ``python -m fighter_env.clips``."""
    wp.config.log_level = wp.LOG_WARNING
    try:
        commands = {"make": make, "import": add}
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m fighter_env.clips")
    except FighterError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
