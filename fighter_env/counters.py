"""What is counted: per running episode, and in total since the last seed; all on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from fighter_env.config import FighterConfig
from fighter_env.scoring import Scoring
from fighter_env.tasks import OPPONENT, StepEvents, Tasks

__all__ = ["COUNTERS", "TOTALS", "Counters"]

COUNTERS = (
    "return",
    "length",
    "punches_taken",
    "punches_blocked",
    "punch_strength",
    "bag_hits",
    "targets_reached",
    "cues",
    "cues_met",
    "falls",
    "opponents_passed",
)
TOTALS = (*COUNTERS[2:], "episodes", "broken_worlds", "overflow_steps", "solver_limit_steps")
_PASSED = COUNTERS.index("opponents_passed")
_TAKEN = COUNTERS.index("punches_taken")
_STRENGTH = TOTALS.index("punch_strength")


class Counters:
    """Counters of N worlds.

    Attributes:
        counts: Per running episode, in the order of `COUNTERS`, float32, shape (N, len(COUNTERS)).
        totals: Since the last seed, in the order of `TOTALS`, int64, shape (len(TOTALS),).
        fraction: What the total of the punch strength lacks, in [0, 1), float32, shape (1,).
    """

    STATE = ("counts", "totals", "fraction")

    def __init__(self, num_envs: int, device: torch.device, config: FighterConfig) -> None:
        self._config = config
        self.counts = torch.zeros(num_envs, len(COUNTERS), device=device)
        self.totals = torch.zeros(len(TOTALS), dtype=torch.int64, device=device)
        self.fraction = torch.zeros(1, device=device)

    def clear(self) -> None:
        """Sets the totals to zero."""
        self.totals.zero_()
        self.fraction.zero_()

    def add(
        self,
        tasks: Tasks,
        scoring: Scoring,
        events: StepEvents,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        broken: Tensor,
    ) -> None:
        """Adds one control step; a broken world adds nothing but that it broke.

        Args:
            tasks, scoring: Their state after the step.
            events: What happened in it.
            reward: Sum of all terms, shape (N,).
            terminated, truncated, broken: Worlds that ended so, bool, shape (N,).
        """
        config = self._config
        through = scoring.scored & (scoring.share >= config.scoring.through_share)
        strength = torch.where(through, scoring.speed * config.scoring.opponent_mass, 0.0)
        flags = (through, scoring.scored & ~through)
        later = (events.reached, events.pressed, events.cue_met, terminated)
        step = torch.stack(
            (
                reward,
                torch.ones_like(reward),
                *(flag.to(torch.float32) for flag in flags),
                strength,
                events.bag_hits,
                *(flag.to(torch.float32) for flag in later),
            ),
            1,
        )
        step = torch.where(broken[:, None], 0.0, step)
        self.counts[:, :_PASSED].add_(step)
        few = self.counts[:, _TAKEN] <= config.tasks.punches_through
        passed = (truncated & (tasks.kind == OPPONENT) & few).to(torch.float32)
        self.counts[:, _PASSED].copy_(passed)
        ended = (terminated | truncated).sum()
        summed = torch.cat(
            (step[:, 2:].sum(0), passed.sum()[None], ended[None], broken.sum()[None])
        )
        strength = summed[_STRENGTH : _STRENGTH + 1]
        strength.add_(self.fraction)
        self.fraction.copy_(strength - torch.floor(strength))
        self.totals[: len(summed)].add_(torch.floor(summed).to(torch.int64))

    def add_limits(self, overflow: Tensor, solver_limit: Tensor) -> None:
        """Counts the worlds that ran out of room, and those that hit the solver's limit.

        Args:
            overflow: Capacity bits of the step, int32, shape (N,).
            solver_limit: 1 where the solver stopped early, int32, shape (N,).
        """
        self.totals[-2].add_((overflow != 0).sum())
        self.totals[-1].add_(solver_limit.sum())

    def episode(self) -> dict[str, Tensor]:
        """Copies of the counters of the running episodes, each of shape (N,)."""
        return dict(zip(COUNTERS, self.counts.clone().unbind(1), strict=True))
