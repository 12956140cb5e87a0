"""The opponent: recorded clips replayed per world, at every physics substep.

A world throws one punch at a time over an endless guard. Its clock runs forwards, or backwards once
the glove has touched something. The pose fades in from the guard and out to it, so that imported
clips need not start in it; on the way a punch turns and steps towards the place that it is aimed
at. Everything is decided by masks on the device.
"""

from __future__ import annotations

import numpy as np
import torch
import warp as wp
from torch import Tensor

from fighter_env import layout, rotations
from fighter_env.clips import Clip, load_clip
from fighter_env.config import OpponentConfig
from fighter_env.devices import warp_device
from fighter_env.draws import Draws, Purpose, between

__all__ = ["FADE", "PARKED", "ClipBank", "Opponent"]

wp.set_module_options({"enable_backward": False})

FADE = 0.08  # seconds from guard to punch and back
PARKED = 30.0  # where an absent opponent waits (m)


@wp.func
def _frame_pos(pos: wp.array4d[float], clip: int, frame: int, segment: int) -> wp.vec3:
    return wp.vec3(
        pos[clip, frame, segment, 0], pos[clip, frame, segment, 1], pos[clip, frame, segment, 2]
    )


@wp.func
def _frame_quat(quat: wp.array4d[float], clip: int, frame: int, segment: int) -> wp.quat:
    return wp.quat(
        quat[clip, frame, segment, 1],
        quat[clip, frame, segment, 2],
        quat[clip, frame, segment, 3],
        quat[clip, frame, segment, 0],
    )


@wp.func
def _blend(a: wp.quat, b: wp.quat, weight: float) -> wp.quat:
    sign = wp.where(wp.dot(a, b) < 0.0, -1.0, 1.0)
    return wp.normalize(a * (1.0 - weight) + b * (sign * weight))


@wp.func
def _smooth(share: float) -> float:
    t = wp.clamp(share, 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@wp.kernel
def replay_clips(
    # Clips:
    pos: wp.array4d[float],
    quat: wp.array4d[float],
    fps: wp.array[float],
    frames: wp.array[int],
    impact: wp.array[float],
    # State in:
    base_in: wp.array2d[float],
    base_next_in: wp.array2d[float],
    clip_in: wp.array[int],
    time_in: wp.array[float],
    rate_in: wp.array[float],
    idle_in: wp.array[float],
    aim_in: wp.array2d[float],
    fixed_in: wp.array3d[float],
    # In:
    timestep: float,
    substeps: int,
    fade: float,
    # Out:
    pos_out: wp.array4d[float],
    quat_out: wp.array4d[float],
):
    """Poses of all mocap bodies at each substep; dim (N, substeps + 1, nmocap)."""
    world, substep, segment = wp.tid()
    if segment >= pos.shape[2]:
        for axis in range(3):
            pos_out[world, substep, segment, axis] = fixed_in[world, segment - pos.shape[2], axis]
        quat_out[world, substep, segment, 0] = 1.0
        for axis in range(3):
            quat_out[world, substep, segment, axis + 1] = 0.0
        return
    ahead = timestep * float(substep)
    # The guard, which goes round and round.
    idle_length = float(frames[0] - 1) / fps[0]
    idle = idle_in[world] + ahead
    idle = (idle - wp.floor(idle / idle_length) * idle_length) * fps[0]
    low = wp.clamp(int(idle), 0, frames[0] - 2)
    part = idle - float(low)
    place = wp.lerp(_frame_pos(pos, 0, low, segment), _frame_pos(pos, 0, low + 1, segment), part)
    turned = _blend(
        _frame_quat(quat, 0, low, segment), _frame_quat(quat, 0, low + 1, segment), part
    )
    # The punch over it.
    clip = clip_in[world]
    length = float(frames[clip] - 1) / fps[clip]
    time = wp.clamp(time_in[world] + rate_in[world] * ahead, 0.0, length)
    weight = wp.where(clip > 0, _smooth(wp.min(time, length - time) / fade), 0.0)
    at = time * fps[clip]
    low = wp.clamp(int(at), 0, frames[clip] - 2)
    part = at - float(low)
    punch = wp.lerp(
        _frame_pos(pos, clip, low, segment), _frame_pos(pos, clip, low + 1, segment), part
    )
    punch_turn = _blend(
        _frame_quat(quat, clip, low, segment), _frame_quat(quat, clip, low + 1, segment), part
    )
    place = wp.lerp(place, punch, weight)
    turned = _blend(turned, punch_turn, weight)
    # The step and turn towards the aim, full at the impact.
    peak = wp.clamp(impact[clip], 1.0e-3, length - 1.0e-3)
    reach = wp.where(time <= peak, _smooth(time / peak), _smooth((length - time) / (length - peak)))
    reach = wp.where(clip > 0, reach, 0.0)
    share = float(substep) / float(substeps)
    x = base_in[world, 0] + share * (base_next_in[world, 0] - base_in[world, 0])
    y = base_in[world, 1] + share * (base_next_in[world, 1] - base_in[world, 1])
    yaw = base_in[world, 2] + share * (base_next_in[world, 2] - base_in[world, 2])
    yaw += reach * aim_in[world, 3]
    heading = wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), yaw)
    place = wp.quat_rotate(heading, place)
    turned = heading * turned
    pos_out[world, substep, segment, 0] = place[0] + x + reach * aim_in[world, 0]
    pos_out[world, substep, segment, 1] = place[1] + y + reach * aim_in[world, 1]
    pos_out[world, substep, segment, 2] = place[2] + reach * aim_in[world, 2]
    quat_out[world, substep, segment, 0] = turned[3]
    for axis in range(3):
        quat_out[world, substep, segment, axis + 1] = turned[axis]


