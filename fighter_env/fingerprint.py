"""The fingerprint: what a saved policy or state silently depends on, as hashes by part.

A wider ankle range or a rebuilt clip changes what an environment is, and looks like a bug of
something else; two environments are the same exactly when all parts are equal.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import mujoco

from fighter_env import anatomy, body, layout
from fighter_env.clips import Clip
from fighter_env.config import FighterConfig, flatten
from fighter_env.errors import FingerprintError

__all__ = ["compare", "fingerprint"]

# Settings that a run may change without becoming another environment.
_FREE = ("physics.threads", "first_world", "strict", "clip_folder", "evaluation")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(model: mujoco.MjModel, clips: list[Clip], config: FighterConfig) -> dict[str, str]:
    """Hashes of body, motions, layout, settings and solver, and of all of them together.

    Args:
        model: The model as built.
        clips: Clips in use.
        config: Settings in use.
    """
    option = model.opt
    settings = {name: value for name, value in flatten(config).items() if name not in _FREE}
    parts = {f"body.{name}": _hash(value) for name, value in body.describe(model).items()}
    parts["body.names"] = _hash([[h.name for h in anatomy.HINGES], list(body.MOCAP)])
    parts |= {f"clip.{clip.name}": clip.sha256[:16] for clip in clips}
    parts["layout.sensors"] = _hash([list(row) for row in body.SENSORS])
    for group in layout.GROUPS:
        parts[f"layout.{group}"] = _hash(layout.observation_entries(group, config.action))
    parts |= {f"config.{name}": _hash(value) for name, value in settings.items()}
    solver = [option.timestep, option.integrator, option.solver, option.cone]
    solver += [option.iterations, option.ls_iterations, option.tolerance, list(option.gravity)]
    parts["solver"] = _hash(solver)
    parts["all"] = _hash(parts)
    return parts


def compare(saved: dict[str, str], mine: dict[str, str]) -> None:
    """Refuses a fingerprint that is not ours.

    Raises:
        FingerprintError: Names the parts that differ.
    """
    names = sorted(saved.keys() | mine.keys())
    differ = [name for name in names if name != "all" and saved.get(name) != mine.get(name)]
    if differ:
        raise FingerprintError(
            f"saved for another environment; these parts differ: {', '.join(differ)}. "
            "Load it with the body, clips and settings that it was saved with"
        )
