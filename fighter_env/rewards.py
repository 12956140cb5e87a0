"""The reward, term by term; `RewardWeights` holds one weight per name, and each term is logged.

Terms are float32 of shape (N,), zero in worlds whose task they do not belong to.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from fighter_env import layout
from fighter_env.config import FighterConfig, RewardWeights
from fighter_env.opponent import Opponent
from fighter_env.scene import Scene
from fighter_env.scoring import Scoring
from fighter_env.tasks import ARM_COLUMNS, BAG, BLOCK, OPPONENT, PUSH, WALK, StepEvents, Tasks

__all__ = ["TERMS", "reward_terms", "weigh"]

TERMS: tuple[str, ...] = tuple(item.name for item in fields(RewardWeights))


def reward_terms(
    scene: Scene,
    tasks: Tasks,
    opponent: Opponent,
    scoring: Scoring,
    events: StepEvents,
    fell: Tensor,
    action: Tensor,
    before: Tensor,
    guard: Tensor,
    config: FighterConfig,
) -> dict[str, Tensor]:
    """All terms before their weights.

    Args:
        scene: State after the step.
        tasks, opponent, scoring: Their state after the step.
        events: What happened in the step.
        fell: Worlds in which the fighter fell, bool, shape (N,).
        action, before: This action and the last one, shape (N, A).
        guard: Hinge angles of the guard (rad), shape (25,).
        config: Settings.
    """
    kind = tasks.kind

    def on(*wanted: int) -> Tensor:
        mask = kind == wanted[0]
        for other in wanted[1:]:
            mask = mask | (kind == other)
        return mask.to(torch.float32)

    hinges = scene.qpos[:, layout.HINGE_QPOS]
    arms = hinges[:, ARM_COLUMNS]
    calm = on(OPPONENT, PUSH) + on(BLOCK) * (~tasks.cue).to(torch.float32)
    asked = on(BLOCK) * tasks.cue.to(torch.float32)
    gap = (tasks.cue_places(scene) - scene.gloves).square().sum(-1).sqrt()
    fitted = (arms - tasks.arms.flatten(1)).square().mean(1)
    faced = torch.where((kind == OPPONENT)[:, None], opponent.base[:, :2], scene.bag[:, :2])
    faced = torch.where((kind == WALK)[:, None], tasks.spot, faced)
    towards = scene.local(faced - scene.pelvis[:, :2])
    facing = towards[:, 0] / towards.square().sum(1).sqrt().clamp_min(0.1)
    to_bag = (scene.bag[:, None, :2] - scene.gloves[..., :2]).square().sum(-1).sqrt().amin(1)
    scored = scoring.scored.to(torch.float32)
    taken = scored * (scoring.share >= config.scoring.through_share).to(torch.float32)
    strength = scoring.speed * config.scoring.opponent_mass / 10.0
    return {
        "alive": torch.ones_like(gap[:, 0]),
        "upright": scene.up[:, 2],
        "guard": calm * torch.exp(-2.0 * (arms - guard[ARM_COLUMNS]).square().mean(1)),
        "face": on(OPPONENT, WALK, BAG) * facing,
        "effort": scene.act.square().mean(1),
        "smooth": (action - before).square().mean(1),
        "punch_taken": taken * scoring.share * (0.5 + strength),
        "punch_blocked": (scored - taken) * (1.0 - scoring.share),
        "block_pose": asked * (0.5 * torch.exp(-8.0 * gap.mean(1)) + 0.5 * torch.exp(-fitted)),
        "cue_met": events.cue_met.to(torch.float32),
        "walk": events.walked / config.control_step,
        "target_reached": events.reached.to(torch.float32),
        "bag_reach": on(BAG) * torch.exp(-3.0 * (to_bag - 0.24).clamp_min(0.0)),
        "bag_hit": events.bag_strength,
        "still": on(PUSH, OPPONENT, BLOCK) * torch.exp(-4.0 * scene.linvel[:, :2].square().sum(1)),
        "fall": fell.to(torch.float32),
    }


def weigh(terms: dict[str, Tensor], weights: RewardWeights) -> Tensor:
    """The weighted terms, shape (N, len(TERMS)), in the order of `TERMS`."""
    return torch.stack([getattr(weights, name) * terms[name] for name in TERMS], 1)
