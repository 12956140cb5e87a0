"""Punch scoring: touches found at every substep, and how much of a punch got past the guard.

When the opponent's punching glove first touches our head, gloves, forearms or upper arms, 19 paths
(the middle, 6 at half radius, 12 at full radius) run from a disc at that glove to a disc at our
head. Each is a capsule of a stated radius, and stops where it meets our gloves, forearms or upper
arms. The score of the punch is the share that gets through. Our own gloves score on the bag.
All of it is geometry of the substeps' poses, the same for both physics; a mocap body's contact
force does not know how fast it comes, so strength is glove speed times an effective mass.
"""

from __future__ import annotations

import math

import torch
import warp as wp
from torch import Tensor

from fighter_env import anatomy, body, layout
from fighter_env.config import ScoringConfig
from fighter_env.devices import warp_device
from fighter_env.geometry import read_quat, read_vec3, segment_distance
from fighter_env.sight import blocker_table

__all__ = ["PATHS", "Scoring", "path_pattern"]

wp.set_module_options({"enable_backward": False})

PATHS = 19
BLOCKERS = (
    "left_glove",
    "right_glove",
    "left_forearm",
    "right_forearm",
    "left_upper_arm",
    "right_upper_arm",
)


def path_pattern() -> list[tuple[float, float]]:
    """The 19 places on the unit disc: the middle, 6 at half radius, 12 at full radius."""
    rings = [(1, 0.0), (6, 0.5), (12, 1.0)]
    return [
        (radius * math.cos(2 * math.pi * k / count), radius * math.sin(2 * math.pi * k / count))
        for count, radius in rings
        for k in range(count)
    ]


@wp.func
def _open_paths(
    glove: wp.vec3,
    head: wp.vec3,
    sensor_in: wp.array2d[float],
    world: int,
    pattern: wp.array[wp.vec2],
    blocker_at: wp.array2d[int],
    blocker_start: wp.array[wp.vec3],
    blocker_end: wp.array[wp.vec3],
    blocker_radius: wp.array[float],
    glove_disc: float,
    head_disc: float,
    path_radius: float,
) -> int:
    """How many of the paths from `glove` to `head` get through."""
    line = wp.normalize(head - glove)
    side = wp.cross(line, wp.vec3(0.0, 0.0, 1.0))
    if wp.length(side) < 1.0e-3:
        side = wp.cross(line, wp.vec3(0.0, 1.0, 0.0))
    side = wp.normalize(side)
    above = wp.cross(side, line)
    through = wp.int32(0)
    for path in range(pattern.shape[0]):
        across = side * pattern[path][0] + above * pattern[path][1]
        start = glove + across * glove_disc
        end = head + across * head_disc
        stopped = wp.int32(0)
        for b in range(blocker_radius.shape[0]):
            place = read_vec3(sensor_in, world, blocker_at[b, 0])
            pose = read_quat(sensor_in, world, blocker_at[b, 1])
            near = place + wp.quat_rotate(pose, blocker_start[b])
            far = place + wp.quat_rotate(pose, blocker_end[b])
            if segment_distance(start, end, near, far) < blocker_radius[b] + path_radius:
                stopped = 1
        through += 1 - stopped
    return through


@wp.kernel
def count_paths(
    # In:
    glove_in: wp.array2d[float],
    sensor_in: wp.array2d[float],
    pattern: wp.array[wp.vec2],
    blocker_at: wp.array2d[int],
    blocker_start: wp.array[wp.vec3],
    blocker_end: wp.array[wp.vec3],
    blocker_radius: wp.array[float],
    head_at: int,
    glove_disc: float,
    head_disc: float,
    path_radius: float,
    # Out:
    through_out: wp.array[int],
):
    """Open paths from given glove places; dim N."""
    world = wp.tid()
    through_out[world] = _open_paths(
        read_vec3(glove_in, world, 0),
        read_vec3(sensor_in, world, head_at),
        sensor_in,
        world,
        pattern,
        blocker_at,
        blocker_start,
        blocker_end,
        blocker_radius,
        glove_disc,
        head_disc,
        path_radius,
    )


