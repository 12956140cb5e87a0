"""Settings of the environment: frozen dataclasses whose defaults are what the README describes.

`check` is called once by the environment; it raises `ConfigError` with the name of the field and
what would be right. Nothing here knows about devices or tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from fighter_env.errors import ConfigError
from fighter_env.physics import PhysicsConfig
from fighter_env.posture import PostureConfig

__all__ = [
    "DIFFICULTY",
    "TASKS",
    "EpisodeConfig",
    "FighterConfig",
    "OpponentConfig",
    "RandomConfig",
    "RewardWeights",
    "ScoringConfig",
    "SightConfig",
    "TaskConfig",
]

TASKS = ("opponent", "block", "walk", "bag", "push")


@dataclass(frozen=True)
class OpponentConfig:
    """How hard the opponent is; every pair is a range drawn per world or per punch.

    Attributes:
        distance: Pelvis to pelvis at the start (m).
        rest: Pause between two punches (s).
        speed: Playback rate of punches.
        aim: Largest miss of the aim at our head, per axis (m).
        turn: Largest turn of a punch away from where the opponent faces (rad).
        step_in: Longest step that a punch adds to reach our head (m).
        follow: Speed at which the opponent keeps its distance (m/s).
        clips: Names of the punches.
        weights: How often each is thrown; must match `clips`.
    """

    distance: tuple[float, float] = (0.85, 1.0)
    rest: tuple[float, float] = (0.5, 1.5)
    speed: tuple[float, float] = (0.8, 1.2)
    aim: float = 0.04
    turn: float = 0.5
    step_in: float = 0.35
    follow: float = 0.4
    clips: tuple[str, ...] = ("jab", "cross", "left_hook", "uppercut")
    weights: tuple[float, ...] = (0.4, 0.2, 0.2, 0.2)


DIFFICULTY = {
    "easy": OpponentConfig(rest=(1.5, 3.0), speed=(0.4, 0.6), aim=0.02, follow=0.2),
    "medium": OpponentConfig(),
    "hard": OpponentConfig(rest=(0.2, 0.8), speed=(1.1, 1.6), aim=0.06, follow=0.8),
}


@dataclass(frozen=True)
class SightConfig:
    """What our fighter sees.

    Attributes:
        rays: Rays per keypoint.
        field_of_view: Full opening angle of the view cone (degrees).
        disc: Radius of the disc that the rays aim at, round each keypoint (m).
        range: Farthest distance at which a keypoint is seen (m).
        seen_share: Share of unblocked rays from which on a keypoint counts as seen.
        delay: Seconds until what was seen arrives; a multiple of the control step.
        longest_age: The age of a hidden keypoint stops growing here (s).
    """

    rays: int = 32
    field_of_view: float = 120.0
    disc: float = 0.05
    range: float = 8.0
    seen_share: float = 0.25
    delay: float = 0.1
    longest_age: float = 2.0


@dataclass(frozen=True)
class ScoringConfig:
    """How punches are judged.

    Attributes:
        path_radius: Radius of each of the 19 paths (m).
        glove_disc: Radius of the disc of path starts at the opponent's glove (m).
        head_disc: Radius of the disc of path ends at our head (m).
        touch_margin: Gap below which two surfaces count as touching (m).
        through_share: Share of open paths from which on a punch counts as taken.
        opponent_mass, own_mass: Effective mass behind a glove (kg); strength is glove speed times
            effective mass (kg m/s). 3 kg is a fist with forearm and part of the arm (Walilko 2005).
        least_speed: Slowest glove that scores on the bag (m/s).
        pause: Seconds until the same glove can score on the bag again.
    """

    path_radius: float = 0.02
    glove_disc: float = 0.045
    head_disc: float = 0.07
    touch_margin: float = 0.01
    through_share: float = 0.5
    opponent_mass: float = 3.0
    own_mass: float = 3.0
    least_speed: float = 1.0
    pause: float = 0.25


@dataclass(frozen=True)
class TaskConfig:
    """The tasks and how they are mixed; a world draws one per episode.

    Attributes:
        ratios: Share of each of `TASKS`; must sum to 1.
        punches_through: An opponent is passed with at most this many punches taken.
        cue_hold, cue_rest: How long a guard cue is held, and the pause before the next (s).
        block_tolerance: Both gloves within this distance of their places fulfil a cue (m).
        spot_distance: How far away the next spot is drawn (m).
        spot_radius: A spot is reached within this distance (m).
        bag_distance: Pelvis to the middle of the bag (m).
        push_impulse: Strength of a push (N.s).
        push_seconds: Length of a push (s).
        push_rest: Pause between pushes (s).
        walk_speed: Speed that the walking task asks for (m/s).
    """

    ratios: tuple[float, ...] = (0.4, 0.2, 0.15, 0.15, 0.1)
    punches_through: int = 2
    cue_hold: tuple[float, float] = (0.8, 1.4)
    cue_rest: tuple[float, float] = (0.3, 1.0)
    block_tolerance: float = 0.08
    spot_distance: tuple[float, float] = (0.8, 2.5)
    spot_radius: float = 0.35
    bag_distance: tuple[float, float] = (0.65, 0.85)
    push_impulse: tuple[float, float] = (10.0, 20.0)
    push_seconds: float = 0.1
    push_rest: tuple[float, float] = (1.5, 3.0)
    walk_speed: float = 0.7


@dataclass(frozen=True)
class RewardWeights:
    """Weight of each reward term; each is logged by its name."""

    alive: float = 0.5
    upright: float = 0.3
    guard: float = 0.3
    face: float = 0.2
    effort: float = -0.05
    smooth: float = -0.02
    punch_taken: float = -2.0
    punch_blocked: float = 1.0
    block_pose: float = 1.0
    cue_met: float = 1.0
    walk: float = 1.0
    target_reached: float = 3.0
    bag_reach: float = 0.3
    bag_hit: float = 0.15
    still: float = 0.2
    fall: float = -5.0


@dataclass(frozen=True)
class EpisodeConfig:
    """Length, end and start of an episode.

    Attributes:
        seconds: Length; its end truncates.
        fall_head, fall_pelvis: The episode terminates when head or pelvis is lower than this (m).
        fall_tilt: And when the pelvis' upward axis points less upward than this (cosine).
        hinge_noise: Largest start offset of a hinge (rad).
        speed_noise: Largest start speed of a hinge (rad/s).
        fastest: A world whose fastest hinge turns faster than this is broken (rad/s).
    """

    seconds: float = 10.0
    fall_head: float = 1.0
    fall_pelvis: float = 0.5
    fall_tilt: float = 0.4
    hinge_noise: float = 0.03
    speed_noise: float = 0.05
    fastest: float = 200.0


@dataclass(frozen=True)
class RandomConfig:
    """Domain randomisation: ranges of multipliers drawn per episode; off while all are (1, 1).

    Attributes:
        mass: Of all our segments.
        friction: Of the floor.
        strength: Of all muscles.
        action_delay: Longest delay of an action (control steps), drawn from 0 to this.
    """

    mass: tuple[float, float] = (1.0, 1.0)
    friction: tuple[float, float] = (1.0, 1.0)
    strength: tuple[float, float] = (1.0, 1.0)
    action_delay: int = 0

    @property
    def scales_model(self) -> bool:
        """Whether any range changes the model."""
        return any(pair != (1.0, 1.0) for pair in (self.mass, self.friction, self.strength))


@dataclass(frozen=True)
class FighterConfig:
    """Everything that decides what the environment does.

    Attributes:
        action: "targets" (25 joint-target offsets) or "muscle" (50 excitations).
        first_world: Global number of world 0, so that several processes share one numbering.
        evaluation: The same start for every episode of a task, tasks in turn, no randomisation.
        strict: Raise `CapacityError` on overflow; reads the host once per step.
        clip_folder: Where imported clips are; "" means only those that ship.
    """

    action: str = "targets"
    first_world: int = 0
    evaluation: bool = False
    strict: bool = False
    clip_folder: str = ""
    tasks: TaskConfig = field(default_factory=TaskConfig)
    opponent: OpponentConfig = field(default_factory=OpponentConfig)
    sight: SightConfig = field(default_factory=SightConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    rewards: RewardWeights = field(default_factory=RewardWeights)
    random: RandomConfig = field(default_factory=RandomConfig)
    posture: PostureConfig = field(default_factory=PostureConfig)
    physics: PhysicsConfig = field(default_factory=PhysicsConfig)

    @property
    def control_step(self) -> float:
        """Seconds per call of `step`."""
        return self.physics.timestep * self.physics.substeps

    def check(self) -> None:
        """Raises `ConfigError` for the first setting that cannot be used."""
        _check_values(self)
        _check_ranges(self)
        _check_choices(self)
        _check_bounds(self)
        steps = self.sight.delay / self.control_step
        if abs(steps - round(steps)) > 1e-6:
            raise ConfigError(
                f"sight.delay is {self.sight.delay} s; it must be a multiple of the control step, "
                f"{self.control_step:g} s"
            )


def only(task: str) -> tuple[float, ...]:
    """`TaskConfig.ratios` for one task alone.

    Raises:
        ConfigError: There is no such task.
    """
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}; tasks are: {', '.join(TASKS)}")
    return tuple(1.0 if name == task else 0.0 for name in TASKS)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting by its dotted name."""
    made: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        name = f"{prefix}{item.name}"
        if is_dataclass(value):
            made.update(flatten(value, f"{name}."))
        else:
            made[name] = list(value) if isinstance(value, tuple) else value
    return made


