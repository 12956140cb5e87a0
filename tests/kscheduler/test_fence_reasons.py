"""Each reason for a fence is counted under its name, and no reason is without a test."""

from __future__ import annotations

import kernels_semantics as kernels
import numpy as np
import pytest
import torch
import torch._dynamo
import warp as wp
from latch import held
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from warp._src import context

import kscheduler as ks
from kscheduler.backends.streams import CLEAR_OPS
from kscheduler.report import FENCE_REASONS

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def autograd(x, array):
    weight = torch.ones(N, requires_grad=True)
    total = (weight * 2.0).sum()
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        total.backward()


def compiled_callable(x, array):
    torch.compile(lambda x: x + 1.0, backend="eager")(x)


def cpu_blocks(x, array):
    wp.launch(kernels.fill, dim=N, inputs=[array, 1.0], device="cpu", block_dim=4)


def host_read(x, array):
    launch(kernels.fill, [array, 1.0])
    x.tolist()


def host_visible(x, array):
    x.numpy()
    launch(kernels.fill, [array, 1.0])


def loop_condition(x, array):
    left = wp.array([1], dtype=int, device="cpu")
    wp.capture_while(left, lambda: launch(kernels.step_down, [array], [array, left]))


def mesh_or_bvh(x, array):
    points = wp.array(np.eye(3, dtype=np.float32), dtype=wp.vec3, device="cpu")
    wp.Mesh(points, wp.array([0, 1, 2], dtype=int, device="cpu"))


def mode_sensitive(x, array):
    torch.linalg.svdvals(torch.eye(3))


def modes_disabled(x, array):
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        with _disable_current_modes():
            x.add_(1.0)


def program_order(x, array):
    ks.window(streams=2, strategy="graph")(lambda x: x + 1.0)(x)


def stream_sync(x, array):
    wp.synchronize()


def unknown_access(x, array):
    sparse = torch.eye(4).to_sparse()
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        sparse.sum()


def unlisted_core_call(x, array):
    context.runtime.core.wp_apic_get_recording_state()


class Modest(TorchDispatchMode):
    """A mode of the program's that lets an op of its own run below."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Special(torch.Tensor):
    """A subclass around another tensor, which runs its ops itself."""

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(getattr(a, "inner", a) for a in args), **(kwargs or {}))


@torch.library.custom_op("kscheduler_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


def op_below_mode(x, array):
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        with Modest():
            torch.ops.kscheduler_tests.doubled(x)


def tensor_subclass(x, array):
    special = Special(torch.ones(4))
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        with Modest():
            special + 1.0


def torch_run(x, array):
    other = torch.zeros(N)
    with held(kernels.fill) as latch:
        launch(kernels.fill, [array, 1.0])
        latch.wait()
        for _ in range(CLEAR_OPS):
            other.add_(1.0)


CAUSES = {
    "autograd": autograd,
    "compiled_callable": compiled_callable,
    "cpu_blocks": cpu_blocks,
    "host_read": host_read,
    "host_visible": host_visible,
    "loop_condition": loop_condition,
    "mesh_or_bvh": mesh_or_bvh,
    "mode_sensitive": mode_sensitive,
    "modes_disabled": modes_disabled,
    "op_below_mode": op_below_mode,
    "program_order": program_order,
    "stream_sync": stream_sync,
    "tensor_subclass": tensor_subclass,
    "torch_run": torch_run,
    "unknown_access": unknown_access,
    "unlisted_core_call": unlisted_core_call,
}


@pytest.fixture
def blocks(request):
    """Cooperative launches, for the one reason that needs them."""
    before = wp.config.enable_cpu_blocks
    wp.config.enable_cpu_blocks = request.node.callspec.params["reason"] == "cpu_blocks"
    yield
    wp.config.enable_cpu_blocks = before


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reason", CAUSES)
def test_fence_is_counted_under_its_reason(reason):
    x = torch.zeros(N)
    array = wp.from_torch(x)
    with ks.window(streams=2) as window:
        CAUSES[reason](x, array)
    assert window.report.fences[reason] >= 1
    assert FENCE_REASONS[reason] in str(window.report)


def test_leaving_is_counted():
    with ks.window(streams=2) as window:
        pass
    assert window.report.fences == {"window_exit": 1}


def test_leaving_by_an_exception_is_counted():
    with pytest.raises(KeyError, match="x"), ks.window(streams=2) as window:
        raise KeyError("x")
    assert window.report.fences == {"exception": 1}


def test_no_reason_is_without_a_test():
    assert set(CAUSES) | {"window_exit", "exception"} == set(FENCE_REASONS)