class ClipBank:
    """All clips of an environment in one padded block; clip 0 is the guard.

    Attributes:
        clips: The clips, in order.
        length: Seconds of each, shape (C,).
        impact: Seconds until the impact of each, shape (C,).
        point: Glove centre at the impact in the clip's frame, shape (C, 3).
        hand: 0 for left, 1 for right, int64, shape (C,).
    """

    def __init__(self, names: tuple[str, ...], folder: str, device: torch.device) -> None:
        self.clips: list[Clip] = [load_clip(name, folder) for name in ("guard_idle", *names)]
        longest = max(len(clip.pos) for clip in self.clips)

        def padded(values: np.ndarray) -> np.ndarray:
            return np.pad(values, ((0, longest - len(values)), (0, 0), (0, 0)), mode="edge")

        def tensor(values: list, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(np.array(values), dtype=dtype, device=device)

        self.pos = tensor([padded(clip.pos) for clip in self.clips])
        self.quat = tensor([padded(clip.quat) for clip in self.clips])
        self.fps = tensor([clip.fps for clip in self.clips])
        self.frames = tensor([len(clip.pos) for clip in self.clips], torch.int32)
        self.length = tensor([clip.seconds for clip in self.clips])
        self.impact = tensor([clip.impact / clip.fps for clip in self.clips])
        self.point = tensor([clip.glove()[clip.impact] for clip in self.clips])
        self.hand = tensor([int(clip.hand == "right") for clip in self.clips], torch.int64)


class Opponent:
    """State and poses of the opponents of `num_envs` worlds.

    Attributes:
        base: Place and yaw (x, y, yaw), shape (N, 3).
        clip: Number of the punch thrown, 0 in guard, int32, shape (N,).
        time: Seconds into the punch, shape (N,).
        rate: Speed of the punch's clock; negative while it retracts, shape (N,).
        path_pos, path_quat: Mocap poses per substep of the running control step, shapes
            (N, substeps + 1, nmocap, 3) and (N, substeps + 1, nmocap, 4).
    """

    STATE = (
        "base",
        "base_next",
        "clip",
        "time",
        "rate",
        "idle",
        "aim",
        "rest",
        "count",
        "distance",
        "present",
        "struck",
        "fixed",
    )

    def __init__(
        self,
        num_envs: int,
        device: torch.device,
        config: OpponentConfig,
        draws: Draws,
        folder: str = "",
        timestep: float = 0.004,
        substeps: int = 5,
    ) -> None:
        self.config, self._draws = config, draws
        self.bank = ClipBank(config.clips, folder, device)
        self._timestep, self._substeps = timestep, substeps
        self._device = warp_device(device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(num_envs, *shape, device=device)

        def whole() -> Tensor:
            return torch.zeros(num_envs, dtype=torch.int32, device=device)

        self.base, self.base_next, self.aim = floats(3), floats(3), floats(4)
        self.time, self.rate, self.idle, self.rest = floats(), floats(), floats(), floats()
        self.distance = floats()
        self.clip, self.count = whole(), whole()
        self.present = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.struck = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.fixed = floats(layout.NMOCAP - layout.OPPONENT_MOCAP.stop, 3)
        rows = (substeps + 1, layout.NMOCAP)
        self.path_pos, self.path_quat = floats(*rows, 3), floats(*rows, 4)
        weights = torch.tensor(config.weights, device=device)
        self._edges = (torch.cumsum(weights, 0) / weights.sum())[:-1].contiguous()
        bank = self.bank
        self._views = [
            wp.from_torch(value)
            for value in (
                *(bank.pos, bank.quat, bank.fps, bank.frames, bank.impact),
                *(self.base, self.base_next, self.clip, self.time, self.rate, self.idle),
                *(self.aim, self.fixed, self.path_pos, self.path_quat),
            )
        ]
        self._dim = (num_envs, *rows)

    @property
    def hand(self) -> Tensor:
        """The punching hand: 0 left, 1 right, int64, shape (N,)."""
        return self.bank.hand[self.clip.long()]

    @property
    def throwing(self) -> Tensor:
        """Worlds in which a punch is on its way out, up to its impact, bool, shape (N,)."""
        outward = self.time <= self.bank.impact[self.clip.long()]
        return (self.clip > 0) & (self.rate > 0) & outward

    def restart(self, mask: Tensor, draw: Tensor, present: Tensor, fixed: Tensor) -> None:
        """Puts the opponents of `mask` in front of us, or away where they are not wanted.

        Args:
            mask: Worlds to restart, bool, shape (N,).
            draw: Uniform draws, shape (N, 3).
            present: Worlds with an opponent, bool, shape (N,).
            fixed: Places of the other mocap bodies, shape (N, 2, 3).
        """
        distance = between(draw[:, 0], self.config.distance)
        base = torch.zeros_like(self.base)
        base[:, 0] = torch.where(present, distance, PARKED)
        base[:, 2] = torch.pi
        column = mask[:, None]
        for state, value in ((self.base, base), (self.base_next, base)):
            state.copy_(torch.where(column, value, state))
        self.distance.copy_(torch.where(mask, distance, self.distance))
        rest = between(draw[:, 1], self.config.rest)
        self.rest.copy_(torch.where(mask, rest, self.rest))
        idle = draw[:, 2] * self.bank.length[0]
        self.idle.copy_(torch.where(mask, idle, self.idle))
        self.present.copy_(torch.where(mask, present, self.present))
        self.fixed.copy_(torch.where(column[..., None], fixed, self.fixed))
        for state in (self.clip, self.time, self.rate, self.count, self.struck):
            state.masked_fill_(mask, 0)
        self.aim.masked_fill_(column, 0.0)

    def plan(self, episode: Tensor, head: Tensor, pelvis: Tensor) -> None:
        """Decides on new punches and fills the path of the coming control step.

        Args:
            episode: Number of the episode per world, int32, shape (N,).
            head: Centre of our head (m), shape (N, 3).
            pelvis: Our pelvis (m), shape (N, 3).
        """
        step = self._timestep * self._substeps
        draw = self._draws.uniform(Purpose.PUNCH, episode, self.count, 6)
        start = self.present & (self.clip == 0) & (self.rest <= 0.0)
        choice = 1 + torch.bucketize(draw[:, 0].contiguous(), self._edges, right=True)
        self.clip.copy_(torch.where(start, choice.to(torch.int32), self.clip))
        self.rate.copy_(torch.where(start, between(draw[:, 1], self.config.speed), self.rate))
        self.rest.copy_(torch.where(start, between(draw[:, 2], self.config.rest), self.rest))
        self.count.add_(start.to(torch.int32))
        aim = self._aim(head + self.config.aim * (2.0 * draw[:, 3:6] - 1.0))
        self.aim.copy_(torch.where(start[:, None], aim, self.aim))
        self._follow(pelvis, step)
        self.pose()

    def pose(self) -> None:
        """Fills the path from the present state."""
        out = self._views[-2:]
        wp.launch(
            replay_clips,
            dim=self._dim,
            inputs=[*self._views[:-2], self._timestep, self._substeps, FADE],
            outputs=out,
            device=self._device,
        )

    def advance(self, touched: Tensor) -> Tensor:
        """Moves the clocks by one control step.

        Args:
            touched: Worlds in which the punching glove touched something, bool, shape (N,).

        Returns:
            Worlds whose punch came to its end in this step, bool, shape (N,).
        """
        step = self._timestep * self._substeps
        self.base.copy_(self.base_next)
        self.idle.add_(step)
        busy = self.clip > 0
        self.rest.sub_(step * (~busy).to(torch.float32))
        which = self.clip.long()
        length = self.bank.length[which]
        self.time.copy_(torch.where(busy, self.time + step * self.rate, self.time))
        outward = self.time <= self.bank.impact[which]
        back = busy & touched & (self.rate > 0) & outward
        self.rate.copy_(torch.where(back, -self.rate.abs(), self.rate))
        ended = busy & ((self.time >= length) | ((self.rate < 0) & (self.time <= 0.0)))
        for state in (self.clip, self.time, self.rate, self.struck):
            state.masked_fill_(ended, 0)
        return ended

    def _aim(self, target: Tensor) -> Tensor:
        """Step (x, y, z) and turn that bring the glove to `target` at the impact, (N, 4)."""
        point = self.bank.point[self.clip.long()]
        away = target[:, :2] - self.base[:, :2]
        wanted = rotations.bearing(away) - rotations.bearing(point)
        turn = rotations.wrap(wanted - self.base[:, 2])
        turn = turn.clamp(-self.config.turn, self.config.turn)
        yaw = self.base[:, 2] + turn
        direction = torch.stack((torch.cos(yaw), torch.sin(yaw)), 1)
        reached = rotations.to_world(direction, point)
        miss = target - reached
        miss = torch.cat((miss[:, :2] - self.base[:, :2], miss[:, 2:]), 1)
        length = miss[:, :2].square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        flat = miss[:, :2] * (self.config.step_in / length).clamp_max(1.0)
        return torch.cat((flat, miss[:, 2:].clamp(-0.15, 0.15), turn[:, None]), 1)

    def _follow(self, pelvis: Tensor, step: float) -> None:
        """Keeps the distance and faces us, between punches and at a limited speed."""
        away = self.base[:, :2] - pelvis[:, :2]
        length = away.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        wanted = pelvis[:, :2] + away / length * self.distance[:, None]
        move = wanted - self.base[:, :2]
        far = move.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        move = move * (self.config.follow * step / far).clamp_max(1.0)
        turn = rotations.wrap(rotations.bearing(-away) - self.base[:, 2])
        turn = turn.clamp(-2.0 * step, 2.0 * step)
        free = (self.present & (self.clip == 0)).to(torch.float32)[:, None]
        change = free * torch.cat((move, turn[:, None]), 1)
        self.base_next.copy_(self.base + change)