def _check_values(config: FighterConfig) -> None:
    """Each setting is of its default's kind, and each number finite."""
    defaults = flatten(FighterConfig())
    for key, value in flatten(config).items():
        if key not in defaults:
            raise ConfigError(f"{key} is no setting")
        default = defaults[key]
        if isinstance(default, list):
            kinds = {_kind(item) for item in default}
            fits = isinstance(value, list) and all(_kind(item) in kinds for item in value)
        else:
            fits = _kind(value) == _kind(default)
        if fits and isinstance(default, list) and key in _PAIRS:
            fits = len(value) == 2
        if not fits:
            example = tuple(default) if isinstance(default, list) else default
            shown = tuple(value) if isinstance(value, list) else value
            raise ConfigError(f"{key} is {shown!r}; it must be like its default, {example!r}")


def _kind(value: Any) -> str:
    if isinstance(value, (bool, str)):
        return type(value).__name__
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return "number" if is_number else f"no number: {value!r}"


def _check_ranges(config: FighterConfig) -> None:
    """Ranges are in order, counts whole, and sizes not negative."""
    defaults = flatten(FighterConfig())
    for key, value in flatten(config).items():
        if key in _PAIRS:
            if not 0 <= value[0] <= value[1]:
                raise ConfigError(f"{key} is {tuple(value)}; it must be (low, high), 0 <= low")
        elif _kind(value) == "number":
            if isinstance(defaults[key], int) and not isinstance(value, int):
                raise ConfigError(f"{key} is {value}; it must be a whole number")
            if value < 0 and not key.startswith(_SIGNED):
                raise ConfigError(f"{key} is {value}; it must be >= 0")


