"""Quaternions (w, x, y, z) and headings for batches of worlds, in plain torch.

Every function takes and returns float32 tensors whose last dimension is the vector; the leading
dimensions broadcast. There is no host read and no shape that depends on data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "bearing",
    "conjugate",
    "heading",
    "multiply",
    "normalise",
    "rotate",
    "to_heading",
    "to_world",
    "unrotate",
    "wrap",
]


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product ``a b`` of two quaternions, shape (..., 4)."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        -1,
    )


def conjugate(q: Tensor) -> Tensor:
    """The inverse of a unit quaternion, shape (..., 4)."""
    return torch.cat((q[..., :1], -q[..., 1:]), -1)


def normalise(q: Tensor) -> Tensor:
    """`q` with unit length, shape (..., 4)."""
    return q / q.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-9)


def rotate(q: Tensor, v: Tensor) -> Tensor:
    """Vectors (..., 3) turned by unit quaternions (..., 4)."""
    w, u = q[..., :1], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    t = 2.0 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)


def unrotate(q: Tensor, v: Tensor) -> Tensor:
    """Vectors (..., 3) turned by the inverse of unit quaternions (..., 4)."""
    return rotate(conjugate(q), v)


def heading(q: Tensor) -> Tensor:
    """The unit vector (cos yaw, sin yaw) of the x axis of `q`, shape (..., 2)."""
    w, x, y, z = q.unbind(-1)
    forward = torch.stack((1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)), -1)
    return forward / forward.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-6)


def to_heading(direction: Tensor, v: Tensor) -> Tensor:
    """World vectors (..., 2 or 3) in the frame whose x axis is `direction` (..., 2)."""
    c, s = direction[..., 0], direction[..., 1]
    x, y = v[..., 0], v[..., 1]
    return torch.cat((torch.stack((c * x + s * y, c * y - s * x), -1), v[..., 2:]), -1)


def to_world(direction: Tensor, v: Tensor) -> Tensor:
    """The inverse of `to_heading`."""
    c, s = direction[..., 0], direction[..., 1]
    x, y = v[..., 0], v[..., 1]
    return torch.cat((torch.stack((c * x - s * y, s * x + c * y), -1), v[..., 2:]), -1)


def bearing(v: Tensor) -> Tensor:
    """The angle (rad) of vectors (..., 2 or more) in the x-y plane, shape (...).

    `torch.atan2` is not used: its last bit depends on where in the batch a world stands.
    """
    x, y = v[..., 0], v[..., 1]
    length = (x * x + y * y).sqrt()
    half = torch.atan(y / (length + x.abs()).clamp_min(1e-9))
    behind = torch.where(y < 0.0, -math.pi, math.pi) - 2.0 * half
    return torch.where(x < 0.0, behind, 2.0 * half)


def wrap(angle: Tensor) -> Tensor:
    """An angle in [-pi, pi); by floor, for the reason that `bearing` has."""
    turns = torch.floor(angle * (0.5 / math.pi) + 0.5)
    return angle - 2.0 * math.pi * turns
