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
    own = _own_entries(scene, last_action, guard)
    entries = own | _task_entries(scene, tasks) | _sight_entries(scene, sight)
    entries |= _critic_entries(scene, tasks, opponent, sight, scales, time_left)
    entries |= _teacher_entries(scene, tasks, own)
    made = {}
    for group in layout.GROUPS:
        names = [entry.name for entry in layout.observation_entries(group, config.action)]
        joined = torch.cat([entries[name] for name in names], 1)
        made[group] = torch.nan_to_num(joined, 0.0, LIMIT, -LIMIT).clamp(-LIMIT, LIMIT)
    return made


def _own_entries(scene: Scene, last_action: Tensor, guard: Tensor) -> dict[str, Tensor]:
    return {
        "up": scene.up,
        "root_linvel": scene.local(scene.linvel),
        "root_angvel": scene.angvel,
        "hinge_pos": scene.qpos[:, layout.HINGE_QPOS] - guard,
        "hinge_vel": 0.1 * scene.qvel[:, layout.HINGE_QVEL],
        "activation": scene.act,
        "last_action": last_action,
        "foot_force": (scene.foot_force / _WEIGHT).clamp_max(3.0),
        "gloves": scene.local(scene.gloves - scene.head[:, None]).flatten(1),
        "soles": scene.local(scene.soles - scene.pelvis[:, None]).flatten(1),
        "capture": scene.local(scene.capture),
        "head_height": scene.head[:, 2:],
    }


def _task_entries(scene: Scene, tasks: Tasks) -> dict[str, Tensor]:
    walking = (tasks.kind == WALK).to(torch.float32)[:, None]
    bag = (tasks.kind == BAG).to(torch.float32)[:, None]
    cue = tasks.cue.to(torch.float32)[:, None]
    to_places = scene.local(tasks.cue_places(scene) - scene.gloves).flatten(1)
    kinds = torch.arange(layout.TASK_COUNT, device=tasks.kind.device)
    to_spot = scene.local(tasks.spot - scene.pelvis[:, :2])
    return {
        "task": (tasks.kind[:, None] == kinds).to(torch.float32),
        "spot": torch.cat((walking * to_spot, walking), 1),
        "bag": bag * scene.local(scene.bag - scene.head),
        "cue": cue,
        "cue_gloves": cue * to_places,
    }


def _sight_entries(scene: Scene, sight: Sight) -> dict[str, Tensor]:
    ever = (sight.age < sight.config.longest_age).to(torch.float32)[..., None]
    place = ever * scene.local(sight.known - scene.head[:, None])
    return {
        "sight_place": place.flatten(1),
        "sight_share": sight.known_share,
        "sight_age": sight.age,
    }


def _critic_entries(
    scene: Scene, tasks: Tasks, opponent: Opponent, sight: Sight, scales: Tensor, time_left: Tensor
) -> dict[str, Tensor]:
    present = opponent.present.to(torch.float32)[:, None]
    true = present[..., None] * scene.local(sight.place - scene.head[:, None])
    busy = opponent.clip > 0
    punch = torch.stack(
        (busy.to(torch.float32), opponent.time, (busy & (opponent.hand == 1)).to(torch.float32)), 1
    )
    return {
        "true_place": true.flatten(1),
        "punch": punch,
        "opponent_base": present * scene.local(opponent.base[:, :2] - scene.pelvis[:, :2]),
        "push": 0.01 * scene.local(tasks.force),
        "scales": scales,
        "time_left": time_left[:, None],
    }


def _teacher_entries(scene: Scene, tasks: Tasks, own: dict[str, Tensor]) -> dict[str, Tensor]:
    legs = layout.LEG_COLUMNS
    return {
        "gait_phase": torch.stack((torch.cos(tasks.phase), torch.sin(tasks.phase)), 1),
        "walk_command": tasks.walk_command(scene),
        "leg_pos": own["hinge_pos"][:, legs],
        "leg_vel": own["hinge_vel"][:, legs],
    }