@wp.func
def _mocap_glove(
    pos: wp.array4d[float], quat: wp.array4d[float], world: int, substep: int, segment: int
) -> wp.vec3:
    turn = wp.quat(
        quat[world, substep, segment, 1],
        quat[world, substep, segment, 2],
        quat[world, substep, segment, 3],
        quat[world, substep, segment, 0],
    )
    place = wp.vec3(
        pos[world, substep, segment, 0],
        pos[world, substep, segment, 1],
        pos[world, substep, segment, 2],
    )
    return place + wp.quat_rotate(turn, wp.vec3(0.0, 0.0, wp.static(-anatomy.GLOVE_REACH)))


@wp.kernel
def judge_punches(
    # In:
    path_pos_in: wp.array4d[float],
    path_quat_in: wp.array4d[float],
    row_in: wp.array2d[float],
    forearm_in: wp.array[int],
    throwing_in: wp.array[wp.bool],
    struck_in: wp.array[wp.bool],
    pattern: wp.array[wp.vec2],
    blocker_at: wp.array2d[int],
    blocker_start: wp.array[wp.vec3],
    blocker_end: wp.array[wp.vec3],
    blocker_radius: wp.array[float],
    head_at: int,
    torso_at: wp.vec2i,
    torso_ends: wp.mat22,
    torso_radius: float,
    glove_disc: float,
    head_disc: float,
    path_radius: float,
    margin: float,
    substeps: int,
    timestep: float,
    # Out:
    touched_out: wp.array[wp.bool],
    scored_out: wp.array[wp.bool],
    head_out: wp.array[wp.bool],
    share_out: wp.array[float],
    speed_out: wp.array[float],
):
    """The punching glove against our body over all substeps; dim N.

    `row_in` holds one row per world and substep.
    """
    world = wp.tid()
    touched_out[world] = False
    scored_out[world] = False
    head_out[world] = False
    share_out[world] = 0.0
    speed_out[world] = 0.0
    if not throwing_in[world]:
        return
    segment = forearm_in[world]
    radius = wp.static(anatomy.GLOVE_RADIUS) + margin
    done = int(wp.where(struck_in[world], 1, 0))
    for substep in range(substeps):
        row = world * (substeps + 1) + substep
        glove = _mocap_glove(path_pos_in, path_quat_in, world, substep, segment)
        head = read_vec3(row_in, row, head_at)
        at_head = wp.length(glove - head) < radius + wp.static(anatomy.HEAD_RADIUS)
        at_guard = wp.bool(False)
        for b in range(blocker_radius.shape[0]):
            place = read_vec3(row_in, row, blocker_at[b, 0])
            pose = read_quat(row_in, row, blocker_at[b, 1])
            near = place + wp.quat_rotate(pose, blocker_start[b])
            far = place + wp.quat_rotate(pose, blocker_end[b])
            if segment_distance(glove, glove, near, far) < radius + blocker_radius[b]:
                at_guard = True
        place = read_vec3(row_in, row, torso_at[0])
        pose = read_quat(row_in, row, torso_at[1])
        near = place + wp.quat_rotate(pose, wp.vec3(0.0, 0.0, torso_ends[0, 0]))
        far = place + wp.quat_rotate(pose, wp.vec3(0.0, 0.0, torso_ends[0, 1]))
        if at_head or at_guard or segment_distance(glove, glove, near, far) < radius + torso_radius:
            touched_out[world] = True
        if (at_head or at_guard) and done == 0:
            done = 1
            after = _mocap_glove(path_pos_in, path_quat_in, world, substep + 1, segment)
            through = _open_paths(
                glove,
                head,
                row_in,
                row,
                pattern,
                blocker_at,
                blocker_start,
                blocker_end,
                blocker_radius,
                glove_disc,
                head_disc,
                path_radius,
            )
            scored_out[world] = True
            head_out[world] = at_head
            share_out[world] = float(through) / float(pattern.shape[0])
            speed_out[world] = wp.length(after - glove) / timestep


