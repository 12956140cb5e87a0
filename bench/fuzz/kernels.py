"""The Warp kernels that random programs are made of (Warp takes none from strings).

Each one stays inside its arrays for any shapes, and gives the same bytes each time it runs alone:
Warp runs the threads of a CPU launch one after the other.
"""

# In a kernel `int(0)` is a variable and `0` a constant.
# ruff: noqa: UP018, RUF046, D103
from typing import Any

import warp as wp

wp.set_module_options({"enable_backward": False})


@wp.struct
class Numbers:
    """A struct without arrays."""

    scale: float
    offset: float


@wp.struct
class Pair:
    """A struct with arrays."""

    source: wp.array[float]
    target: wp.array[float]


@wp.kernel
def scale(x: wp.array[float], y: wp.array[float], factor: float):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def add_scaled(x: wp.array[float], y: wp.array[float], factor: float):
    i = wp.tid()
    y[i] += x[i] * factor


@wp.kernel
def sine(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i] + 0.25)


@wp.kernel
def shift(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[(i + 1) % x.shape[0]]


@wp.kernel
def backwards(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[x.shape[0] - 1 - i]


@wp.kernel
def smooth(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    left = x[wp.max(i - 1, 0)]
    right = x[wp.min(i + 1, x.shape[0] - 1)]
    y[i] = 0.25 * left + 0.5 * x[i] + 0.25 * right


@wp.kernel
def gather(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[index[i] % x.shape[0]]


@wp.kernel
def scatter(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[index[i] % y.shape[0]] = x[i]


@wp.kernel
def scatter_add(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i] % y.shape[0], x[i] * 0.125)


@wp.kernel
def scatter_max(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_max(y, index[i] % y.shape[0], x[i])


@wp.kernel
def total(x: wp.array[float], y: wp.array[float]):
    wp.atomic_add(y, 0, x[wp.tid()] * 0.001)


@wp.kernel
def claim(index: wp.array[int], order: wp.array[int]):
    i = wp.tid()
    slot = index[i] % order.shape[0]
    order[i] = wp.abs(wp.atomic_add(order, slot, 1)) % 65536


@wp.kernel
def remix(index: wp.array[int], factor: int):
    i = wp.tid()
    index[i] = (wp.abs(index[i]) * factor + i) % 65536


@wp.kernel
def row_sum(grid: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    value = float(0.0)
    for j in range(grid.shape[1]):
        value += grid[i, j]
    y[i] = value * 0.25


@wp.func
def fill_row(row: wp.array[float], value: float):
    for j in range(row.shape[0]):
        row[j] = value + float(j)


@wp.kernel
def fill_rows(x: wp.array[float], grid: wp.array2d[float]):
    i = wp.tid()
    fill_row(grid[i], x[i] * 0.5)


@wp.kernel
def outer(x: wp.array[float], y: wp.array[float], grid: wp.array2d[float]):
    i, j = wp.tid()
    grid[i, j] = x[i] * y[j]


@wp.kernel
def blend(a: wp.array2d[float], b: wp.array2d[float]):
    i, j = wp.tid()
    b[i, j] = 0.5 * b[i, j] + 0.25 * a[i, j]


@wp.kernel
def set_column(x: wp.array[float], grid: wp.array2d[float], column: int):
    i = wp.tid()
    grid[i, column % grid.shape[1]] = x[i]


@wp.kernel
def normalise(points: wp.array[wp.vec3]):
    i = wp.tid()
    points[i] = wp.normalize(points[i] + wp.vec3(0.0, 0.5, 0.0))


@wp.kernel
def pack(x: wp.array[float], points: wp.array[wp.vec3]):
    i = wp.tid()
    points[i] = wp.vec3(x[i], 0.5 * x[i], 1.0)


@wp.kernel
def unpack(points: wp.array[wp.vec3], x: wp.array[float], component: int):
    i = wp.tid()
    x[i] = points[i][component % 3]


@wp.kernel
def set_component(x: wp.array[float], points: wp.array[wp.vec3]):
    i = wp.tid()
    points[i][1] = x[i]


@wp.kernel
def with_numbers(numbers: Numbers, x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * numbers.scale + numbers.offset


@wp.kernel
def with_pair(pair: Pair, factor: float):
    i = wp.tid()
    pair.target[i] = pair.source[i] * factor


@wp.kernel
def pick(a: wp.array[float], b: wp.array[float], flag: int):
    i = wp.tid()
    chosen = a
    if flag > 0:
        chosen = b
    chosen[i] = chosen[i] * 0.5 + 0.125


@wp.kernel
def clamp(x: wp.array[float]):
    i = wp.tid()
    x[i] = wp.clamp(x[i], -0.75, 0.75)


@wp.kernel
def draw(seed: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.randf(wp.rand_init(seed, i))


@wp.kernel
def iterate(x: wp.array[float], steps: int):
    i = wp.tid()
    value = x[i]
    for _step in range(steps):
        value = 0.5 * value * value - 0.25
    x[i] = value


@wp.kernel
def exchange(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    kept = x[i]
    x[i] = y[i]
    y[i] = kept


@wp.kernel
def denormal(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 1.0e-38 * 0.125


@wp.kernel
def double_it(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] + x[i]


@wp.kernel
def indexed(x: wp.indexedarray[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 0.5


@wp.kernel
def countdown(counter: wp.array[int]):
    counter[0] = counter[0] - 1


@wp.kernel
def start_counter(counter: wp.array[int], x: wp.array[float], most: int):
    count = int(0)
    if x.shape[0] > 0:
        count = int(wp.abs(x[0]) * 1000.0)
    counter[0] = wp.abs(count) % (most + 1)
