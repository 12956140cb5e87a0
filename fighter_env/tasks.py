"""The five tasks: what is asked of each world, when, and whether it was done.

`opponent`: stand and face an opponent who punches. `block`: at a cue, bring both gloves to a named
guard. `walk`: walk to a spot, then to the next. `bag`: hit a hanging bag. `push`: stay up through
pushes. A world draws one task per episode; every decision is a mask on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fighter_env import body, layout, rotations
from fighter_env.arm_ik import ArmSolver
from fighter_env.config import TASKS, FighterConfig
from fighter_env.draws import Draws, Purpose, between
from fighter_env.opponent import PARKED
from fighter_env.scene import Scene

__all__ = ["GUARDS", "StepEvents", "Tasks"]

# Places of the left and right glove from the head centre (m): forward, left, up.
GUARDS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "high": ((0.24, 0.08, -0.03), (0.24, -0.08, -0.03)),
    "left": ((0.21, 0.16, -0.02), (0.27, 0.00, -0.06)),
    "right": ((0.27, 0.00, -0.06), (0.21, -0.16, -0.02)),
    "low": ((0.26, 0.09, -0.32), (0.26, -0.09, -0.32)),
    "long": ((0.42, 0.08, -0.06), (0.42, -0.08, -0.06)),
}
OPPONENT, BLOCK, WALK, BAG, PUSH = range(len(TASKS))
CADENCE = 1.6  # steps per second of the teacher's gait; two of them make one turn of its clock


@dataclass
class StepEvents:
    """What happened in one control step, each bool or float of shape (N,)."""

    pressed: Tensor
    cue_met: Tensor
    reached: Tensor
    bag_hits: Tensor
    bag_strength: Tensor
    walked: Tensor


class Tasks:
    """State of the tasks of `num_envs` worlds.

    Attributes:
        kind: Task per world, int64, shape (N,).
        cue: A guard is asked for, bool, shape (N,).
        guard: Places asked for, from the head centre in the heading frame (m), shape (N, 2, 3).
        spot: Spot to walk to (m), shape (N, 2).
        force: Push that acts now (N), shape (N, 3).
        phase: Clock of the gait (rad), shape (N,).
        arms: Arm angles that the last cue was fitted to (rad), shape (N, 2, 4): see `solver`.
    """

    STATE = (
        *("kind", "cue", "met", "guard", "timer", "presses", "spot", "spots", "distance"),
        *("force", "push_left", "pushes", "phase", "pause", "arms"),
    )

    def __init__(
        self, num_envs: int, device: torch.device, config: FighterConfig, draws: Draws
    ) -> None:
        self.config, self._draws = config, draws
        self._step = config.control_step
        # A push acts for whole control steps, with the force that makes its impulse exact.
        wanted = config.tasks.push_seconds / self._step
        self._push_seconds = max(1, math.ceil(wanted - 1e-6)) * self._step

        def floats(*shape: int) -> Tensor:
            return torch.zeros(num_envs, *shape, device=device)

        def whole() -> Tensor:
            return torch.zeros(num_envs, dtype=torch.int32, device=device)

        def flags() -> Tensor:
            return torch.zeros(num_envs, dtype=torch.bool, device=device)

        self.kind = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.cue, self.met = flags(), flags()
        self.guard, self.timer, self.presses = floats(2, 3), floats(), whole()
        self.spot, self.spots, self.distance = floats(2), whole(), floats()
        self.force, self.push_left, self.pushes = floats(3), floats(), whole()
        self.phase, self.pause = floats(), floats(2)
        self.solver = ArmSolver(num_envs, device)
        self.arms = self.solver.angles
        self._guards = torch.tensor(list(GUARDS.values()), device=device)
        ratios = torch.tensor(config.tasks.ratios, device=device)
        self._edges = torch.cumsum(ratios, 0)[:-1].contiguous()
        numbers = torch.arange(num_envs, device=device) + config.first_world
        wanted = [index for index, ratio in enumerate(config.tasks.ratios) if ratio > 0]
        self._in_turn = torch.tensor(wanted, device=device)[numbers % len(wanted)]

    def restart(self, mask: Tensor, episode: Tensor) -> Tensor:
        """Draws a task and its start for the worlds of `mask`.

        Args:
            mask: Worlds to restart, bool, shape (N,).
            episode: Number of the episode, int32, shape (N,).

        Returns:
            Places of the bag's anchor and of the spot's mark, shape (N, 2, 3).
        """
        tasks = self.config.tasks
        zero = torch.zeros_like(episode)
        draw = self._draws.uniform(Purpose.TASK, episode, zero, 4)
        kind = torch.bucketize(draw[:, 0].contiguous(), self._edges, right=True)
        if self.config.evaluation:
            kind = self._in_turn
        self.kind.copy_(torch.where(mask, kind, self.kind))
        for state in (self.cue, self.met, self.presses, self.spots, self.pushes, self.push_left):
            state.masked_fill_(mask, 0)
        first = torch.where(
            kind == PUSH, between(draw[:, 1], (0.3, 1.0)), between(draw[:, 1], tasks.cue_rest)
        )
        self.timer.copy_(torch.where(mask, first, self.timer))
        self.phase.copy_(torch.where(mask, 2.0 * torch.pi * draw[:, 2], self.phase))
        self.force.masked_fill_(mask[:, None], 0.0)
        self.pause.masked_fill_(mask[:, None], 0.0)
        self._draw_spot(mask, episode, torch.zeros_like(self.spot))
        fixed = torch.zeros(len(mask), 2, 3, device=mask.device)
        fixed[:, 0, 0] = torch.where(
            kind == BAG, between(draw[:, 3], tasks.bag_distance), PARKED + 4.0
        )
        fixed[:, 0, 2] = body.BAG_HEIGHT
        fixed[:, 1, :2] = torch.where((kind == WALK)[:, None], self.spot, PARKED + 8.0)
        return fixed

    def prepare(self, episode: Tensor) -> None:
        """Starts and ends pushes; fills `force` for the coming control step."""
        tasks = self.config.tasks
        draw = self._draws.uniform(Purpose.PUSH, episode, self.pushes, 3)
        over = self.push_left < 0.5 * self._step
        start = (self.kind == PUSH) & (self.timer <= 0.0) & over
        angle = 2.0 * torch.pi * draw[:, 0]
        size = between(draw[:, 1], tasks.push_impulse) / self._push_seconds
        force = torch.stack((torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)), 1)
        self.force.copy_(torch.where(start[:, None], force * size[:, None], self.force))
        self.push_left.copy_(torch.where(start, self._push_seconds, self.push_left))
        rest = self._push_seconds + between(draw[:, 2], tasks.push_rest)
        self.timer.copy_(torch.where(start, rest, self.timer))
        self.pushes.add_(start.to(torch.int32))
        self.force.mul_((self.push_left > 0.5 * self._step).to(torch.float32)[:, None])
        self.push_left.sub_(self._step).clamp_min_(0.0)

    def advance(self, scene: Scene, episode: Tensor, bag_speed: Tensor, mark: Tensor) -> StepEvents:
        """Judges the step that was made and moves clocks, cues and spots on.

        Args:
            scene: State after the step.
            episode: Number of the episode, int32, shape (N,).
            bag_speed: Closing speed of each glove on the bag (m/s), shape (N, 2).
            mark: Place of the spot's mark, shape (N, 3); moved where a spot was reached.
        """
        self.timer.sub_(self._step)
        pressed = self._press(scene, episode)
        gap = (self.cue_places(scene) - scene.gloves).square().sum(-1).sqrt().amax(1)
        met = self.cue & ~self.met & (gap < self.config.tasks.block_tolerance)
        self.met.logical_or_(met)
        walked, reached = self._walk(scene, episode, mark)
        hits, strength = self._hit_bag(bag_speed)
        return StepEvents(pressed, met, reached, hits, strength, walked)

    def cue_places(self, scene: Scene) -> Tensor:
        """Where the gloves should be (m), shape (N, 2, 3)."""
        return scene.head[:, None] + scene.world(self.guard)

    def walk_command(self, to_spot: Tensor) -> Tensor:
        """What the walking task asks for; zero in other tasks.

        Args:
            to_spot: From the pelvis to the spot in the heading frame (m), shape (N, 2 or more).

        Returns:
            Speed forward and left (m/s) and turn (rad), shape (N, 3).
        """
        away = to_spot[:, :2]
        length = away.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        speed = length.clamp_max(self.config.tasks.walk_speed)
        turn = rotations.bearing(away)[:, None]
        command = torch.cat((away / length * speed, turn), 1)
        return command * (self.kind == WALK).to(torch.float32)[:, None]

    def _press(self, scene: Scene, episode: Tensor) -> Tensor:
        tasks = self.config.tasks
        draw = self._draws.uniform(Purpose.CUE, episode, self.presses, 3)
        due = (self.kind == BLOCK) & (self.timer <= 0.0)
        press, release = due & ~self.cue, due & self.cue
        which = (draw[:, 0] * len(GUARDS)).long().clamp_max(len(GUARDS) - 1)
        self.guard.copy_(torch.where(press[:, None, None], self._guards[which], self.guard))
        self.timer.copy_(torch.where(press, between(draw[:, 1], tasks.cue_hold), self.timer))
        self.timer.copy_(torch.where(release, between(draw[:, 2], tasks.cue_rest), self.timer))
        self.cue.logical_xor_(due)
        self.met.logical_and_(~press)
        self.presses.add_(press.to(torch.int32))
        self.solver.fit(press, scene.torso, scene.torso_quat, self.cue_places(scene))
        return press

    def _walk(self, scene: Scene, episode: Tensor, mark: Tensor) -> tuple[Tensor, Tensor]:
        walking = self.kind == WALK
        away = self.spot - scene.pelvis[:, :2]
        distance = away.square().sum(1).sqrt()
        walked = torch.where(walking, self.distance - distance, 0.0)
        reached = walking & (distance < self.config.tasks.spot_radius)
        self.distance.copy_(distance)
        self.spots.add_(reached.to(torch.int32))
        self._draw_spot(reached, episode, scene.pelvis[:, :2])
        mark[:, :2] = torch.where(reached[:, None], self.spot, mark[:, :2])
        self.phase.add_(self._step * CADENCE * torch.pi * walking.to(torch.float32))
        self.phase.copy_(rotations.wrap(self.phase))
        return walked, reached

    def _draw_spot(self, mask: Tensor, episode: Tensor, origin: Tensor) -> None:
        draw = self._draws.uniform(Purpose.SPOT, episode, self.spots, 2)
        angle = 2.0 * torch.pi * (draw[:, 0] - 0.5)
        reach = between(draw[:, 1], self.config.tasks.spot_distance)
        spot = origin + reach[:, None] * torch.stack((torch.cos(angle), torch.sin(angle)), 1)
        self.spot.copy_(torch.where(mask[:, None], spot, self.spot))
        self.distance.copy_(torch.where(mask, reach, self.distance))

    def _hit_bag(self, bag_speed: Tensor) -> tuple[Tensor, Tensor]:
        scoring = self.config.scoring
        self.pause.sub_(self._step).clamp_min_(0.0)
        hit = (self.kind == BAG)[:, None] & (bag_speed > scoring.least_speed) & (self.pause <= 0.0)
        self.pause.copy_(torch.where(hit, scoring.pause, self.pause))
        strength = torch.where(hit, bag_speed * scoring.own_mass, 0.0).sum(1)
        return hit.to(torch.float32).sum(1), strength


ARM_COLUMNS: list[int] = [
    layout.HINGE[f"{side}_{joint}"]
    for side in ("left", "right")
    for joint in ("shoulder_flex", "shoulder_abduct", "shoulder_inward", "elbow")
]