@wp.kernel
def judge_bag(
    # In:
    row_in: wp.array2d[float],
    glove_at: wp.array2d[int],
    bag_at: wp.vec3i,
    bag_ends: wp.vec2,
    bag_radius: float,
    margin: float,
    substeps: int,
    # Out:
    speed_out: wp.array2d[float],
):
    """Fastest approach of each of our gloves while it touches the bag (m/s); dim (N, 2)."""
    world, hand = wp.tid()
    fastest = wp.float32(0.0)
    for substep in range(substeps):
        row = world * (substeps + 1) + substep
        glove = read_vec3(row_in, row, glove_at[hand, 0])
        speed = read_vec3(row_in, row, glove_at[hand, 1])
        place = read_vec3(row_in, row, bag_at[0])
        pose = read_quat(row_in, row, bag_at[1])
        near = place + wp.quat_rotate(pose, wp.vec3(0.0, 0.0, bag_ends[0]))
        far = place + wp.quat_rotate(pose, wp.vec3(0.0, 0.0, bag_ends[1]))
        reach = wp.static(anatomy.GLOVE_RADIUS) + bag_radius + margin
        if segment_distance(glove, glove, near, far) < reach:
            axis = wp.normalize(far - near)
            inward = near - glove
            inward = wp.normalize(inward - axis * wp.dot(inward, axis))
            moving = speed - read_vec3(row_in, row, bag_at[2])
            fastest = wp.max(fastest, wp.dot(moving, inward))
    speed_out[world, hand] = fastest


