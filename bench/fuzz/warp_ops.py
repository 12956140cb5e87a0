"""Operations that Warp launches: plain, tiled, recorded, with structs, and refused ones."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from bench.fuzz import kernels, tiles
from bench.fuzz.machine import Machine, operation

__all__ = ["launch", "shortest"]


def launch(kernel: Any, dim: Any, *inputs: Any) -> None:
    """Launches on the CPU."""
    wp.launch(kernel, dim=dim, inputs=list(inputs), device="cpu")


def shortest(*arrays: Any) -> int:
    """The length that all arrays have."""
    return min(array.shape[0] for array in arrays)


# --- launches ------------------------------------------------------------------------------------


@operation(weight=5, native=True)
def scale(m: Machine, a: int, b: int, factor: int) -> None:
    """y = x * number."""
    x, y = m.array(a), m.array(b)
    launch(kernels.scale, shortest(x, y), x, y, 0.25 + 0.125 * (factor % 5))


@operation(weight=5, native=True)
def add_scaled(m: Machine, a: int, b: int, factor: int) -> None:
    """y += x * number."""
    x, y = m.array(a), m.array(b)
    launch(kernels.add_scaled, shortest(x, y), x, y, 0.125 * (factor % 5) - 0.25)


@operation(weight=5, native=True)
def sine(m: Machine, a: int, b: int) -> None:
    """A slow elementwise kernel."""
    x, y = m.array(a), m.array(b)
    launch(kernels.sine, shortest(x, y), x, y)


@operation(weight=3, native=True)
def shift(m: Machine, a: int, b: int) -> None:
    """Neighbours; in place if both are one array."""
    x, y = m.array(a), m.array(b)
    launch(kernels.shift, shortest(x, y), x, y)


@operation(weight=2, native=True)
def backwards(m: Machine, a: int, b: int) -> None:
    """Reversal."""
    x, y = m.array(a), m.array(b)
    launch(kernels.backwards, shortest(x, y), x, y)


@operation(weight=3, native=True)
def smooth(m: Machine, a: int, b: int) -> None:
    """A stencil."""
    x, y = m.array(a), m.array(b)
    launch(kernels.smooth, shortest(x, y), x, y)


@operation(weight=3, native=True)
def half_launch(m: Machine, a: int, b: int) -> None:
    """A launch over the first half only."""
    x, y = m.array(a), m.array(b)
    launch(kernels.scale, shortest(x, y) // 2, x, y, 0.5)


@operation(weight=2, native=True)
def empty_launch(m: Machine, a: int) -> None:
    """A launch of no thread."""
    launch(kernels.clamp, 0, m.array(a))


@operation(weight=3, native=True)
def scatter(m: Machine, a: int, b: int, how: int) -> None:
    """Stores, adds or takes the maximum through repeated indices, or gathers."""
    x, y = m.array(a), m.array(b)
    index = wp.from_torch(m.world.index)
    kernel = (kernels.scatter, kernels.scatter_add, kernels.scatter_max)[how % 3]
    if y.shape[0]:
        launch(kernel, shortest(x, index), x, index, y)


@operation(weight=3)
def gather(m: Machine, a: int, b: int, index: int) -> None:
    """Reads through indices."""
    x, y = m.array(a), m.array(b)
    places = wp.from_torch(m.index(index))
    if x.shape[0]:
        launch(kernels.gather, shortest(places, y), x, places, y)


@operation(weight=2, native=True)
def total(m: Machine, a: int, b: int) -> None:
    """An atomic sum into one element."""
    x, y = m.array(a), m.array(b)
    if y.shape[0]:
        launch(kernels.total, x.shape[0], x, y)


@operation(weight=1)
def claim(m: Machine, a: int) -> None:
    """Atomics whose results are used."""
    index = wp.from_torch(m.world.index)
    order = wp.from_torch(m.index(a))
    launch(kernels.claim, shortest(index, order), index, order)


@operation(weight=1)
def remix(m: Machine, a: int, factor: int) -> None:
    """Integers in place."""
    index = m.index(a)
    launch(kernels.remix, len(index), wp.from_torch(index), 1 + factor % 5)


@operation(weight=2, native=True)
def row_sum(m: Machine, a: int, b: int) -> None:
    """Sums of rows."""
    grid, y = m.table(a), m.array(b)
    launch(kernels.row_sum, shortest(grid, y), grid, y)


@operation(weight=2, native=True)
def fill_rows(m: Machine, a: int, b: int) -> None:
    """Rows written through views in a function."""
    x, grid = m.array(a), m.table(b)
    launch(kernels.fill_rows, shortest(x, grid), x, grid)


@operation(weight=2, native=True)
def outer(m: Machine, a: int, b: int, target: int) -> None:
    """A two-dimensional launch."""
    x, y, grid = m.array(a), m.array(b), m.table(target)
    dim = (min(x.shape[0], grid.shape[0]), min(y.shape[0], grid.shape[1]))
    launch(kernels.outer, dim, x, y, grid)


@operation(weight=3, native=True)
def blend(m: Machine, a: int, b: int) -> None:
    """Two grids that may be columns of one."""
    first, second = m.table(a), m.table(b)
    dim = tuple(min(p, q) for p, q in zip(first.shape, second.shape, strict=True))
    launch(kernels.blend, dim, first, second)


@operation(weight=2, native=True)
def set_column(m: Machine, a: int, b: int, column: int) -> None:
    """Writes one column."""
    x, grid = m.array(a), m.table(b)
    launch(kernels.set_column, shortest(x, grid), x, grid, column % 8)


@operation(weight=2, native=True)
def points(m: Machine, a: int, b: int, how: int) -> None:
    """Vectors of three numbers: normalised, packed, unpacked, changed in one component."""
    x, vectors = m.array(a), m.point(b)
    count = shortest(x, vectors)
    if how % 4 == 0:
        launch(kernels.normalise, vectors.shape[0], vectors)
    elif how % 4 == 1:
        launch(kernels.pack, count, x, vectors)
    elif how % 4 == 2:
        launch(kernels.unpack, count, vectors, x, how % 3)
    else:
        launch(kernels.set_component, count, x, vectors)


@operation(weight=2)
def struct_of_numbers(m: Machine, a: int, b: int, factor: int) -> None:
    """A struct argument without arrays, changed after the launch."""
    x, y = m.array(a), m.array(b)
    numbers = kernels.Numbers()
    numbers.scale, numbers.offset = 0.25 * (factor % 4), 0.125
    launch(kernels.with_numbers, shortest(x, y), numbers, x, y)
    numbers.scale = 100.0


@operation(weight=2)
def struct_of_arrays(m: Machine, a: int, b: int) -> None:
    """A struct argument that holds arrays, pointed elsewhere after the launch."""
    x, y = m.array(a), m.array(b)
    pair = kernels.Pair()
    pair.source, pair.target = x, y
    launch(kernels.with_pair, shortest(x, y), pair, 0.5)
    pair.target = x


@operation(weight=2, native=True)
def pick(m: Machine, a: int, b: int, flag: int) -> None:
    """A kernel that picks the array it writes."""
    x, y = m.array(a), m.array(b)
    launch(kernels.pick, shortest(x, y), x, y, flag % 2)


@operation(weight=2, native=True)
def draw(m: Machine, a: int, seed: int) -> None:
    """Warp's random numbers."""
    launch(kernels.draw, m.array(a).shape[0], seed, m.array(a))


