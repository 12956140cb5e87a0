"""Faults others shipped: stale replays, hidden writers, compiled code, modes (rows I, L to N)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import kernels_semantics as kernels
import pytest
import torch
import torch._dynamo
import warp as wp
from hazard_rows import hazard, replaced
from latch import held

import kscheduler as ks
from kscheduler import arguments, graph_call
from kscheduler.backends.streams import StreamSink
from kscheduler.guard_collector import GuardCollector
from kscheduler.guards import Guards
from kscheduler.intercept import torch_access

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


@contextmanager
def blind_guards() -> Iterator[None]:
    """Recordings look at nothing but their arguments."""
    with replaced(GuardCollector, "finish", lambda self: (Guards(), []))():
        yield


BLIND = "what a replay must look at again is no order of tasks"

# --- I: stale replays ----------------------------------------------------------------------------


def _mixed(x, weight):
    """Torch and Warp in turn: each reads what the other has just written."""
    hidden = (x @ weight).contiguous()
    out = torch.zeros(N)
    launch(kernels.scale_into, [wp.from_torch(hidden.view(-1)), 2.0], [wp.from_torch(out)])
    return torch.tanh(out.view(8, 8)) @ weight


@hazard()
def test_i1_recordings_share_no_memory():
    weights = [torch.eye(8) * 0.5, torch.full((8, 8), 0.1)]

    def record(weight):
        return graph(lambda x: _mixed(x, weight))

    first, second = record(weights[0]), record(weights[1])
    first(torch.ones(8, 8))
    second(torch.ones(8, 8))
    inputs = [torch.arange(64.0).view(8, 8) / (64 + k) for k in range(10)]
    for x in inputs[:4]:  # both alive, in either order
        for recorded, weight in ((second, weights[1]), (first, weights[0]), (first, weights[0])):
            assert torch.equal(recorded(x), _mixed(x, weight))
    del second
    gc.collect()
    ballast = torch.full((16 << 20,), -1.0)  # 64 MiB that would overwrite freed memory
    for x in inputs:
        assert torch.equal(first(x), _mixed(x, weights[0]))
    assert (ballast == -1.0).all()


class Optimizer:
    def __init__(self) -> None:
        self.rate = 0.1
        self.parameter = torch.ones(N)

    def step(self, gradient):
        self.parameter.sub_(gradient * self.rate)


@hazard(switch=blind_guards, why=BLIND)
def test_i2_changed_learning_rate_reaches_the_replay():
    optimizer = Optimizer()
    step = graph(optimizer.step)
    gradient = torch.ones(N)
    step(gradient)
    step(gradient)
    assert torch.equal(optimizer.parameter, torch.ones(N) - 0.1 - 0.1)
    before = optimizer.parameter.clone()
    optimizer.rate = 0.01
    step(gradient)
    assert torch.equal(optimizer.parameter, before - gradient * 0.01)


@hazard(switch=replaced(graph_call, "flatten", lambda *a: _without_scalars(*a)), why=BLIND)
def test_i2_changed_scalar_argument_reaches_the_replay():
    step = graph(lambda x, factor: x * factor)
    x = torch.ones(N)
    for factor in (2.0, 2.0, 3.0, -0.0, 0.0, 2.0):
        result = step(x, factor)
        assert torch.equal(result, x * factor)
        assert torch.equal(result.signbit(), (x * factor).signbit())


def _without_scalars(args, kwargs):
    found = arguments.flatten(args, kwargs)
    found.key = ()
    return found


@hazard(switch=blind_guards, why=BLIND)
def test_i2_warp_scalars_keep_value_and_offset():
    class Settings:
        number, vector, small = 1.5, wp.vec3(2.0, 3.0, 4.0), 5

    settings = Settings()

    @graph
    def step(y):
        launch(
            kernels.scalars,
            [settings.number, settings.vector, wp.int16(settings.small)],
            [wp.from_torch(y)],
            dim=1,
        )

    for _ in range(3):
        y = torch.zeros(5)
        step(y)
        assert y.tolist() == [1.5, 2.0, 3.0, 4.0, 5.0]
    settings.number, settings.vector, settings.small = -1.0, wp.vec3(6.0, 7.0, 8.0), -9
    step(y)
    assert y.tolist() == [-1.0, 6.0, 7.0, 8.0, -9.0]


# --- L: hidden writers ---------------------------------------------------------------------------


@hazard()
def test_l1_running_statistics_wait_for_their_readers():
    _batch_norm_behind_a_reader()


@hazard(
    switch=replaced(torch_access, "_LIARS", {}),
    why="without the table of ops whose schema is wrong, the tracker is told nothing",
)
def test_l1_batch_norm_is_known_to_write():
    torch_access._infos.pop(torch.ops.aten.native_batch_norm.default, None)
    try:
        _batch_norm_behind_a_reader()
    finally:
        torch_access._infos.pop(torch.ops.aten.native_batch_norm.default, None)


def _batch_norm_behind_a_reader():
    norm = torch.nn.BatchNorm1d(3).train()
    x = torch.arange(12.0).view(4, 3)
    seen = torch.zeros(3)
    with torch.no_grad(), ks.window(streams=2), held(kernels.scale_into) as latch:
        mean = wp.from_torch(norm.running_mean)
        launch(kernels.scale_into, [mean, 1.0], [wp.from_torch(seen)], 3)
        latch.wait()
        norm(x)
    assert seen.tolist() == [0.0, 0.0, 0.0]
    assert norm.running_mean[0] != 0.0


@hazard(switch=None, why="torch ops run in program order; only the values are at stake")
def test_l1_running_statistics_stay_bitwise_those_of_eager():
    def train(strategy):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(3).train()
        for _ in range(20):
            with ks.window(streams=2, strategy=strategy):
                norm(torch.randn(4, 3))
        return norm.running_mean, norm.running_var

    for eager, scheduled in zip(train("serial"), train("stream"), strict=True):
        assert torch.equal(eager, scheduled)


@torch.library.custom_op("kscheduler_tests::quietly_add", mutates_args=())
def quietly_add(x: torch.Tensor) -> torch.Tensor:
    x.add_(1.0)  # not declared
    return torch.empty(0)


@hazard(
    switch=replaced(StreamSink, "fence", lambda self, reason: None),
    why="a custom op is a full fence, which asks no tracker",
)
def test_l2_custom_op_is_taken_to_write_its_arguments():
    x = torch.zeros(N)
    doubled = torch.zeros(N)
    with ks.window(streams=2), held(kernels.scale_into) as latch:
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(doubled)])
        latch.wait()
        torch.ops.kscheduler_tests.quietly_add(x)
    assert (doubled == 0.0).all()
    assert (x == 1.0).all()


@hazard(
    switch=replaced(torch_access, "_TRUSTED_NAMESPACES", frozenset(("aten", "kscheduler_tests"))),
    why="a schema that is believed hides the write from the tracker",
)
def test_l2_schema_of_a_custom_op_is_not_believed():
    op = torch.ops.kscheduler_tests.quietly_add.default
    torch_access._infos.pop(op, None)
    x = torch.zeros(4)
    try:
        (access,) = torch_access.op_accesses(op, (x[1:2],), {})
    finally:
        torch_access._infos.pop(op, None)
    assert access.mode == 3
    assert access.end - access.start == 16  # the whole storage


@hazard()
def test_l2_pointer_for_foreign_code_is_behind_the_writer():
    import ctypes

    x = torch.zeros(N)
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 4.0])
        latch.wait()
        seen = ctypes.c_float.from_address(x.data_ptr()).value
    assert seen == 4.0


# --- M: torch.compile ----------------------------------------------------------------------------


@hazard(
    switch=replaced(StreamSink, "compiled_call", lambda self, name: None),
    why="compiled code reads memory that nobody sees, so it waits for everything",
)
def test_m1_compiled_callable_runs_compiled_and_says_so():
    torch._dynamo.reset()
    graph_runs = []

    def backend(module, inputs):
        def run(*args):
            graph_runs.append(len(args))
            return module.forward(*args)

        return run

    def rewarded(x):
        return torch.sin(x) + x * 2.0

    compiled = torch.compile(rewarded, backend=backend)
    x = torch.zeros(N)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 3.0])
        latch.wait()
        result = compiled(x)
    assert torch.equal(result, rewarded(torch.full((N,), 3.0)))
    assert graph_runs == [1]
    assert window.report.fences["compiled_callable"] == 1
    assert any("rewarded" in note and "compiled" in note for note in window.report.notes)


# --- N: autograd modes ---------------------------------------------------------------------------

MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@hazard(cases=MODES, switch=None, why="torch ops run on the thread that issued them, in its modes")
def test_n2_ops_in_a_window_keep_the_modes_of_their_thread(case):
    weight = torch.nn.Parameter(torch.ones(8, 8))
    x = torch.ones(8, 8)

    def forward():
        with case():
            y = x @ weight
            return y.requires_grad, y.is_inference(), y.dtype

    eager = forward()
    with ks.window(streams=2):
        launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0])
        inside = forward()
    with case(), ks.window(streams=2):
        launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0])
        y = x @ weight
    assert inside == eager == (y.requires_grad, y.is_inference(), y.dtype)


@hazard(
    switch=replaced(graph_call, "modes_key", lambda: ()),
    why="which recording is taken is no order of tasks",
)
def test_n2_recording_of_another_mode_is_not_replayed():
    weight = torch.nn.Parameter(torch.full((8, 8), 0.5))
    x = torch.ones(8, 8)
    forward = graph(lambda x: (x @ weight).sum())
    with torch.inference_mode():
        assert forward(x) == 256.0
        assert forward(x).is_inference()
    with torch.no_grad():
        assert not forward(x).is_inference()
        assert not forward(x).is_inference()
    # Gradients are refused by name, never given up in silence.
    with pytest.raises(ks.NotReplayable, match="requires grad"):
        forward(x)
