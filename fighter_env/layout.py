"""The one place that knows where a value stands: model state, sensors, observation, action.

Everything else asks here by name. Offsets are Python integers (a numpy integer would break a
compiled graph into pieces), and every entry has a name, a shape and a unit.
"""

from __future__ import annotations

from torch import Tensor

from fighter_env import anatomy, body

__all__ = [
    "HINGE_QPOS",
    "HINGE_QVEL",
    "NQ",
    "NSENSOR",
    "NU",
    "NV",
    "ROOT_QPOS",
    "ROOT_QVEL",
    "SENSOR",
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
