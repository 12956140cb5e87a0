"""What ``python -m fighter_env render`` shows: punches in a picture, or seconds of a fight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fighter_env.baselines import make_baseline
from fighter_env.config import FighterConfig, only
from fighter_env.env import FighterEnv
from fighter_env.errors import ConfigError
from fighter_env.render import Camera, check_films, write_film, write_picture

__all__ = ["render"]

SHOWN = ("jab", "left_hook", "uppercut")
STRIDE = 2  # control steps per picture of a film


def _scene(
    clips: tuple[str, ...], rest: tuple[float, float], folder: str, seed: int, task: str
) -> FighterEnv:
    config = FighterConfig()
    opponent = replace(
        config.opponent,
        clips=clips,
        weights=(1.0,) * len(clips),
        rest=rest,
        speed=(0.8, 1.0),
        aim=0.0,
    )
    config = replace(
        config,
        clip_folder=folder,
        opponent=opponent,
        tasks=replace(config.tasks, ratios=only(task)),
        episode=replace(config.episode, seconds=60.0),
    )
    return FighterEnv(1, "cpu", "mujoco", config, seed=seed)


def _at_impact(name: str, folder: str, width: int, height: int) -> np.ndarray:
    """The moment at which one punch arrives."""
    env = _scene((name,), (0.3, 0.3), folder, 0, "opponent")
    act = make_baseline("guard", env)
    observations, _ = env.reset(seed=0)
    camera = Camera(env, width, height, distance=2.9, azimuth=75.0)
    try:
        for _ in range(400):
            observations, *_ = env.step(act(observations))
            late = env.opponent.time[0] > 0.85 * env.opponent.bank.impact[1]
            if bool(env.scoring.scored[0]) or bool(late):
                break
        return camera.picture(0)
    finally:
        camera.close()
        env.close()


def render(
    out: Path,
    clips: tuple[str, ...] = (),
    folder: str = "",
    seconds: float = 5.0,
    task: str = "opponent",
    seed: int = 0,
    width: int = 960,
    height: int = 540,
) -> Path:
    """Writes a picture (.png: one frame per clip, at its impact) or a film (.mp4).

    Raises:
        ConfigError: `out` ends in something else, or what it needs is not installed.
    """
    if out.suffix not in (".png", ".mp4"):
        raise ConfigError(f"out is {out}; it must end in .png or .mp4")
    if out.suffix == ".mp4":
        check_films()
    if out.suffix == ".png":
        shown = clips or SHOWN
        frames = [_at_impact(name, folder, width // 2, height) for name in shown]
        write_picture(np.concatenate(frames, 1), out)
        return out
    env = _scene(clips or FighterConfig().opponent.clips, (0.2, 0.6), folder, seed, task)
    act = make_baseline("guard", env)
    observations, _ = env.reset(seed=seed)
    camera = Camera(env, width, height)
    frames = []
    for step in range(round(seconds / env.config.control_step)):
        observations, *_ = env.step(act(observations))
        if step % STRIDE == 0:
            frames.append(camera.picture(0))
    camera.close()
    env.close()
    write_film(frames, out, 1.0 / (STRIDE * env.config.control_step))
    return out
