"""A tile kernel and a plain kernel in one module: Warp's tiles live in a static of the module."""

import warp as wp

wp.config.quiet = True
wp.init()
wp.set_module_options({"enable_backward": False})

TILE = 16


@wp.kernel
def tile_double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x, shape=TILE, offset=i * TILE)
    wp.tile_store(y, tile + tile, offset=i * TILE)


@wp.kernel
def plain_double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0
