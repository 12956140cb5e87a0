"""Observations: the entries of `layout`, put together for each group."""

from __future__ import annotations

import torch
from torch import Tensor

from fighter_env import anatomy, layout
from fighter_env.config import FighterConfig
from fighter_env.opponent import Opponent
from fighter_env.scene import Scene
from fighter_env.sight import Sight
from fighter_env.tasks import BAG, WALK, Tasks

__all__ = ["observe"]

_WEIGHT = 9.81 * anatomy.MASS_KG
LIMIT = 100.0


def observe(
    scene: Scene,
    tasks: Tasks,
    opponent: Opponent,
    sight: Sight,
    last_action: Tensor,
    scales: Tensor,
    time_left: Tensor,
    guard: Tensor,
    config: FighterConfig,
) -> dict[str, Tensor]:
    """The three observation groups.

    Args:
        scene: Present state.
        tasks, opponent, sight: Their present state.
        last_action: Last action, shape (N, A).
        scales: Mass, friction and strength multipliers, shape (N, 3).
        time_left: Share of the episode that is left, shape (N,).
        guard: Hinge angles of the guard (rad), shape (25,).
        config: Settings.

    Returns:
        "policy", "critic" and "teacher": float32, shape (N, size), finite and within +-100.
    """
    entries = _local_entries(scene, tasks, opponent, sight)
    entries |= _other_entries(scene, tasks, opponent, sight, guard)
    entries |= {"last_action": last_action, "scales": scales, "time_left": time_left[:, None]}
    made = {}
    for group in layout.GROUPS:
        names = [entry.name for entry in layout.observation_entries(group, config.action)]
        joined = torch.cat([entries[name] for name in names], 1)
        made[group] = torch.nan_to_num(joined, 0.0, LIMIT, -LIMIT).clamp(-LIMIT, LIMIT)
    return made


def _local_entries(
    scene: Scene, tasks: Tasks, opponent: Opponent, sight: Sight
) -> dict[str, Tensor]:
    """Everything that is a vector in the heading frame, turned there in one go."""
    head, pelvis = scene.head[:, None], scene.pelvis[:, None]
    present = opponent.present.to(torch.float32)[:, None, None]
    ever = (sight.age < sight.config.longest_age).to(torch.float32)[..., None]
    bag = (tasks.kind == BAG).to(torch.float32)[:, None]
    cue = tasks.cue.to(torch.float32)[:, None, None]
    flat = {
        "spot": tasks.spot - scene.pelvis[:, :2],
        "base": opponent.base[:, :2] - scene.pelvis[:, :2],
        "capture": scene.capture,
    }
    zero = torch.zeros_like(scene.pelvis[:, :1])
    vectors = {
        "root_linvel": scene.linvel[:, None],
        "bag": (bag * (scene.bag - scene.head))[:, None],
        "push": 0.01 * tasks.force[:, None],
        "gloves": scene.gloves - head,
        "soles": scene.soles - pelvis,
        "cue_gloves": cue * (tasks.cue_places(scene) - scene.gloves),
        "sight_place": ever * (sight.known - head),
        "true_place": present * (sight.place - head),
    } | {name: torch.cat((value, zero), 1)[:, None] for name, value in flat.items()}
    turned = scene.local(torch.cat(list(vectors.values()), 1))
    pieces = turned.split([value.shape[1] for value in vectors.values()], 1)
    made = {name: piece.flatten(1) for name, piece in zip(vectors, pieces, strict=True)}
    walking = (tasks.kind == WALK).to(torch.float32)[:, None]
    made["capture"] = made["capture"][:, :2]
    made["opponent_base"] = present[:, 0] * made.pop("base")[:, :2]
    made["walk_command"] = tasks.walk_command(made["spot"])
    made["spot"] = walking * torch.cat((made["spot"][:, :2], torch.ones_like(zero)), 1)
    return made


def _other_entries(
    scene: Scene, tasks: Tasks, opponent: Opponent, sight: Sight, guard: Tensor
) -> dict[str, Tensor]:
    hinge_pos = scene.qpos[:, layout.HINGE_QPOS] - guard
    hinge_vel = 0.1 * scene.qvel[:, layout.HINGE_QVEL]
    legs = layout.LEG_COLUMNS
    kinds = torch.arange(layout.TASK_COUNT, device=tasks.kind.device)
    busy = opponent.clip > 0
    right = (busy & (opponent.hand == 1)).to(torch.float32)
    return {
        "up": scene.up,
        "root_angvel": scene.angvel,
        "hinge_pos": hinge_pos,
        "hinge_vel": hinge_vel,
        "activation": scene.act,
        "foot_force": (scene.foot_force / _WEIGHT).clamp_max(3.0),
        "head_height": scene.head[:, 2:],
        "task": (tasks.kind[:, None] == kinds).to(torch.float32),
        "cue": tasks.cue.to(torch.float32)[:, None],
        "sight_share": sight.known_share,
        "sight_age": sight.age,
        "punch": torch.stack((busy.to(torch.float32), opponent.time, right), 1),
        "gait_phase": torch.stack((torch.cos(tasks.phase), torch.sin(tasks.phase)), 1),
        "leg_pos": hinge_pos[:, legs],
        "leg_vel": hinge_vel[:, legs],
    }
