"""The one place that knows where a value stands: model state, sensors, observation, action.

Everything else asks here by name. Offsets are Python integers (a numpy integer would break a
compiled graph into pieces), and every entry has a name, a shape and a unit.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fighter_env import anatomy, body

__all__ = [
    "ACTION_SIZE",
    "GROUPS",
    "HINGE_QPOS",
    "HINGE_QVEL",
    "LEG_COLUMNS",
    "NQ",
    "NSENSOR",
    "NU",
    "NV",
    "ROOT_QPOS",
    "ROOT_QVEL",
    "SENSOR",
    "Entry",
    "observation_entries",
    "observation_size",
    "observation_slices",
    "sensor",
]

HINGES = len(anatomy.HINGES)
BAG_QPOS = slice(0, 2)
ROOT_QPOS = slice(2, 9)
HINGE_QPOS = slice(9, 9 + HINGES)
BAG_QVEL = slice(0, 2)
ROOT_QVEL = slice(2, 8)
HINGE_QVEL = slice(8, 8 + HINGES)
NQ, NV, NU = 9 + HINGES, 8 + HINGES, 2 * HINGES
NMOCAP = len(body.MOCAP)
OPPONENT_MOCAP = slice(0, len(anatomy.BODIES))
BAG_MOCAP = body.MOCAP.index("bag_anchor")
SPOT_MOCAP = body.MOCAP.index("spot")
SEGMENT = {segment.name: index for index, segment in enumerate(anatomy.BODIES)}
HINGE = {hinge.name: index for index, hinge in enumerate(anatomy.HINGES)}


def _sensor_slices() -> dict[str, slice]:
    made, start = {}, 0
    for name, width in body.SENSORS:
        made[name] = slice(start, start + width)
        start += width
    return made


SENSOR: dict[str, slice] = _sensor_slices()
NSENSOR = sum(width for _, width in body.SENSORS)


def _block(part: str, width: int) -> slice:
    start = SENSOR[f"{anatomy.BODIES[0].name}_{part}"].start
    return slice(start, start + width * len(anatomy.BODIES))


FORCE_SENSORS = slice(SENSOR["left_foot_force"].start, NSENSOR)
BODY_POS = _block("pos", 3)
BODY_QUAT = _block("quat", 4)


def sensor(values: Tensor, name: str) -> Tensor:
    """The values of one sensor.

    Args:
        values: Sensor values, shape (..., nsensordata).
        name: A name of `body.SENSORS`.

    Returns:
        A view of shape (..., width).
    """
    return values[..., SENSOR[name]]


ACTION_SIZE = {"targets": HINGES, "muscle": NU}
ACTION_RANGE = {"targets": (-1.0, 1.0), "muscle": (0.0, 1.0)}
LEG_COLUMNS: list[int] = [HINGE[name] for name in anatomy.LEG_HINGES]
GROUPS = ("policy", "critic", "teacher")
POINTS = 15
TASK_COUNT = 5


class Entry(NamedTuple):
    """One entry of an observation: `size` values in `unit`."""

    name: str
    size: int
    unit: str


def _policy(action: str) -> tuple[Entry, ...]:
    return (
        Entry("up", 3, "world up in the pelvis frame"),
        Entry("root_linvel", 3, "m/s, heading frame"),
        Entry("root_angvel", 3, "rad/s, pelvis frame"),
        Entry("hinge_pos", HINGES, "rad from guard"),
        Entry("hinge_vel", HINGES, "10 rad/s"),
        Entry("activation", NU, "0 to 1"),
        Entry("last_action", ACTION_SIZE[action], "action"),
        Entry("foot_force", 2, "body weights, at most 3"),
        Entry("gloves", 6, "m from the head centre, heading frame"),
        Entry("soles", 6, "m from the pelvis, heading frame"),
        Entry("capture", 2, "m from the middle of the soles, heading frame"),
        Entry("head_height", 1, "m"),
        Entry("task", TASK_COUNT, "one of the tasks is 1"),
        Entry("spot", 3, "m from the pelvis, heading frame (x, y), and 1 in the walking task"),
        Entry("bag", 3, "m from the head centre to the bag's middle; 0 without a bag"),
        Entry("cue", 1, "1 while a guard is asked for"),
        Entry("cue_gloves", 6, "m from the gloves to their places; 0 without a cue"),
        Entry("sight_place", 3 * POINTS, "m from the head centre, heading frame, as last seen"),
        Entry("sight_share", POINTS, "visible share, as it has arrived"),
        Entry("sight_age", POINTS, "s since last seen"),
    )


_CRITIC = (
    Entry("true_place", 3 * POINTS, "m from the head centre, heading frame, without delay"),
    Entry("punch", 3, "1 while thrown, seconds into it, 1 for the right hand"),
    Entry("opponent_base", 2, "m from the pelvis, heading frame"),
    Entry("push", 3, "100 N, heading frame"),
    Entry("scales", 3, "mass, friction, strength"),
    Entry("time_left", 1, "share of the episode"),
)
_TEACHER = (
    Entry("gait_phase", 2, "cosine and sine of the gait's clock"),
    Entry("walk_command", 3, "m/s forward and left, rad to turn"),
    Entry("up", 3, "world up in the pelvis frame"),
    Entry("root_linvel", 3, "m/s, heading frame"),
    Entry("root_angvel", 3, "rad/s, pelvis frame"),
    Entry("leg_pos", len(LEG_COLUMNS), "rad from guard"),
    Entry("leg_vel", len(LEG_COLUMNS), "10 rad/s"),
)


def observation_entries(group: str, action: str = "targets") -> tuple[Entry, ...]:
    """The entries of an observation group, in order.

    Args:
        group: One of `GROUPS`. `critic` begins with everything that `policy` has.
        action: "targets" or "muscle".
    """
    if group == "policy":
        return _policy(action)
    if group == "critic":
        return _policy(action) + _CRITIC
    return _TEACHER


def observation_size(group: str, action: str = "targets") -> int:
    """Values in an observation group."""
    return sum(entry.size for entry in observation_entries(group, action))


def observation_slices(group: str, action: str = "targets") -> dict[str, slice]:
    """Where each entry of a group stands."""
    made, start = {}, 0
    for entry in observation_entries(group, action):
        made[entry.name] = slice(start, start + entry.size)
        start += entry.size
    return made
