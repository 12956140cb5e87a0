"""Tile kernels, and one without tiles in the same Warp module.

All kernels of a module that uses tiles keep a pointer in a static variable.
"""

# ruff: noqa: D103
import warp as wp

wp.set_module_options({"enable_backward": False})

TILE = 64


@wp.kernel
def tile_scale(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    loaded = wp.tile_load(x, shape=TILE, offset=i * TILE, storage="shared")
    wp.tile_store(y, loaded * 0.5, offset=i * TILE)


@wp.kernel
def tile_total(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    loaded = wp.tile_load(x, shape=TILE, offset=i * TILE)
    wp.tile_atomic_add(y, wp.tile_sum(loaded) * 0.001)


@wp.kernel
def beside_tiles(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 0.5 * y[i] + 0.5 * x[i]
