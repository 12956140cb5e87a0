"""Sight: which of the opponent's keypoints our eyes see past our own gloves and forearms.

For each keypoint, rays run from the eye to points spread over a disc round it; a ray is blocked
when it meets one of our gloves (spheres) or forearms (capsules). The share of open rays decides
whether the point is seen; what is seen arrives late, through a ring buffer per world that a reset
clears; a hidden point keeps the place where it was last seen, and an age.
"""

from __future__ import annotations

import math

import torch
import warp as wp
from torch import Tensor

from fighter_env import anatomy, layout
from fighter_env.config import SightConfig
from fighter_env.devices import warp_device
from fighter_env.geometry import read_quat, read_vec3, segment_distance

__all__ = ["KEYPOINTS", "Sight", "blocker_table"]

wp.set_module_options({"enable_backward": False})


def _keypoints() -> dict[str, tuple[str, tuple[float, float, float]]]:
    origin = (0.0, 0.0, 0.0)
    made = {
        "head": ("head", anatomy.HEAD_CENTRE),
        "chest": ("torso", (0.0, 0.0, 0.30)),
        "pelvis": ("pelvis", origin),
    }
    for side in ("left", "right"):
        made[f"{side}_shoulder"] = (f"{side}_upper_arm", origin)
        made[f"{side}_elbow"] = (f"{side}_forearm", origin)
        made[f"{side}_glove"] = (f"{side}_forearm", (0.0, 0.0, -anatomy.GLOVE_REACH))
        made[f"{side}_hip"] = (f"{side}_thigh", origin)
        made[f"{side}_knee"] = (f"{side}_shin", origin)
        made[f"{side}_foot"] = (f"{side}_foot", (0.065, 0.0, -anatomy.SOLE_DEPTH))
    return made


KEYPOINTS: dict[str, tuple[str, tuple[float, float, float]]] = _keypoints()


def blocker_table(names: tuple[str, ...]) -> tuple[list, list, list, list]:
    """Offsets of body positions and quaternions in the sensor row, end points, and radii of shapes.

    Args:
        names: Names of `anatomy.SHAPES`.

    Returns:
        Per shape: [position offset, quaternion offset], start, end, radius.
    """
    shapes = {shape.name: shape for shape in anatomy.SHAPES}
    places, starts, ends, radii = [], [], [], []
    for name in names:
        shape = shapes[name]
        pos, quat = layout.SENSOR[f"{shape.body}_pos"], layout.SENSOR[f"{shape.body}_quat"]
        places.append([pos.start, quat.start])
        starts.append(shape.start)
        ends.append(shape.end)
        radii.append(shape.radius)
    return places, starts, ends, radii


@wp.kernel
def cast_rays(
    # In:
    sensor_in: wp.array2d[float],
    mocap_pos_in: wp.array3d[float],
    mocap_quat_in: wp.array3d[float],
    point_body: wp.array[int],
    point_offset: wp.array[wp.vec3],
    pattern: wp.array[wp.vec2],
    blocker_at: wp.array2d[int],
    blocker_start: wp.array[wp.vec3],
    blocker_end: wp.array[wp.vec3],
    blocker_radius: wp.array[float],
    eye_at: int,
    head_quat_at: int,
    disc: float,
    cosine: float,
    farthest: float,
    # Out:
    place_out: wp.array3d[float],
    share_out: wp.array2d[float],
):
    """Place and visible share of each keypoint; dim (N, keypoints)."""
    world, point = wp.tid()
    body = point_body[point]
    origin = wp.vec3(
        mocap_pos_in[world, body, 0], mocap_pos_in[world, body, 1], mocap_pos_in[world, body, 2]
    )
    turn = wp.quat(
        mocap_quat_in[world, body, 1],
        mocap_quat_in[world, body, 2],
        mocap_quat_in[world, body, 3],
        mocap_quat_in[world, body, 0],
    )
    target = origin + wp.quat_rotate(turn, point_offset[point])
    for axis in range(3):
        place_out[world, point, axis] = target[axis]
    eye = read_vec3(sensor_in, world, eye_at)
    forward = wp.quat_rotate(read_quat(sensor_in, world, head_quat_at), wp.vec3(1.0, 0.0, 0.0))
    line = target - eye
    distance = wp.length(line)
    if distance > farthest or wp.dot(line, forward) < cosine * distance:
        share_out[world, point] = 0.0
        return
    line = line / wp.max(distance, 1.0e-6)
    side = wp.cross(line, wp.vec3(0.0, 0.0, 1.0))
    if wp.length(side) < 1.0e-3:
        side = wp.cross(line, wp.vec3(0.0, 1.0, 0.0))
    side = wp.normalize(side)
    above = wp.cross(side, line)
    open_rays = wp.int32(0)
    for ray in range(pattern.shape[0]):
        end = target + side * (pattern[ray][0] * disc) + above * (pattern[ray][1] * disc)
        blocked = wp.int32(0)
        for b in range(blocker_radius.shape[0]):
            place = read_vec3(sensor_in, world, blocker_at[b, 0])
            pose = read_quat(sensor_in, world, blocker_at[b, 1])
            start = place + wp.quat_rotate(pose, blocker_start[b])
            stop = place + wp.quat_rotate(pose, blocker_end[b])
            if segment_distance(eye, end, start, stop) < blocker_radius[b]:
                blocked = 1
        open_rays += 1 - blocked
    share_out[world, point] = float(open_rays) / float(pattern.shape[0])


