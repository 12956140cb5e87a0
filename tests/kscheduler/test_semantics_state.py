"""Semantics 5 to 9: generators, autograd, streams, unknown ops, tensors that outlive a window."""

from __future__ import annotations

import gc
import weakref

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


# --- 5: generators -------------------------------------------------------------------------------


def _draws(generator):
    x = torch.zeros(N)
    array = wp.from_torch(x)
    drawn = []
    for seed in range(4):
        launch(kernels.bernoulli, [seed], [array])
        drawn.append(torch.rand(N, generator=generator) + x)
        x.uniform_(0.0, 1.0)
        launch(kernels.add, [array, 1.0])
        drawn.append(torch.bernoulli(x - 1.0))
        drawn.append(torch.nn.functional.dropout(x, 0.5))
    return drawn, torch.get_rng_state(), generator.get_state()


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_draws_and_states_are_those_of_program_order(streams):
    torch.manual_seed(1)
    expected = _draws(torch.Generator().manual_seed(2))
    torch.manual_seed(1)
    with ks.window(streams=streams):
        drawn = _draws(torch.Generator().manual_seed(2))
    assert all(map(torch.equal, expected[0], drawn[0]))
    assert torch.equal(expected[1], drawn[1])
    assert torch.equal(expected[2], drawn[2])


def test_draws_overlap_with_other_work():
    x = torch.zeros(N)
    with ks.window(streams=2), held(kernels.fill, until_wait=False) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        torch.rand(N)
        torch.manual_seed(3)
        assert latch.is_standing
        latch.release()


def test_replays_advance_generators_as_calls_do():
    def program(x):
        launch(kernels.scale_into, [wp.from_torch(torch.rand(N)), 2.0], [wp.from_torch(x)])
        return x + torch.randn(N)

    recorded = graph(program)
    recorded(torch.zeros(N))
    torch.manual_seed(9)
    expected = [program(torch.zeros(N)) for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(9)
    assert all(torch.equal(recorded(torch.zeros(N)), value) for value in expected)
    assert torch.equal(torch.get_rng_state(), state)


# --- 6: autograd ---------------------------------------------------------------------------------


def test_gradients_are_bitwise_those_of_program_order():
    def train(strategy):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.zeros(8, 8)
        for step in range(5):
            with ks.window(streams=2, strategy=strategy):
                launch(kernels.bernoulli, [step], [wp.from_torch(x.view(-1))])
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        return [*model.parameters()]

    assert all(map(torch.equal, train("serial"), train("stream")))


def test_backward_sees_finished_gradients():
    x = torch.ones(N, requires_grad=True)
    upstream = torch.zeros(N)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        y = x * 2.0
        launch(kernels.fill, [wp.from_torch(upstream), 3.0])
        latch.wait()
        y.backward(upstream)
    assert (x.grad == 6.0).all()
    assert window.report.fences["autograd"] == 1


def test_kernel_launched_in_backward_is_waited_for():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, gradient):
            result = torch.zeros(N)
            source = wp.from_torch(gradient.contiguous())
            launch(kernels.scale_into, [source, 2.0], [wp.from_torch(result)])
            return result + 0.0

    x = torch.ones(N, requires_grad=True)
    with ks.window(streams=2):
        (Doubled.apply(x) * 3.0).sum().backward()
    assert (x.grad == 6.0).all()


def test_changed_saved_tensor_is_still_found_out():
    x = torch.ones(N, requires_grad=True)
    with ks.window(streams=2):
        launch(kernels.fill, [wp.zeros(N, dtype=float, device="cpu"), 1.0])
        y = x.exp()
        y.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_forward_mode_and_vmap_work_inside():
    def f(x):
        return (x.sin() * x).sum()

    x = torch.zeros(4, 8)
    array = wp.from_torch(x.view(-1))
    launch(kernels.bernoulli, [5], [array], 32)
    expected = torch.func.vmap(torch.func.grad(f))(x)
    with ks.window(streams=2):
        launch(kernels.bernoulli, [5], [array], 32)
        inside = torch.func.vmap(torch.func.grad(f))(x)
    assert torch.equal(inside, expected)


# --- 7: streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "synchronize",
    [
        lambda: wp.synchronize(),  # looked up inside the window
        lambda: wp.synchronize_device(),
        lambda: wp.synchronize_device("cpu"),
    ],
    ids=["all", "device", "cpu"],
)
def test_synchronizing_finishes_everything(synchronize):
    x = torch.zeros(N)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        synchronize()
        assert window._scope.sink.core.in_flight == 0
    assert window.report.fences["stream_sync"] == 1


