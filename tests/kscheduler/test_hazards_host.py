"""Faults that others shipped: random numbers, host reads, data-dependent shapes, exceptions and
nesting (rows E to G)."""

from __future__ import annotations

import gc
import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import kernels_semantics as kernels
import numpy as np
import pytest
import torch
import warp as wp
from hazard_rows import hazard, replaced
from latch import held

import kscheduler as ks
from kscheduler import _core
from kscheduler.backends import streams
from kscheduler.backends.streams import StreamSink
from kscheduler.intercept import current, torch_replay

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


# --- E: random numbers ---------------------------------------------------------------------------


def draws(x):
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def frozen_draws(tape, values, index):
    """A replay that repeats the recorded draws, as a graph with a frozen seed does."""
    torch.manual_seed(7)
    tape._functions[index](values)


@hazard(
    switch=replaced(torch_replay.TorchTape, "run", frozen_draws),
    why="torch ops of a replay run one after another; what may go wrong is the seed",
)
def test_e1_replay_draws_as_eager_after_a_new_seed():
    x = torch.ones(N)
    recorded = graph(draws)
    recorded(x)
    torch.manual_seed(7)
    expected = [draws(x), draws(x)]
    torch.manual_seed(7)
    replayed = [recorded(x), recorded(x)]
    assert torch.equal(replayed[0], expected[0])
    assert torch.equal(replayed[1], expected[1])
    assert not torch.equal(replayed[0], replayed[1])
    torch.manual_seed(8)
    assert not torch.equal(recorded(x), expected[0])


@hazard(
    switch=replaced(torch_replay, "is_random", lambda *args: None),
    why="torch ops run in program order; the generator's edge is what keeps draws apart",
)
def test_e2_two_generators_inside_are_as_eager():
    def program(generator):
        a = torch.rand(N)
        b = torch.rand(N, generator=generator)
        state = generator.get_state()
        return a, b, torch.randn(N), torch.randint(9, (N,), generator=generator), state

    def run(window):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4)
        with window:
            values = program(generator)
        return *values, torch.get_rng_state(), generator.get_state()

    eager = run(ks.window(strategy="serial"))
    scheduled = run(ks.window(streams=2))
    assert all(map(torch.equal, eager, scheduled))

    generator = torch.Generator().manual_seed(4)
    recorded = graph(lambda: (torch.rand(N), torch.rand(N), torch.rand(N, generator=generator)))
    recorded()
    recorded()
    assert (0, 1) in recorded.report.graph.edges  # draws of one generator stay in order
    assert recorded.report.edges == 1  # those of another one do not wait
    torch.manual_seed(5)
    generator.manual_seed(6)
    replayed = recorded()
    torch.manual_seed(5)
    generator.manual_seed(6)
    assert torch.equal(replayed[0], torch.rand(N))
    assert torch.equal(replayed[1], torch.rand(N))
    assert torch.equal(replayed[2], torch.rand(N, generator=generator))


# --- F: host reads -------------------------------------------------------------------------------


@hazard()
def test_f1_mask_index_sees_finished_data():
    x = torch.zeros(4)
    source = torch.tensor([1.0, -1.0, 2.0, 3.0])
    with ks.window(streams=2), held(kernels.scale_into) as latch:
        launch(kernels.scale_into, [wp.from_torch(source), 1.0], [wp.from_torch(x)], 4)
        latch.wait()
        y = x[x > 0]
        total = y.sum()
    assert y.shape == (3,)
    assert total == 6.0


@hazard(
    switch=replaced(torch_replay, "is_host_read", lambda *args: False),
    why="a shape is fixed by recording, not by an order of tasks",
)
def test_f1_mask_index_is_not_recorded():
    recorded = graph(lambda x: x[x > 0].sum())
    with pytest.raises(ks.NotReplayable, match=r"aten\.(index|nonzero).*test_hazards_host"):
        recorded(torch.tensor([1.0, -1.0, 2.0, 3.0]))


def _saved(y):
    buffer = io.BytesIO()
    torch.save(y, buffer)
    buffer.seek(0)
    return torch.load(buffer)


HOST_READS = {
    "str": lambda y: [float(str(y[:1]).removeprefix("tensor([").rstrip(".])"))],
    "tolist": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy().copy(),
    "asarray": lambda y: np.asarray(y).copy(),
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),
    "save": _saved,
    "dlpack": lambda y: np.from_dlpack(y).copy(),
    "item": lambda y: [y[0].item()],
    "bool": lambda y: [2.0 if y[0] else -1.0],
    "warp_numpy": lambda y: wp.from_torch(y).numpy().copy(),
    "warp_list": lambda y: wp.from_torch(y).list(),
}


@hazard(cases=HOST_READS)
def test_f2_host_sees_finished_values(case):
    y = torch.zeros(N)
    array = wp.from_torch(y)
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [array, 2.0])
        latch.wait()
        seen = case(y)
    assert all(float(value) == 2.0 for value in seen)


