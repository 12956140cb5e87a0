"""Operations that PyTorch runs: in place, out of place, on views, random, and read by the host."""

from __future__ import annotations

import pickle

import torch

from bench.fuzz.machine import Machine, operation

__all__: list[str] = []


# --- views ---------------------------------------------------------------------------------------


@operation(weight=4)
def view_slice(m: Machine, target: int, base: int, start: int, step: int) -> None:
    """A slice that may overlap another one by one element, or interleave with it."""
    source = m.world.torch_arrays[base % 2]
    begin = (start % 4) * (len(source) // 4)
    m.set_vector(target, source[max(0, begin - 1) :: 1 + step % 3])


@operation(weight=2)
def view_column(m: Machine, target: int, grid: int, column: int) -> None:
    """One column of a grid: strided, beside its neighbours."""
    source = m.grid(grid)
    m.set_vector(target, source[:, column % source.shape[1]])


@operation(weight=2)
def view_columns(m: Machine, target: int, grid: int, start: int) -> None:
    """Some columns of a grid."""
    source = m.grid(grid)
    begin = start % source.shape[1]
    m.set_grid(target, source[:, begin : begin + 3])


@operation(weight=1)
def view_rows(m: Machine, target: int, grid: int, start: int) -> None:
    """Some rows of a grid."""
    source = m.grid(grid)
    m.set_grid(target, source[start % 3 :: 2] if len(source) > 8 else source)


@operation(weight=1)
def view_flat(m: Machine, target: int, base: int) -> None:
    """A vector as a grid on the same memory."""
    source = m.world.torch_arrays[base % 2]
    m.set_grid(target, source.view(-1, 8))


@operation(weight=1)
def empty_view(m: Machine, target: int, base: int) -> None:
    """A slice of no element."""
    m.set_vector(target, m.world.torch_arrays[base % 2][3:3])


# --- in place ------------------------------------------------------------------------------------


@operation(weight=4)
def add_in_place(m: Machine, a: int, b: int) -> None:
    """y += x / 2 on vectors that may overlap wholly or not at all."""
    x, y = m.vector_pair(a, b)
    y.add_(x.clone() if _share(x, y) else x, alpha=0.5)


@operation(weight=3)
def scale_in_place(m: Machine, a: int, factor: int) -> None:
    """x *= a number."""
    m.vector(a).mul_(0.25 + 0.125 * (factor % 5))


@operation(weight=2)
def scale_by_setting(m: Machine, a: int) -> None:
    """x *= a host value that may be another one in the next call."""
    m.vector(a).mul_(m.world.settings.scale)


@operation(weight=2)
def branch_on_setting(m: Machine, a: int) -> None:
    """A Python branch on a host value."""
    if m.world.settings.flag % 2:
        m.vector(a).add_(0.25)
    else:
        m.vector(a).neg_()


@operation(weight=2)
def copy_vector(m: Machine, a: int, b: int) -> None:
    """Copies one vector over another."""
    x, y = m.vector_pair(a, b)
    y.copy_(x.clone() if _share(x, y) else x)


@operation(weight=2)
def assign_slice(m: Machine, a: int, b: int, start: int) -> None:
    """x[i:j] = y[...]."""
    x, y = m.vector_pair(a, b)
    begin = (start % 4) * (len(x) // 4)
    part = x[begin : begin + len(x) // 4].clone()
    y[begin : begin + len(part)] = part


@operation(weight=2)
def zero_vector(m: Machine, a: int) -> None:
    """Zeroes a vector."""
    m.vector(a).zero_()


@operation(weight=2)
def fill_vector(m: Machine, a: int, value: int) -> None:
    """Fills a vector with a number."""
    m.vector(a).fill_(0.125 * (value % 7))


@operation(weight=2)
def clamp_grid(m: Machine, a: int) -> None:
    """Clamps a grid in place."""
    m.grid(a).clamp_(-0.5, 0.5)


@operation(weight=2)
def add_grids(m: Machine, a: int, b: int) -> None:
    """Adds the sum of one grid's columns to another grid."""
    m.grid(b).add_(m.grid(a).sum() * 0.001)


@operation(weight=1)
def masked_fill(m: Machine, a: int, b: int) -> None:
    """Fills where another vector is positive."""
    x, y = m.vector_pair(a, b)
    y.masked_fill_(x > 0.25, 0.5)


@operation(weight=2)
def put_repeated(m: Machine, a: int, b: int, index: int) -> None:
    """Stores through repeated indices: the last one stays."""
    x, y = m.vector_pair(a, b)
    places = m.index(index)[: min(64, len(x))].long() % max(1, len(y))
    y.index_put_((places,), x[: len(places)].clone())


@operation(weight=2)
def add_repeated(m: Machine, a: int, b: int, index: int) -> None:
    """Adds through repeated indices."""
    x, y = m.vector_pair(a, b)
    places = m.index(index)[: len(x)].long() % max(1, len(y))
    y.index_add_(0, places, x[: len(places)].clone(), alpha=0.125)


@operation(weight=1)
def scatter_repeated(m: Machine, a: int, b: int, index: int) -> None:
    """scatter_ through repeated indices."""
    x, y = m.vector_pair(a, b)
    places = m.index(index)[: min(32, len(x))].long() % max(1, len(y))
    y.scatter_(0, places, x[: len(places)].clone())


@operation(weight=1)
def copy_in_one_base(m: Machine, base: int) -> None:
    """Column shift inside one array, whose order is the order of memory."""
    grid = m.world.torch_arrays[base % 2].view(-1, 8)
    grid[:, 4:8] = grid[:, 0:4]


# --- out of place --------------------------------------------------------------------------------


@operation(weight=3)
def combine(m: Machine, target: int, a: int, b: int) -> None:
    """A new vector from two."""
    x, y = m.vector_pair(a, b)
    m.set_vector(target, torch.where(x > 0, x * 0.5, y))


@operation(weight=2)
def short_lived(m: Machine, a: int, b: int) -> None:
    """Temporaries whose memory is free again at once, and is filled with something else."""
    x, y = m.vector_pair(a, b)
    first = x * 0.5 + 1.0
    second = first * first
    del first
    torch.full_like(x, -1.0)
    y.copy_(second * 0.125)


@operation(weight=1)
def cumulative(m: Machine, target: int, a: int) -> None:
    """A running sum, scaled."""
    m.set_vector(target, m.vector(a).cumsum(0) * 0.001)


@operation(weight=1)
def sort_vector(m: Machine, target: int, a: int) -> None:
    """A sorted copy."""
    m.set_vector(target, m.vector(a).sort().values)


@operation(weight=1)
def cat_halves(m: Machine, target: int, a: int, b: int) -> None:
    """Two vectors one after the other, in reverse."""
    x, y = m.vector_pair(a, b)
    m.set_vector(target, torch.cat([x[: len(x) // 2], y[len(y) // 2 :]]).flip(0))


@operation(weight=2)
def product(m: Machine, target: int, a: int) -> None:
    """A matrix product with an 8 by 8 corner."""
    grid = m.grid(a)
    width = grid.shape[1]
    m.set_grid(target, torch.tanh(grid @ grid[:width].T[:, :width]) if len(grid) >= width else grid)


@operation(weight=1)
def soften(m: Machine, target: int, a: int) -> None:
    """A softmax over columns."""
    m.set_grid(target, torch.softmax(m.grid(a), dim=1))


@operation(weight=1)
def expanded(m: Machine, target: int, a: int) -> None:
    """Arithmetic on an expanded (stride 0) operand."""
    grid = m.grid(a)
    m.set_grid(target, grid * 0.5 + m.vector(a)[: grid.shape[1]].sum().expand(grid.shape[1]))


@operation(weight=1)
def mean_into(m: Machine, a: int, b: int) -> None:
    """A reduction stored into one element."""
    x, y = m.vector_pair(a, b)
    if len(x):
        y[:1] = x.sum() * 0.001


@operation(weight=1)
def mix_index(m: Machine, a: int, factor: int) -> None:
    """Integer arithmetic in place."""
    m.index(a).mul_(1 + factor % 3).remainder_(65536)


@operation(weight=1)
def no_grad_block(m: Machine, target: int, a: int) -> None:
    """Work under another gradient mode."""
    with torch.no_grad():
        m.set_vector(target, m.vector(a) * 0.75)


# --- random --------------------------------------------------------------------------------------


@operation(weight=2)
def draw_default(m: Machine, target: int, a: int) -> None:
    """New random numbers from the default generator."""
    m.set_vector(target, torch.rand_like(m.vector(a)))


@operation(weight=2)
def draw_in_place(m: Machine, a: int) -> None:
    """Random numbers from a generator of the program's own, in place."""
    m.vector(a).uniform_(-0.5, 0.5, generator=m.world.generator)


@operation(weight=1)
def drop_out(m: Machine, target: int, a: int) -> None:
    """Dropout."""
    m.set_grid(target, torch.nn.functional.dropout(m.grid(a), 0.5, training=True) * 0.5)


@operation(weight=1, replay="maybe")
def seed_again(m: Machine, seed: int) -> None:
    """Seeds the default generator."""
    torch.manual_seed(seed)


# --- the host ------------------------------------------------------------------------------------


@operation(weight=2, replay="no")
def read_item(m: Machine, a: int) -> None:
    """item()."""
    m.log.append(repr(m.vector(a).sum().item()))


@operation(weight=1, replay="no")
def read_list(m: Machine, a: int) -> None:
    """tolist()."""
    m.log.append(repr(m.vector(a)[:8].tolist()))


@operation(weight=1, replay="no")
def read_text(m: Machine, a: int) -> None:
    """str()."""
    m.log.append(str(m.vector(a)[:8]))


@operation(weight=1, replay="no")
def read_numpy(m: Machine, a: int) -> None:
    """numpy(), which leaves the memory visible to the host."""
    m.log.append(repr(m.vector(a)[:8].numpy().tobytes()))


@operation(weight=1, replay="no")
def read_pickle(m: Machine, a: int) -> None:
    """pickle."""
    m.log.append(repr(pickle.loads(pickle.dumps(m.vector(a)[:8])).tolist()))


@operation(weight=1, replay="no")
def write_numpy(m: Machine, a: int) -> None:
    """A change by the host through a NumPy view."""
    view = m.vector(a).numpy()
    view[:16] = view[:16] * 0.5 + 0.25


@operation(weight=1, replay="no")
def select_positive(m: Machine, target: int, a: int) -> None:
    """A result whose shape depends on data."""
    x = m.vector(a)
    m.set_vector(target, x[x > 0.5])


def _share(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch._C._is_alias_of(x, y)