@pytest.mark.gpu
def test_current_streams_are_put_back_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        with ks.window(streams=2):
            torch.ones(4, device="cuda") + 1
        assert torch.cuda.current_stream() == side


# --- 8: unknown ops ------------------------------------------------------------------------------

HIDDEN = torch.zeros(N)


@torch.library.custom_op("kscheduler_tests::touch_hidden", mutates_args=())
def touch_hidden(value: float) -> torch.Tensor:
    HIDDEN.mul_(value)  # memory that no argument names
    return torch.empty(0)


def test_op_without_arguments_to_look_at_is_a_full_fence():
    HIDDEN.zero_()
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(HIDDEN), 2.0])
        latch.wait()
        torch.ops.kscheduler_tests.touch_hidden(3.0)
    assert (HIDDEN == 6.0).all()
    assert window.report.fences["unknown_access"] >= 1


def test_arrays_in_a_struct_are_read_and_written():
    x, y = torch.zeros(N), torch.zeros(N)
    holder = kernels.Holder()
    holder.data = wp.from_torch(x)
    with held(kernels.fill_held) as latch, ks.window(streams=2):
        launch(kernels.fill_held, [holder, 4.0])
        latch.wait()
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(y)])
    assert (y == 8.0).all()


def test_sparse_tensors_are_behind_everything():
    x = torch.zeros(N)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        total = torch.eye(4).to_sparse().sum()
    assert total == 4.0
    assert window.report.fences["unknown_access"] >= 1


# --- 9: tensors that outlive the window -----------------------------------------------------------


def test_results_are_ordinary_tensors_at_the_end():
    with ks.window(streams=2):
        x = torch.zeros(N)
        array = wp.from_torch(x)
        launch(kernels.fill, [array, 1.0])
        temporary = wp.zeros(N, dtype=float, device="cpu")
        launch(kernels.scale_into, [array, 2.0], [temporary])
        y = wp.to_torch(temporary)
        del temporary, array
    gc.collect()
    ballast = [torch.full((N,), -1.0) for _ in range(100)]
    assert (x == 1.0).all()
    assert (y == 2.0).all()
    assert all((b == -1.0).all() for b in ballast)


def test_temporaries_are_held_no_longer_than_their_task():
    with ks.window(streams=2) as window:
        temporary = wp.zeros(N, dtype=float, device="cpu")
        gone = weakref.ref(temporary)
        launch(kernels.fill, [temporary, 1.0])
        del temporary
        window._scope.sink.core.wait_for_all()
        assert gone() is None


def test_memory_of_many_temporaries_does_not_pile_up():
    alive = weakref.WeakSet()
    most = 0
    with ks.window(size=4, streams=2):
        for _ in range(400):
            temporary = wp.zeros(4096, dtype=float, device="cpu")
            alive.add(temporary)
            most = max(most, len(alive))
            launch(kernels.fill, [temporary, 1.0], dim=4096)
    assert most < 40


@pytest.mark.parametrize(
    "retarget",
    [
        lambda x: x.resize_(4 * N),
        lambda x: x.set_(torch.zeros(N)),
        lambda x: x.untyped_storage().resize_(0),
        lambda x: setattr(x, "data", torch.zeros(2 * N)),
    ],
    ids=["resize_", "set_", "storage", "data"],
)
def test_giving_a_tensor_other_memory_waits_for_the_old(retarget):
    x = torch.zeros(N)
    out = torch.zeros(N)
    with ks.window(streams=2), held(kernels.scale_into) as latch:
        x.fill_(1.0)
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(out)])
        latch.wait()
        retarget(x)
        ballast = [torch.full((N,), -1.0) for _ in range(10)]
    assert (out == 2.0).all()
    assert all((b == -1.0).all() for b in ballast)


def test_reused_address_is_an_ordinary_hazard():
    results = []
    with ks.window(streams=2):
        for k in range(200):
            x = torch.full((4096,), float(k))
            out = torch.zeros(4096)
            launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(out)], 4096)
            if k % 10 == 0:
                results.append((k, out))
            del x, out
    assert all((out == 2.0 * k).all() for k, out in results)


def test_numpy_result_outlives_everything():
    with ks.window(streams=2):
        array = wp.zeros(N, dtype=float, device="cpu")
        launch(kernels.fill, [array, 3.0])
        result = array.numpy()
        del array
    gc.collect()
    assert np.all(result == 3.0)