@contextmanager
def forgotten_exports() -> Iterator[None]:
    """A host read has ended when its call has."""
    read = StreamSink.host_read

    def forgetful(sink, access, what, exported=False):
        read(sink, access, what, False)

    with (
        replaced(StreamSink, "host_read", forgetful)(),
        replaced(streams, "host_memory", lambda owner: None)(),
    ):
        yield


@hazard(
    cases={"first": 1, "prepared": 5},
    switch=forgotten_exports,
    why="tasks on memory that the host sees run in place, behind no one's edges",
)
def test_f2_memory_that_numpy_sees_is_never_behind(case):
    y = torch.zeros(N)
    array = wp.from_torch(y)
    with ks.window(streams=2):
        for _ in range(case):
            launch(kernels.add, [wp.zeros(N, dtype=float, device="cpu"), 1.0])
        wp.synchronize()
        seen = y.numpy()
        with held(kernels.add):
            launch(kernels.add, [array, 1.0])
            after = seen.copy()
    assert (after == 1.0).all()


# --- G: exceptions, nesting ----------------------------------------------------------------------


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _patched() -> tuple:
    return (wp.launch, wp.copy, torch.Tensor.tolist, os.fork, torch._C._len_torch_dispatch_stack())


def _five_ops(x, array, error):
    x.add_(1.0)
    launch(kernels.add, [array, 1.0])
    x.add_(1.0)
    if error is not None:
        raise error
    launch(kernels.add, [array, 1.0])
    x.add_(1.0)


@hazard()
def test_g1_exception_leaves_finished_tasks_and_nothing_else():
    x = torch.zeros(N)
    error = ValueError("third op")
    with (
        held(kernels.fill) as latch,
        pytest.raises(ValueError, match="third") as caught,
        ks.window(streams=2),
    ):
        launch(kernels.fill, [wp.from_torch(x), 5.0])
        latch.wait()
        _five_ops(x, wp.from_torch(x), error)
    assert caught.value is error
    assert (x == 8.0).all()


@hazard(
    switch=None, why="what is left behind by an exception has nothing to do with the order of tasks"
)
def test_g1_hundred_exceptions_leave_no_trace():
    x = torch.zeros(4 * 65536)
    array = wp.from_torch(x)
    before = _patched()
    failing = graph(_five_ops)
    sizes = []
    for round_number in range(100):
        error = ValueError(f"round {round_number}")
        with pytest.raises(ValueError, match="round") as caught, ks.window(streams=2):
            _five_ops(x, array, error)
        assert caught.value is error
        with pytest.raises(ValueError, match="round") as caught:
            failing(x, array, error)
        assert caught.value is error
        del caught, error
        assert _patched() == before
        assert current.current_sink() is None
        if round_number in (20, 99):
            gc.collect()
            sizes.append(_resident_bytes())
            threads = _core.pool_size()
    assert sizes[1] - sizes[0] < 8 << 20
    assert _core.pool_size() == threads
    assert x[0] == 600.0 + 0.0
    with ks.window(streams=2):
        _five_ops(x, array, None)
    assert x[0] == 605.0


@hazard()
def test_g2_three_nested_windows_are_one():
    x, y = torch.zeros(N), torch.zeros(N)
    ax, ay = wp.from_torch(x), wp.from_torch(y)
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [ax, 1.0])
        latch.wait()
        with ks.window(), ks.window(size=2):
            launch(kernels.scale_into, [ax, 3.0], [ay])
        total = y.sum()
    assert total == 3.0 * N


@hazard(switch=None, why="a fence too much costs time, never a value")
def test_g2_inner_exit_waits_for_its_own_tasks_only():
    x, y = torch.zeros(N), torch.zeros(N)
    with ks.window(streams=2), held(kernels.fill, until_wait=False) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        with ks.window() as inner:
            launch(kernels.add, [wp.from_torch(y), 1.0])
        assert latch.is_standing
        assert y.sum() == N
        latch.release()
    assert inner.report.fences == {"window_exit": 1}
    assert x.sum() == N


@hazard(switch=None, why="a refusal is no order of tasks")
def test_g2_recording_inside_a_recording_is_refused():
    inner = graph(lambda x: x + 1.0)
    outer = graph(lambda x: inner(x) * 2.0)
    with pytest.raises(ks.NotReplayable, match="inside another recording"):
        outer(torch.ones(N))
    assert (inner(torch.ones(N)) == 2.0).all()
    joined = graph(_with_a_window_inside)
    for value in (1.0, 2.0):
        assert (joined(torch.full((N,), value)) == 2.0 * value + 1.0).all()


def _with_a_window_inside(x):
    with ks.window(streams=2):
        y = x * 2.0
    return y + 1.0


@hazard(switch=None, why="a refusal is no order of tasks")
def test_g2_compiled_callable_in_a_recording_is_refused():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1.0, backend="eager")
    recorded = graph(lambda x: compiled(x) * 2.0)
    with pytest.raises(ks.NotReplayable, match="compiled callable"):
        recorded(torch.ones(N))
    assert (compiled(torch.ones(N)) == 2.0).all()
