"""Semantics 14 and 15: what a replay is keyed by, aliasing, and numbers."""

from __future__ import annotations

import gc

import kernels_semantics as kernels
import numpy as np
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


def doubled(x):
    out = torch.zeros(x.shape)
    launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(out)], x.numel())
    return out + 1.0


# --- 14: the contract of a replay -----------------------------------------------------------------


def test_other_shapes_dtypes_and_strides_are_recorded_anew():
    step = graph(lambda x: (x * 2).sum(0))
    base = torch.arange(24.0)
    for x in (
        base.view(4, 6),
        base.view(6, 4),
        base.view(4, 6).double(),
        base.view(6, 4).t(),
        base.view(2, 12)[:, ::2],
        base.view(4, 6),
    ):
        for _ in range(2):
            assert torch.equal(step(x), (x * 2).sum(0))


def test_inputs_may_lie_anywhere():
    step = graph(doubled)
    for k in range(20):
        x = torch.full((N + k,), float(k))[k:]
        assert (step(x) == 2.0 * k + 1.0).all()


def test_default_dtype_and_threads_are_part_of_the_key():
    step = graph(lambda: torch.zeros(3) + 0.5)
    assert step().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert step().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert step().dtype == torch.float32


def test_constant_that_got_other_memory_is_not_read_where_it_was():
    constant = torch.ones(N)
    step = graph(lambda x: x + constant)
    x = torch.zeros(N)
    step(x)
    constant.data = torch.full((N,), 5.0)
    gc.collect()
    ballast = [torch.full((N,), -1.0) for _ in range(20)]
    assert (step(x) == 5.0).all()
    constant.fill_(6.0)
    assert (step(x) == 6.0).all()
    assert len(ballast) == 20


def test_warp_array_that_was_replaced_is_not_read_where_it_was():
    class State:
        scale = wp.full(N, 3.0, dtype=float, device="cpu")

    state = State()

    @graph
    def step():
        out = torch.zeros(N)
        launch(kernels.scale_into, [state.scale, 2.0], [wp.from_torch(out)])
        return out

    assert (step() == 6.0).all()
    state.scale = wp.full(N, 4.0, dtype=float, device="cpu")
    assert (step() == 8.0).all()
    state.scale.fill_(5.0)
    assert (step() == 10.0).all()


def test_arrays_made_from_host_values_inside_are_refused():
    step = graph(lambda: wp.to_torch(wp.array([1.0, 2.0], dtype=float, device="cpu")) * 2.0)
    with pytest.raises(ks.NotReplayable, match=r"array_copy|memcpy"):
        step()


def test_values_assigned_inside_are_assigned_again():
    target = wp.zeros(3, dtype=float, device="cpu")
    table = np.array([1.0, 2.0, 3.0], np.float32)

    @graph
    def step(x):
        target.assign(table)
        out = torch.zeros(3)
        launch(kernels.scale_into, [target, 2.0], [wp.from_torch(out)], 3)
        launch(kernels.fill, [target, -1.0], dim=3)
        return out + x + torch.tensor([1.0, 1.0, 1.0])

    for k in range(4):
        table[0] = k
        assert step(torch.zeros(3)).tolist() == [2.0 * k + 1.0, 5.0, 7.0]


def test_array_that_nobody_launches_on_lives_as_long_as_its_recording():
    @graph
    def step(x):
        cycle = [wp.zeros(N, dtype=float, device="cpu")]
        cycle.append(cycle)  # freed by the garbage collector, whenever that runs
        launch(kernels.add, [wp.from_torch(x), 1.0])

    x = torch.zeros(N)
    step(x)
    gc.collect()
    ballast = [wp.full(N, -1.0, dtype=float, device="cpu") for _ in range(50)]
    for _ in range(3):
        step(x)
    assert all((b.numpy() == -1.0).all() for b in ballast)
    assert (x == 4.0).all()


def test_results_are_the_callers_own():
    step = graph(doubled)
    results = [step(torch.full((N,), float(k))) for k in range(5)]
    del step
    gc.collect()
    assert [float(result[0]) for result in results] == [1.0, 3.0, 5.0, 7.0, 9.0]


def test_errors_name_what_to_do():
    with pytest.raises(ks.NotReplayable) as refused:
        graph(lambda x: x.sum().item())(torch.ones(3))
    assert isinstance(refused.value, ks.Error)
    assert "strategy='stream'" in str(refused.value)


# --- 15: aliasing, ranges, numbers ----------------------------------------------------------------


def test_aliasing_of_results_is_that_of_program_order():
    def program(x):
        flat = x.view(-1)
        launch(kernels.add, [wp.from_torch(flat), 1.0])
        return x, flat, x[1:], x.t(), x.clone()

    x = torch.zeros(8, 8)
    with ks.window(streams=2):
        inside = program(x)
    assert inside[0] is x
    assert [t.data_ptr() - x.data_ptr() for t in inside[:4]] == [0, 0, 32, 0]
    assert inside[4].data_ptr() != x.data_ptr()
    assert (inside[3] == 1.0).all()


DISJOINT = {
    "halves": (lambda b: b[:32], lambda b: b[32:]),
    "even_odd": (lambda b: b[::2], lambda b: b[1::2]),
    "columns": (lambda b: b.view(8, 8)[:, :4], lambda b: b.view(8, 8)[:, 4:]),
}


@pytest.mark.parametrize(("first", "second"), DISJOINT.values(), ids=DISJOINT.keys())
def test_views_that_share_no_element_run_side_by_side(first, second):
    base = torch.zeros(64)
    view = wp.from_torch(first(base))
    kernel = kernels.add2d if view.ndim == 2 else kernels.add
    with ks.window(streams=2), held(kernel, until_wait=False) as latch:
        launch(kernel, [view, 1.0], dim=view.shape)
        latch.wait()
        assert second(base).sum() == 0.0  # returns although the first view is being written
        assert latch.is_standing
        latch.release()
    assert first(base).sum() == 32.0


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_reductions_are_bitwise_those_of_program_order(streams, size):
    noise = torch.rand(1000, generator=torch.Generator().manual_seed(0))

    def program():
        x = noise.clone()
        parts = [torch.zeros(1000) for _ in range(4)]
        for k, part in enumerate(parts):
            launch(kernels.scale_into, [wp.from_torch(x), 0.1 * k], [wp.from_torch(part)], 1000)
            launch(kernels.add, [wp.from_torch(x), 1e-3], dim=1000)
        stacked = torch.stack(parts)
        return stacked.sum(), stacked.mean(1), stacked.cumsum(1), stacked @ x, x.softmax(0)

    expected = program()
    with ks.window(size=size, streams=streams):
        inside = program()
    assert all(map(torch.equal, expected, inside))
    assert all(map(torch.equal, expected, graph(program)()))


def test_nan_infinity_and_signed_zero_survive():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    out = torch.zeros(4)
    with ks.window(streams=2):
        launch(kernels.scale_into, [wp.from_torch(x), 1.0], [wp.from_torch(out)], 4)
    assert torch.equal(out.view(torch.int32), x.view(torch.int32))