class Scoring:
    """Touches and scores of the last control step.

    Attributes:
        touched: The punching glove touches head, arms or trunk, bool, shape (N,).
        scored: A punch was judged in this step, bool, shape (N,).
        at_head: It touched the head, bool, shape (N,).
        share: Share of the 19 paths that got through, shape (N,).
        speed: Speed of the glove then (m/s), shape (N,).
        bag_speed: Closing speed of each of our gloves on the bag (m/s), shape (N, 2).
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device,
        config: ScoringConfig,
        timestep: float,
        substeps: int,
    ) -> None:
        self.config = config
        self._device = warp_device(device)
        self._num = num_envs

        def flags() -> Tensor:
            return torch.zeros(num_envs, dtype=torch.bool, device=device)

        self.touched, self.scored, self.at_head = flags(), flags(), flags()
        self.share = torch.zeros(num_envs, device=device)
        self.speed = torch.zeros(num_envs, device=device)
        self.bag_speed = torch.zeros(num_envs, 2, device=device)
        rows = num_envs * (substeps + 1)
        self._rows = torch.zeros(rows, layout.NSENSOR, device=device)
        self._forearm = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self._throwing, self._struck = flags(), flags()
        self._glove = torch.zeros(num_envs, 3, device=device)
        self._through = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self._timing = [substeps, timestep]
        places, starts, ends, radii = blocker_table(BLOCKERS)
        with wp.ScopedDevice(self._device):
            self._tables = [
                wp.array([wp.vec2(*p) for p in path_pattern()], dtype=wp.vec2),
                wp.array(places, dtype=int),
                wp.array([wp.vec3(*v) for v in starts], dtype=wp.vec3),
                wp.array([wp.vec3(*v) for v in ends], dtype=wp.vec3),
                wp.array(radii, dtype=float),
            ]
            at = [
                [layout.SENSOR[f"{s}_glove_pos"].start, layout.SENSOR[f"{s}_glove_linvel"].start]
                for s in ("left", "right")
            ]
            self._glove_at = wp.array(at, dtype=int)
        self._inputs = [
            wp.from_torch(v) for v in (self._rows, self._forearm, self._throwing, self._struck)
        ]
        self._outputs = [
            wp.from_torch(v)
            for v in (self.touched, self.scored, self.at_head, self.share, self.speed)
        ]
        self._bag_out = wp.from_torch(self.bag_speed)
        self._count = [wp.from_torch(v) for v in (self._glove, self._rows, self._through)]
        self._paths_of: Tensor | None = None
        self._paths: list[wp.array] = []
        self._left = layout.SEGMENT["left_forearm"]
        self._right = layout.SEGMENT["right_forearm"]
        torso = next(shape for shape in anatomy.SHAPES if shape.name == "torso")
        self._torso = [
            wp.vec2i(layout.SENSOR["torso_pos"].start, layout.SENSOR["torso_quat"].start),
            wp.mat22(torso.start[2], torso.end[2], 0.0, 0.0),
            torso.radius,
        ]
        self._bag = [
            wp.vec3i(*(layout.SENSOR[f"bag_{part}"].start for part in ("pos", "quat", "linvel"))),
            wp.vec2(*body.BAG_ENDS),
            body.BAG_RADIUS,
        ]

    def judge(
        self,
        history: Tensor,
        path_pos: Tensor,
        path_quat: Tensor,
        hand: Tensor,
        throwing: Tensor,
        struck: Tensor,
    ) -> None:
        """Judges all substeps of a control step.

        Args:
            history: Sensor values per substep, shape (N, substeps + 1, nsensordata).
            path_pos, path_quat: Mocap poses per substep (persistent buffers of `Opponent`).
            hand: The punching hand, 0 left, 1 right, shape (N,).
            throwing: Worlds with a punch on its way out, bool, shape (N,).
            struck: Worlds whose punch has been judged already, bool, shape (N,).
        """
        self._rows.copy_(history.reshape(self._rows.shape))
        self._forearm.copy_(torch.where(hand == 0, self._left, self._right))
        self._throwing.copy_(throwing)
        self._struck.copy_(struck)
        config = self.config
        discs = [config.glove_disc, config.head_disc, config.path_radius, config.touch_margin]
        wp.launch(
            judge_punches,
            dim=self._num,
            inputs=[
                *self._path_views(path_pos, path_quat),
                *self._inputs,
                *self._tables,
                layout.SENSOR["head_centre_pos"].start,
                *self._torso,
                *discs,
                *self._timing,
            ],
            outputs=self._outputs,
            device=self._device,
        )
        wp.launch(
            judge_bag,
            dim=(self._num, 2),
            inputs=[
                self._inputs[0],
                self._glove_at,
                *self._bag,
                config.touch_margin,
                self._timing[0],
            ],
            outputs=[self._bag_out],
            device=self._device,
        )

    def _path_views(self, pos: Tensor, quat: Tensor) -> list[wp.array]:
        """Warp views of the path buffers, made once: they are the same tensors at every step."""
        if self._paths_of is not pos:
            self._paths_of, self._paths = pos, [wp.from_torch(pos), wp.from_torch(quat)]
        return self._paths

    def open_paths(self, glove: Tensor, sensors: Tensor) -> Tensor:
        """How many of the 19 paths from given glove places to our heads get through.

        Args:
            glove: Centre of an attacking glove (m), shape (N, 3).
            sensors: Sensor values, shape (N, nsensordata).

        Returns:
            Counts in [0, 19], int32, shape (N,).
        """
        self._glove.copy_(glove)
        self._rows[: self._num].copy_(sensors)
        config = self.config
        wp.launch(
            count_paths,
            dim=self._num,
            inputs=[
                self._count[0],
                self._count[1],
                *self._tables,
                layout.SENSOR["head_centre_pos"].start,
                config.glove_disc,
                config.head_disc,
                config.path_radius,
            ],
            outputs=[self._count[2]],
            device=self._device,
        )
        return self._through.clone()
