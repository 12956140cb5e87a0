"""Small Warp kernels, each with one way of reaching memory (Warp takes none from strings)."""

# In a kernel `int(0)` is a variable and `0` a constant.
# ruff: noqa: UP018, RUF046
from typing import Any

import warp as wp

wp.set_module_options({"enable_backward": False})

TILE = 8


@wp.struct
class Point:
    position: wp.vec3
    mass: float


@wp.struct
class Pair:
    source: wp.array[float]
    target: wp.array[float]


@wp.struct
class Scene:
    mesh: wp.uint64
    offset: wp.vec3


@wp.struct
class Numbers:
    scale: float
    offset: float


@wp.kernel
def plain(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0


@wp.kernel
def write_constant(y: wp.array[float]):
    y[wp.tid()] = 1.0


@wp.kernel
def in_place(x: wp.array[float]):
    i = wp.tid()
    x[i] = x[i] + 1.0


@wp.kernel
def add_assign(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] += x[i]


@wp.kernel
def atomic_sum(x: wp.array[float], total: wp.array[float]):
    wp.atomic_add(total, 0, x[wp.tid()])


@wp.kernel
def atomic_claim(slots: wp.array[int], order: wp.array[int]):
    i = wp.tid()
    order[i] = wp.atomic_add(slots, 0, 1)
    wp.atomic_cas(slots, 1, 0, i)


@wp.func
def fill_row(row: wp.array[float], value: float):
    for j in range(row.shape[0]):
        row[j] = value


@wp.func
def fill_row_deeper(row: wp.array[float], value: float):
    fill_row(row, value + 1.0)


@wp.kernel
def view_written_by_function(x: wp.array[float], grid: wp.array2d[float]):
    i = wp.tid()
    fill_row(grid[i], x[i])


@wp.kernel
def view_written_two_deep(x: wp.array[float], grid: wp.array2d[float]):
    i = wp.tid()
    fill_row_deeper(grid[i], x[i])


@wp.kernel
def slice_is_a_view(x: wp.array[float], y: wp.array[float]):
    part = y[2:4]
    part[wp.tid()] = x[0]


@wp.func
def copy_one(source: wp.array[float], target: wp.array[float], i: int):
    target[i] = source[i]


@wp.kernel
def one_function_two_roles(a: wp.array[float], b: wp.array[float], c: wp.array[float]):
    i = wp.tid()
    copy_one(a, b, i)
    copy_one(b, c, i)


@wp.func
def outputs(x: wp.array[float], i: int):
    return x[i], x[i] + 1.0


@wp.kernel
def several_results(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    first, second = outputs(x, i)
    y[i] = first
    z[i] = second


@wp.kernel
def shape_only(x: wp.array2d[float], y: wp.array[int]):
    y[wp.tid()] = x.shape[0] * x.shape[1] + len(x)


@wp.kernel
def null_check_only(x: wp.array[float], y: wp.array[int]):
    if x:
        y[wp.tid()] = 1


@wp.kernel
def unused_argument(x: wp.array[float], y: wp.array[float], scale: float):
    y[wp.tid()] = scale


@wp.func
def ignores_one(used: wp.array[float], unused: wp.array[float], i: int):
    return used[i]


@wp.kernel
def unused_by_function(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = ignores_one(x, y, i)


@wp.kernel
def branch_picks_array(a: wp.array[float], b: wp.array[float], flag: int):
    i = wp.tid()
    chosen = a
    if flag > 0:
        chosen = b
    chosen[i] = 3.0


@wp.kernel
def branch_picks_source(a: wp.array[float], b: wp.array[float], y: wp.array[float], flag: int):
    i = wp.tid()
    y[i] = wp.where(flag > 0, a, b)[i]


@wp.kernel
def loop_swaps_arrays(a: wp.array[float], b: wp.array[float], steps: int):
    i = wp.tid()
    front = a
    back = b
    for _step in range(steps):
        back[i] = 4.0
        kept = front
        front = back
        back = kept


@wp.func
def pick(a: wp.array[float], b: wp.array[float], flag: int):
    return wp.where(flag > 0, a, b)


@wp.kernel
def function_returns_array(a: wp.array[float], b: wp.array[float], flag: int):
    chosen = pick(a, b, flag)
    chosen[wp.tid()] = 5.0


@wp.kernel
def struct_with_arrays(pair: Pair, y: wp.array[float]):
    i = wp.tid()
    pair.target[i] = pair.source[i]
    y[i] = 0.0


@wp.kernel
def struct_arrays_unused(pair: Pair, y: wp.array[float]):
    y[wp.tid()] = 0.0


@wp.kernel
def struct_with_a_handle(scene: Scene, y: wp.array[float]):
    query = wp.mesh_query_point(scene.mesh, scene.offset, 1.0e6)
    if query.result:
        y[wp.tid()] = query.u


@wp.kernel
def struct_in_array_with_arrays(pairs: wp.array[Pair], y: wp.array[float]):
    i = wp.tid()
    y[i] = pairs[i].source[0]


@wp.kernel
def struct_in_array_writes_through(pairs: wp.array[Pair], x: wp.array[float]):
    i = wp.tid()
    pairs[i].target[0] = x[i]


@wp.kernel
def struct_of_numbers(numbers: Numbers, x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * numbers.scale + numbers.offset


@wp.kernel
def local_struct_of_arrays(a: wp.array[float], b: wp.array[float]):
    pair = Pair()
    pair.source = a
    pair.target = b
    i = wp.tid()
    pair.target[i] = 1.0


@wp.kernel
def indexed(x: wp.indexedarray[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]


@wp.kernel
def component_of_vector(y: wp.array[wp.vec3], x: wp.array[float]):
    i = wp.tid()
    y[i][0] = x[i]


@wp.kernel
def component_of_matrix(y: wp.array[wp.mat22], x: wp.array[float]):
    i = wp.tid()
    y[i][0, 1] += x[i]


@wp.kernel
def field_of_struct(points: wp.array[Point], x: wp.array[float]):
    i = wp.tid()
    points[i].mass = x[i]


@wp.kernel
def field_of_struct_read(points: wp.array[Point], y: wp.array[float]):
    i = wp.tid()
    y[i] = points[i].position[1]


@wp.kernel
def array_from_address(address: wp.uint64, y: wp.array[float]):
    i = wp.tid()
    hidden = wp.array(ptr=address, shape=(4,), dtype=float)
    y[i] = hidden[i]


@wp.kernel
def address_taken(x: wp.array[float], y: wp.array[wp.uint64]):
    y[0] = x.ptr


@wp.kernel
def generic(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] + x[i]


@wp.kernel
def reads_sorted(x: wp.array[float], y: wp.array[int]):
    y[wp.tid()] = wp.lower_bound(x, 2.0)


@wp.kernel
def prints(x: wp.array[float]):
    wp.print(x[wp.tid()])


@wp.func_native("target.data[i] = source.data[i];")
def native_copy(source: wp.array[float], target: wp.array[float], i: int): ...


@wp.kernel
def native_snippet(a: wp.array[float], b: wp.array[float]):
    native_copy(a, b, wp.tid())


@wp.func
def set_to(place: wp.ref[float], value: float):
    place = value  # noqa: F841 (assigns through the reference)


@wp.kernel
def written_through_reference(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    set_to(y[i], x[i])


@wp.kernel
def static_condition(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    if wp.static(TILE > 4):
        y[i] = x[i]
    else:
        z[i] = x[i]


@wp.kernel
def mesh_query(mesh: wp.uint64, x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, x[i], 1.0e6)
    if query.result:
        y[i] = query.u


@wp.kernel
def mesh_query_by_array(meshes: wp.array[wp.uint64], x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(meshes[i], x[i], 1.0e6)
    if query.result:
        y[i] = query.u


@wp.kernel
def bvh_query(bvh: wp.uint64, y: wp.array[int]):
    found = int(0)
    hit = int(0)
    query = wp.bvh_query_aabb(bvh, wp.vec3(0.0), wp.vec3(1.0))
    while wp.bvh_query_next(query, hit):
        found += 1
    y[wp.tid()] = found


@wp.kernel
def grid_query(grid: wp.uint64, x: wp.array[wp.vec3], y: wp.array[int]):
    i = wp.tid()
    found = int(0)
    for _near in wp.hash_grid_query(grid, x[i], 1.0):
        found += 1
    y[i] = found


@wp.kernel
def number_of_64_bits(seed: wp.uint64, y: wp.array[wp.uint64]):
    i = wp.tid()
    y[i] = (seed * wp.uint64(3)) ^ wp.uint64(i)


@wp.kernel(module="unique", enable_backward=False)
def tile_copy(x: wp.array[float], y: wp.array[float]):
    loaded = wp.tile_load(x, shape=TILE)
    wp.tile_store(y, loaded)


@wp.kernel(module="unique", enable_backward=False)
def tile_atomic(x: wp.array[float], total: wp.array[float]):
    loaded = wp.tile_load(x, shape=TILE)
    wp.tile_atomic_add(total, wp.tile_sum(loaded))


@wp.kernel(module="unique", enable_backward=False)
def tile_product(a: wp.array2d[float], b: wp.array2d[float], c: wp.array2d[float]):
    left = wp.tile_load(a, shape=(TILE, TILE))
    right = wp.tile_load(b, shape=(TILE, TILE))
    product = wp.tile_zeros(shape=(TILE, TILE), dtype=float)
    wp.tile_matmul(left, right, product)
    wp.tile_store(c, product)


def make_closure(writes_first: bool):
    """Two kernels of one name that differ in what they write."""
    if writes_first:

        @wp.kernel(module="unique", enable_backward=False)
        def closure(a: wp.array[float], b: wp.array[float]):
            a[wp.tid()] = 1.0

    else:

        @wp.kernel(module="unique", enable_backward=False)
        def closure(a: wp.array[float], b: wp.array[float]):
            b[wp.tid()] = 1.0

    return closure


def make_static(first: bool):
    """Two kernels of one text that differ in a captured constant."""

    @wp.kernel(module="unique", enable_backward=False)
    def static_closure(a: wp.array[float], b: wp.array[float]):
        i = wp.tid()
        if wp.static(first):
            a[i] = 1.0
        else:
            b[i] = 1.0

    return static_closure