class Sight:
    """What our fighters see, and what they remember.

    Attributes:
        place: True place of each keypoint now (m), shape (N, K, 3).
        share: Visible share of each keypoint now, shape (N, K).
        seen: Whether each point counts as seen *now*, before the delay, bool, shape (N, K).
        known: Last seen place as it has arrived (m), shape (N, K, 3).
        known_share: Visible share as it has arrived, shape (N, K).
        age: Seconds since the point was last seen, at least the delay, shape (N, K).
    """

    STATE = ("place", "share", "known", "known_share", "age", "ring")

    def __init__(
        self, num_envs: int, device: torch.device, config: SightConfig, control_step: float
    ) -> None:
        self.config, self._step = config, control_step
        self._device = warp_device(device)
        count = len(KEYPOINTS)
        self.delay_steps = round(config.delay / control_step)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(num_envs, *shape, device=device)

        self.place, self.share = floats(count, 3), floats(count)
        self.known, self.known_share = floats(count, 3), floats(count)
        self.age = floats(count) + config.longest_age
        self.ring = floats(self.delay_steps + 1, count, 4)
        self._sensors = floats(layout.NSENSOR)
        self._mocap_pos, self._mocap_quat = floats(layout.NMOCAP, 3), floats(layout.NMOCAP, 4)
        # The view cone: 360 degrees and more see everything.
        half = min(math.radians(config.field_of_view) / 2.0, math.pi)
        self._scalars = [
            layout.SENSOR["eye_pos"].start,
            layout.SENSOR["head_quat"].start,
            config.disc,
            math.cos(half) - 1e-6,
            config.range,
        ]
        with wp.ScopedDevice(self._device):
            self._tables = self._make_tables(config.rays)
        self._inputs = [
            wp.from_torch(v) for v in (self._sensors, self._mocap_pos, self._mocap_quat)
        ]
        self._outputs = [wp.from_torch(v) for v in (self.place, self.share)]

    @staticmethod
    def _make_tables(rays: int) -> list[wp.array]:
        bodies = [layout.SEGMENT[name] for name, _ in KEYPOINTS.values()]
        offsets = [wp.vec3(*offset) for _, offset in KEYPOINTS.values()]
        golden = math.pi * (3.0 - math.sqrt(5.0))
        spread = [
            wp.vec2(
                math.sqrt((ray + 0.5) / rays) * math.cos(golden * ray),
                math.sqrt((ray + 0.5) / rays) * math.sin(golden * ray),
            )
            for ray in range(rays)
        ]
        places, starts, ends, radii = blocker_table(
            ("left_glove", "right_glove", "left_forearm", "right_forearm")
        )
        return [
            wp.array(bodies, dtype=int),
            wp.array(offsets, dtype=wp.vec3),
            wp.array(spread, dtype=wp.vec2),
            wp.array(places, dtype=int),
            wp.array([wp.vec3(*v) for v in starts], dtype=wp.vec3),
            wp.array([wp.vec3(*v) for v in ends], dtype=wp.vec3),
            wp.array(radii, dtype=float),
        ]

    @property
    def seen(self) -> Tensor:
        """See the class."""
        return self.share >= self.config.seen_share

    def look(self, sensors: Tensor, mocap_pos: Tensor, mocap_quat: Tensor) -> None:
        """Casts all rays for the present state; fills `place` and `share` only.

        Args:
            sensors: Fresh sensor values, shape (N, nsensordata).
            mocap_pos, mocap_quat: Present mocap poses, shapes (N, nmocap, 3), (N, nmocap, 4).
        """
        self._sensors.copy_(sensors)
        self._mocap_pos.copy_(mocap_pos)
        self._mocap_quat.copy_(mocap_quat)
        wp.launch(
            cast_rays,
            dim=self.share.shape,
            inputs=[*self._inputs, *self._tables, *self._scalars],
            outputs=self._outputs,
            device=self._device,
        )

    def remember(self) -> None:
        """Puts what was just seen into the ring, and takes what arrives out of it."""
        self.ring[:, 1:] = self.ring[:, :-1].clone()
        self.ring[:, 0, :, :3].copy_(self.place)
        self.ring[:, 0, :, 3].copy_(self.share)
        arrived = self.ring[:, self.delay_steps]
        seen = arrived[..., 3] >= self.config.seen_share
        self.known_share.copy_(arrived[..., 3])
        self.known.copy_(torch.where(seen[..., None], arrived[..., :3], self.known))
        older = (self.age + self._step).clamp_max(self.config.longest_age)
        self.age.copy_(torch.where(seen, self.config.delay, older))

    def clear(self, mask: Tensor) -> None:
        """Forgets everything in the worlds of `mask`."""
        for values in (self.known, self.known_share, self.ring, self.place, self.share):
            values.masked_fill_(mask.view(-1, *(1,) * (values.dim() - 1)), 0.0)
        self.age.masked_fill_(mask[:, None], self.config.longest_age)