def _check_choices(config: FighterConfig) -> None:
    if config.action not in ("targets", "muscle"):
        raise ConfigError(f'action is {config.action!r}; it must be "targets" or "muscle"')
    ratios = config.tasks.ratios
    if len(ratios) != len(TASKS) or min(ratios) < 0 or abs(sum(ratios) - 1.0) > 1e-6:
        raise ConfigError(
            f"tasks.ratios is {tuple(ratios)} (sum {sum(ratios):g}); it must hold one share for "
            f"each of {', '.join(TASKS)}, and they must sum to 1"
        )
    opponent = config.opponent
    if len(opponent.clips) != len(opponent.weights) or not opponent.clips:
        raise ConfigError("opponent.weights must hold one weight for each of opponent.clips")
    if min(opponent.weights) < 0 or sum(opponent.weights) <= 0:
        raise ConfigError("opponent.weights must be >= 0 and must not all be 0")
    positive = {
        "sight.rays": config.sight.rays,
        "physics.substeps": config.physics.substeps,
        "physics.timestep": config.physics.timestep,
        "physics.nconmax": config.physics.nconmax,
        "physics.njmax": config.physics.njmax,
        "episode.seconds": config.episode.seconds,
        "scoring.path_radius": config.scoring.path_radius,
        "tasks.push_seconds": config.tasks.push_seconds,
        "opponent.speed": config.opponent.speed[0],
        "random.mass": config.random.mass[0],
        "sight.seen_share": config.sight.seen_share,
        "sight.range": config.sight.range,
        "posture.least_gain": config.posture.least_gain,
    }
    for name, value in positive.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; it must be positive")
    if not 0 < config.sight.field_of_view <= 360:
        raise ConfigError(
            f"sight.field_of_view is {config.sight.field_of_view}; it must be in (0, 360] degrees"
        )


def _check_bounds(config: FighterConfig) -> None:
    """Settings that bound each other."""
    sight, episode = config.sight, config.episode
    if sight.seen_share > 1:
        raise ConfigError(f"sight.seen_share is {sight.seen_share}; it must be in (0, 1]")
    if not sight.longest_age > sight.delay:
        raise ConfigError(
            f"sight.longest_age is {sight.longest_age} s; it must be longer than sight.delay, "
            f"{sight.delay} s"
        )
    if episode.seconds < config.control_step * (1.0 - 1e-6):
        raise ConfigError(
            f"episode.seconds is {episode.seconds}; it must be at least one control step, "
            f"{config.control_step:g} s"
        )


_PAIRS = frozenset(
    key
    for key, value in flatten(FighterConfig()).items()
    if isinstance(value, list) and len(value) == 2
)
_SIGNED = ("rewards.", "episode.fall_", "posture.hip_share")
