"""``python -m fighter_env info | render | bench-speed | evaluate``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
import tyro
import warp as wp
from rich.console import Console
from rich.table import Table

from fighter_env import layout
from fighter_env.config import TASKS, FighterConfig, only
from fighter_env.counters import COUNTERS
from fighter_env.env import FighterEnv
from fighter_env.errors import FighterError

Kind = Literal["warp", "mujoco"]


def info(num_envs: int = 64, device: str = "cpu", physics: Kind = "warp") -> None:
    """Prints launches, torch ops and host reads per step by part, the layout and the fingerprint.

    Args:
        num_envs: Worlds.
        device: Torch device.
        physics: warp or mujoco.
    """
    from fighter_env.measure import count_step

    console = Console()
    env = FighterEnv(num_envs, device, physics)
    table = Table(title=f"one step of {num_envs} worlds, physics={physics}, device={device}")
    for name in ("part", "Warp launches", "torch ops", "host reads"):
        table.add_column(name, justify="left" if name == "part" else "right")
    total = [0, 0, 0]
    for part, row in count_step(env).items():
        values = [row["launches"], row["torch_ops"], row["host_reads"]]
        total = [a + b for a, b in zip(total, values, strict=True)]
        table.add_row(part, *map(str, values))
    table.add_section()
    table.add_row("all", *map(str, total))
    console.print(table)
    for group in layout.GROUPS:
        _print_group(console, group, env.config.action)
    config = env.config.physics
    console.print(
        f"action: {env.config.action}, {layout.ACTION_SIZE[env.config.action]} values; "
        f"{config.substeps} substeps of {config.timestep * 1000:g} ms; implicitfast, Newton, "
        f"nconmax {config.nconmax}, njmax {config.njmax} per world"
    )
    console.print(f"fingerprint: {env.fingerprint['all']} ({len(env.fingerprint) - 1} parts)")
    env.close()


def _print_group(console: Console, group: str, action: str) -> None:
    table = Table(title=f"{group}: {layout.observation_size(group, action)} values")
    for name in ("entry", "from", "to", "unit"):
        table.add_column(name)
    slices = layout.observation_slices(group, action)
    for entry in layout.observation_entries(group, action):
        at = slices[entry.name]
        table.add_row(entry.name, str(at.start), str(at.stop), entry.unit)
    console.print(table)


def render(
    out: Path,
    clips: tuple[str, ...] = (),
    clip_folder: str = "",
    seconds: float = 5.0,
    task: str = "opponent",
    seed: int = 0,
) -> None:
    """Writes a picture of punches at their impact (.png), or a film (.mp4).

    Args:
        out: File to write, ending in .png or .mp4.
        clips: Punches to show; imported ones need `clip-folder`.
        clip_folder: Folder of imported clips.
        seconds: Length of a film.
        task: Task of a film.
        seed: Seed of a film.
    """
    from fighter_env import film

    Console().print(str(film.render(out, clips, clip_folder, seconds, task, seed)))


def bench_speed(
    worlds: tuple[int, ...] = (16, 64, 256),
    physics: tuple[Kind, ...] = ("mujoco", "warp"),
    device: str = "cpu",
    steps: int = 30,
) -> None:
    """Prints environment steps per second beside a bare `mujoco.rollout` of the same model.

    Args:
        worlds: Numbers of worlds.
        physics: warp, mujoco.
        device: Torch device for warp.
        steps: Steps that are timed.
    """
    from fighter_env.measure import rollout_speed, speed

    threads = len(os.sched_getaffinity(0))
    table = Table(title=f"environment steps per second ({threads} cores, {device})")
    for name in ("worlds", *physics, "bare mujoco.rollout"):
        table.add_column(name, justify="right")
    for num in worlds:
        row = [str(num)]
        for kind in physics:
            env = FighterEnv(num, device if kind == "warp" else "cpu", kind)
            row.append(f"{speed(env, steps):,.0f}")
            env.close()
        row.append(f"{rollout_speed(num, 5, steps, threads):,.0f}")
        table.add_row(*row)
    Console().print(table)


def evaluate(
    policy: str = "guard",
    task: Literal["all", "opponent", "block", "walk", "bag", "push"] = "all",
    num_envs: int = 20,
    physics: Kind = "mujoco",
    seed: int = 0,
) -> None:
    """Runs one episode per world in evaluation mode and prints the counters by task.

    Args:
        policy: Baseline: posture, guard or random.
        task: One task, or all in turn.
        num_envs: Worlds.
        physics: warp or mujoco.
        seed: Seed.
    """
    from fighter_env.baselines import make_baseline

    config = replace(FighterConfig(), evaluation=True)
    if task != "all":
        config = replace(config, tasks=replace(config.tasks, ratios=only(task)))
    env = FighterEnv(num_envs, "cpu", physics, config, seed=seed)
    act = make_baseline(policy, env, seed)
    observations, _ = env.reset(seed=seed)
    first = torch.zeros(num_envs, len(COUNTERS))
    open_worlds = torch.ones(num_envs, dtype=torch.bool)
    kinds = env.tasks.kind.clone()
    while bool(open_worlds.any()):
        observations, _, _, _, infos = env.step(act(observations))
        ended = infos["_episode"] & open_worlds
        counts = torch.stack([infos["episode"][name] for name in COUNTERS], 1)
        first = torch.where(ended[:, None], counts, first)
        open_worlds &= ~ended
    table = Table(title=f"{policy}: means per episode, {num_envs} episodes")
    shown = [(index, name) for index, name in enumerate(TASKS) if bool((kinds == index).any())]
    table.add_column("counter")
    for _, name in shown:
        table.add_column(name, justify="right")
    for column, counter in enumerate(COUNTERS):
        means = [first[kinds == index, column].mean() for index, _ in shown]
        table.add_row(counter.replace("_", " "), *(f"{float(mean):.2f}" for mean in means))
    Console().print(table)
    env.close()


COMMANDS = {"info": info, "render": render, "bench-speed": bench_speed, "evaluate": evaluate}


def main() -> None:
    """Entry of ``python -m fighter_env``."""
    wp.config.log_level = wp.LOG_WARNING
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m fighter_env")
    except FighterError as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", markup=False)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
