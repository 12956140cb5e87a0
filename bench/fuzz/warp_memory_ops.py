"""Operations of Warp other than launches: memory functions, temporaries, and views to and fro."""

from __future__ import annotations

import torch
import warp as wp

from bench.fuzz import kernels
from bench.fuzz.machine import Machine, operation
from bench.fuzz.warp_ops import launch, shortest

__all__: list[str] = []


# --- memory functions ----------------------------------------------------------------------------


@operation(weight=4, native=True)
def copy_array(m: Machine, a: int, b: int) -> None:
    """wp.copy of contiguous or strided arrays that do not overlap."""
    x, y = m.array(a), m.array(b)
    count = shortest(x, y)
    if count and not _overlap(x, y):
        wp.copy(y[:count], x[:count])


@operation(weight=1)
def assign(m: Machine, a: int, b: int) -> None:
    """array.assign."""
    x, y = m.array(a), m.array(b)
    if x.shape == y.shape and not _overlap(x, y):
        y.assign(x)


@operation(weight=3, native=True)
def zero(m: Machine, a: int) -> None:
    """zero_."""
    m.array(a).zero_()


@operation(weight=3, native=True)
def fill(m: Machine, a: int, value: int) -> None:
    """fill_."""
    m.array(a).fill_(0.125 * (value % 9) - 0.5)


@operation(weight=1, native=True)
def fill_points(m: Machine, a: int) -> None:
    """fill_ with a vector."""
    m.point(a).fill_(wp.vec3(0.25, -0.5, 0.75))


@operation(weight=2)
def clone(m: Machine, target: int, a: int) -> None:
    """wp.clone."""
    m.set_array(target, wp.clone(m.array(a)))


@operation(weight=2)
def new_zeros(m: Machine, target: int, count: int) -> None:
    """New memory, which may be that of an array just freed."""
    m.set_array(target, wp.zeros(m.world.size >> (count % 3), dtype=float, device="cpu"))


@operation(weight=3)
def temporary(m: Machine, a: int, b: int) -> None:
    """An array that dies while kernels that use it are still to run."""
    x, y = m.array(a), m.array(b)
    count = shortest(x, y)
    held = wp.empty(count, dtype=float, device="cpu")
    launch(kernels.sine, count, x, held)
    launch(kernels.add_scaled, count, held, y, 0.25)
    del held
    other = wp.full(count, 7.0, dtype=float, device="cpu")
    del other


@operation(weight=3)
def torch_temporary(m: Machine, a: int, b: int) -> None:
    """A tensor that a Warp kernel reads and nobody holds; its memory is taken again at once."""
    x, y = m.vector(a), m.array(b)
    held = x * 0.5
    launch(kernels.add_scaled, min(len(held), y.shape[0]), wp.from_torch(held), y, 0.25)
    del held
    torch.full((len(x),), 9.0)


@operation(weight=2)
def scan(m: Machine, a: int, b: int) -> None:
    """A running sum into a new array, then back."""
    x, y = m.array(a), m.array(b)
    count = shortest(x, y)
    if count and x.is_contiguous and y.is_contiguous and not _overlap(x, y):
        wp.utils.array_scan(x[:count], y[:count], inclusive=bool(a % 2))
        launch(kernels.scale, count, y, y, 0.01)


@operation(weight=1)
def sort_pairs(m: Machine, a: int) -> None:
    """A radix sort of a copy, written back."""
    x = m.array(a)
    count = min(x.shape[0], 512)
    if not count:
        return
    keys = wp.empty(2 * count, dtype=float, device="cpu")
    order = wp.zeros(2 * count, dtype=int, device="cpu")
    wp.copy(keys[:count], x[:count])
    wp.utils.radix_sort_pairs(keys, order, count)
    wp.copy(x[:count], keys[:count])


@operation(weight=1, replay="maybe")
def array_sum(m: Machine, a: int, b: int) -> None:
    """wp.utils.array_sum into an array."""
    x, y = m.array(a), m.array(b)
    if x.shape[0] and y.shape[0] and x.is_contiguous:
        found = wp.zeros(1, dtype=float, device="cpu")
        wp.utils.array_sum(x, out=found)
        launch(kernels.scale, 1, found, y, 0.001)


# --- interop -------------------------------------------------------------------------------------


@operation(weight=4)
def from_torch(m: Machine, target: int, a: int) -> None:
    """A Warp view of a tensor."""
    m.set_array(target, wp.from_torch(m.vector(a)))


@operation(weight=3, replay="maybe")
def to_torch(m: Machine, target: int, a: int) -> None:
    """A tensor view of a Warp array."""
    m.set_vector(target, wp.to_torch(m.array(a)))


@operation(weight=2)
def array_slice(m: Machine, target: int, a: int, start: int, step: int) -> None:
    """A slice of one of the arrays that outlive the call."""
    source = m.world.warp_arrays[a % len(m.world.warp_arrays)]
    begin = (start % 4) * (source.shape[0] // 4)
    m.set_array(target, source[max(0, begin - 1) :: 1 + step % 3])


@operation(weight=1, replay="maybe")
def return_array(m: Machine, a: int) -> None:
    """An array as a part of the function's result; a new one cannot be replayed."""
    m.returned.append(m.array(a))


@operation(weight=1)
def return_known_array(m: Machine, a: int) -> None:
    """An array that outlives the call as a part of the function's result."""
    m.returned.append(m.world.warp_arrays[a % len(m.world.warp_arrays)])


@operation(weight=1)
def table_row(m: Machine, target: int, a: int, row: int) -> None:
    """A row of a table as an array."""
    table = m.table(a)
    if table.shape[0]:
        m.set_array(target, table[row % table.shape[0]])


@operation(weight=1, replay="no")
def array_numpy(m: Machine, a: int) -> None:
    """A NumPy view of a Warp array, through which the host writes."""
    view = m.array(a).numpy()
    m.log.append(repr(view[:4].tolist()))
    if m.array(a).is_contiguous:
        view[:8] = 0.125


def _overlap(x: wp.array, y: wp.array) -> bool:
    def span(array: wp.array) -> tuple[int, int]:
        start = array.ptr or 0
        return start, start + max(0, array.shape[0] - 1) * array.strides[0] + 4

    (a, b), (c, d) = span(x), span(y)
    return a < d and c < b
