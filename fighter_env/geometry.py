"""Distances between segments, spheres and capsules, as Warp functions.

Shared by sight and scoring; a sphere is a capsule whose two ends are one point.
"""

from __future__ import annotations

import warp as wp

__all__ = ["read_quat", "read_vec3", "segment_distance"]

wp.set_module_options({"enable_backward": False})


@wp.func
def read_vec3(values: wp.array2d[float], world: int, at: int) -> wp.vec3:
    """Three neighbouring values as a vector."""
    return wp.vec3(values[world, at], values[world, at + 1], values[world, at + 2])


@wp.func
def read_quat(values: wp.array2d[float], world: int, at: int) -> wp.quat:
    """Four neighbouring values (w, x, y, z) as a quaternion."""
    return wp.quat(
        values[world, at + 1], values[world, at + 2], values[world, at + 3], values[world, at]
    )


@wp.func
def segment_distance(a0: wp.vec3, a1: wp.vec3, b0: wp.vec3, b1: wp.vec3) -> float:
    """Smallest distance of two segments (Ericson, Real-Time Collision Detection, 5.1.9)."""
    u = a1 - a0
    v = b1 - b0
    w = a0 - b0
    a = wp.dot(u, u)
    e = wp.dot(v, v)
    f = wp.dot(v, w)
    s = wp.float32(0.0)
    t = wp.float32(0.0)
    if a <= 1.0e-12 and e <= 1.0e-12:
        return wp.length(w)
    if a <= 1.0e-12:
        t = wp.clamp(f / e, 0.0, 1.0)
    else:
        c = wp.dot(u, w)
        if e <= 1.0e-12:
            s = wp.clamp(-c / a, 0.0, 1.0)
        else:
            b = wp.dot(u, v)
            area = a * e - b * b
            if area > 1.0e-12:
                s = wp.clamp((b * f - c * e) / area, 0.0, 1.0)
            t = (b * s + f) / e
            if t < 0.0:
                t = 0.0
                s = wp.clamp(-c / a, 0.0, 1.0)
            elif t > 1.0:
                t = 1.0
                s = wp.clamp((b - c) / a, 0.0, 1.0)
    return wp.length(w + u * s - v * t)