@operation(weight=16, native=True)
def iterate(m: Machine, a: int, steps: int) -> None:
    """A slow kernel in place."""
    x = m.array(a)
    launch(kernels.iterate, x.shape[0], x, (1 + steps % 8) * 70_000 // max(512, x.shape[0]))


@operation(weight=2, native=True)
def exchange(m: Machine, a: int, b: int) -> None:
    """Swaps the contents of two arrays."""
    x, y = m.array(a), m.array(b)
    launch(kernels.exchange, shortest(x, y), x, y)


@operation(weight=1, native=True)
def denormal(m: Machine, a: int, b: int) -> None:
    """Numbers that the processor's mode may flush to zero."""
    x, y = m.array(a), m.array(b)
    launch(kernels.denormal, shortest(x, y), x, y)


@operation(weight=1, native=True)
def generic(m: Machine, a: int, b: int) -> None:
    """An overload of a generic kernel."""
    x, y = m.array(a), m.array(b)
    launch(kernels.double_it, shortest(x, y), x, y)
    launch(kernels.clamp, y.shape[0], y)


@operation(weight=1)
def indexed(m: Machine, a: int, b: int, index: int) -> None:
    """An indexed array."""
    x, y = m.array(a), m.array(b)
    if x.shape[0] and x.is_contiguous:
        places = m.index(index)[:64].contiguous().remainder(x.shape[0]).to(torch.int32)
        view = wp.indexedarray(x, [wp.from_torch(places)])
        launch(kernels.indexed, shortest(view, y), view, y)


@operation(weight=3, native=True)
def tile(m: Machine, a: int, b: int, how: int) -> None:
    """Tile kernels, and one without tiles of the same module."""
    x, y = m.array(a), m.array(b)
    count = shortest(x, y)
    if how % 3 == 2:
        launch(tiles.beside_tiles, count, x, y)
    elif count >= tiles.TILE and x.is_contiguous and y.is_contiguous:
        kernel = (tiles.tile_scale, tiles.tile_total)[how % 3]
        dim = count // tiles.TILE
        wp.launch_tiled(kernel, dim=[dim], inputs=[x, y], block_dim=64, device="cpu")


@operation(weight=2)
def recorded_launch(m: Machine, a: int, b: int, times: int) -> None:
    """A recorded launch whose parameters change between its runs."""
    x, y = m.array(a), m.array(b)
    command = wp.launch(
        kernels.add_scaled,
        dim=shortest(x, y),
        inputs=[x, y, 0.25],
        device="cpu",
        record_cmd=True,
    )
    for run in range(1 + times % 3):
        command.set_param_at_index(2, 0.125 * run)
        command.launch()
    command.set_param_at_index(2, 100.0)


@operation(weight=1)
def refused_launch(m: Machine, a: int) -> None:
    """A launch that Warp refuses."""
    try:
        launch(kernels.clamp, 4, m.table(a))
    except RuntimeError as error:
        m.log.append(str(error).partition(":")[0])
