"""Warp kernels of the runtime tests, in one module so that it compiles once."""

from typing import Any

import warp as wp

wp.config.quiet = True
wp.init()
GAIN = 2.0  # what a module of settings would hold

wp.set_module_options({"enable_backward": False})


@wp.struct
class Pair:
    x: wp.array[float]
    factor: float


@wp.struct
class Settings:
    scale: float
    offset: float


@wp.kernel
def fill(x: wp.array[float], value: float):
    x[wp.tid()] = value


@wp.kernel
def add(x: wp.array[float], value: float):
    i = wp.tid()
    x[i] = x[i] + value


@wp.kernel
def scale(x: wp.array[float], factor: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def sum_of_two(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = x[i] + y[i]


@wp.kernel
def halve_until(x: wp.array[float], limit: float, going: wp.array[int]):
    x[0] = x[0] * 0.5
    if x[0] <= limit:
        going[0] = 0


@wp.kernel
def restart(x: wp.array[float], limit: float, going: wp.array[int]):
    if x[0] > limit:
        going[0] = 1
    else:
        going[0] = 0


@wp.kernel
def count_down(left: wp.array[int]):
    left[0] = left[0] - 1


@wp.kernel
def set_int(x: wp.array[int], value: int):
    x[0] = value


@wp.kernel
def floats(a: float, b: wp.float64, y: wp.array[wp.float64]):
    y[0] = wp.float64(a)
    y[1] = b


@wp.kernel
def integers(a: int, b: wp.int8, c: wp.uint8, d: wp.int64, e: wp.uint64, y: wp.array[wp.int64]):
    y[0] = wp.int64(a)
    y[1] = wp.int64(b)
    y[2] = wp.int64(c)
    y[3] = d
    y[4] = wp.int64(e)


@wp.kernel
def booleans(a: bool, b: bool, y: wp.array[int]):
    if a:
        y[0] = 1
    if b:
        y[1] = 1


@wp.kernel
def composites(v: wp.vec3, m: wp.mat22, t: wp.transform, y: wp.array[float]):
    p = wp.transform_get_translation(t)
    y[0] = v[0] + v[1] * 10.0 + v[2] * 100.0
    y[1] = m[0, 0] + m[0, 1] * 10.0 + m[1, 0] * 100.0 + m[1, 1] * 1000.0
    y[2] = p[0] + p[1] * 10.0 + p[2] * 100.0


@wp.kernel
def optional(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x:
        y[i] = x[i]
    else:
        y[i] = -1.0


@wp.kernel
def norms(x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.length(x[i])


@wp.kernel
def double_2d(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    y[i, j] = x[i, j] * 2.0


@wp.kernel(module="unique", enable_backward=False)
def generic_scale(x: wp.array[Any], factor: Any, y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def with_settings(settings: Settings, x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * settings.scale + settings.offset


@wp.kernel
def tag_with_thread(y: wp.array3d[int]):
    i, j, k = wp.tid()
    y[i, j, k] = 100 * i + 10 * j + k


@wp.kernel
def count_threads(y: wp.array[int]):
    i = wp.tid()
    wp.atomic_add(y, i, 1)
