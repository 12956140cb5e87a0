"""Warp kernels of the semantics and hazard tests, in one module so that it compiles once."""

import warp as wp

wp.config.quiet = True
wp.init()
wp.set_module_options({"enable_backward": False})


@wp.struct
class Holder:
    data: wp.array[float]


@wp.kernel
def fill(x: wp.array[float], value: float):
    x[wp.tid()] = value


@wp.kernel
def add(x: wp.array[float], value: float):
    i = wp.tid()
    x[i] = x[i] + value


@wp.kernel
def add2d(x: wp.array2d[float], value: float):
    i, j = wp.tid()
    x[i, j] = x[i, j] + value


@wp.kernel
def scale_into(x: wp.array[float], factor: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def count_up(total: wp.array[float]):
    wp.tid()
    wp.atomic_add(total, 0, 1.0)


@wp.kernel
def store_at(indices: wp.array[int], values: wp.array[float], x: wp.array[float]):
    i = wp.tid()
    x[indices[i]] = values[i]


@wp.kernel
def fill_held(holder: Holder, value: float):
    holder.data[wp.tid()] = value


@wp.kernel
def denormal(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 0.5


@wp.kernel
def scalars(a: float, b: wp.vec3, c: wp.int16, y: wp.array[float]):
    y[0] = a
    y[1] = b[0]
    y[2] = b[1]
    y[3] = b[2]
    y[4] = float(c)


@wp.kernel
def step_down(x: wp.array[float], y: wp.array[float], left: wp.array[int]):
    i = wp.tid()
    y[i] = x[i] * 2.0 + 1.0
    if i == 0:
        left[0] = left[0] - 1


@wp.kernel
def bernoulli(seed: int, y: wp.array[float]):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    y[i] = wp.randf(state)
