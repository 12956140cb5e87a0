"""Semantic 3: exceptions of the program and of tasks."""

from __future__ import annotations

import ctypes

import kernels_semantics as kernels
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks
from kscheduler.access import WRITE
from kscheduler.backends.streams import label_of
from kscheduler.intercept.torch_access import tensor_access

N = 64
_libc = ctypes.CDLL(None)
# abs(0) is 0, which a function that returns a bool uses to say that it failed.
_FAILS = ctypes.cast(_libc.abs, ctypes.c_void_p).value
RETURNS_BOOL = 1


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def submit_failing(window, tensor):
    """Submit a native task that writes a tensor, and fails."""
    window._scope.sink.core.submit(
        _FAILS,
        (0,),
        check=RETURNS_BOOL,
        accesses=(tensor_access(tensor, WRITE),),
        keep=(tensor,),
        label=label_of("failing", "memory"),
    )


def test_error_of_a_task_is_raised_at_the_exit_at_the_latest():
    with pytest.raises(RuntimeError, match="failing"), ks.window(streams=2) as window:
        submit_failing(window, torch.zeros(N))


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.tolist(),
        lambda x: x.add(1.0),
        lambda x: wp.synchronize(),
        lambda x: launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0]),
        lambda x: wp.zeros(N, dtype=float, device="cpu"),
    ],
    ids=["host_read", "torch_op", "fence", "launch", "memory"],
)
def test_error_of_a_task_is_raised_where_the_program_would_notice(look):
    x = torch.zeros(N)
    launch(kernels.fill, [wp.from_torch(x), 0.0])
    after = []
    with pytest.raises(RuntimeError, match="failing"), ks.window(streams=2) as window:
        launch(kernels.fill, [wp.from_torch(x), 0.0])
        submit_failing(window, x)
        window._scope.sink.core.wait_for_all()
        look(x)
        after.append("not reached")
    assert not after


def test_dependants_of_a_failed_task_are_cancelled_and_others_finish():
    x, y, z = torch.zeros(N), torch.zeros(N), torch.zeros(N)
    with (
        held("failing", "memory") as latch,
        pytest.raises(RuntimeError, match="failing"),
        ks.window(streams=2) as window,
    ):
        submit_failing(window, x)
        latch.wait()
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(y)])
        launch(kernels.add, [wp.from_torch(y), 1.0])
        launch(kernels.add, [wp.from_torch(z), 1.0])
    assert (y == 0.0).all()
    assert (z == 1.0).all()


def test_memory_behind_a_failed_task_is_freed():
    x = torch.zeros(N)
    with (
        held("failing", "memory") as latch,
        pytest.raises(RuntimeError, match="failing"),
        ks.window(streams=2) as window,
    ):
        submit_failing(window, x)
        latch.wait()
        scratch = wp.empty(N, dtype=float, device="cpu")
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [scratch])
        del scratch
    tasks = window._report.graph.tasks
    assert [task.name for task in tasks][:2] == ["failing", "scale_into"]


def test_error_of_a_task_never_hides_that_of_the_program():
    error = KeyError("the program's own")
    with pytest.raises(KeyError) as caught, ks.window(streams=2) as window:
        submit_failing(window, torch.zeros(N))
        raise error
    assert caught.value is error
    assert error.__context__ is None
    assert any("failing" in note for note in error.__notes__)


def test_error_of_a_task_is_raised_once():
    x = torch.zeros(N)
    with ks.window(streams=2) as window:
        submit_failing(window, x)
        with pytest.raises(RuntimeError, match="failing"):
            wp.synchronize()
        launch(kernels.fill, [wp.from_torch(x), 3.0])
    assert (x == 3.0).all()


def test_exception_inside_an_op_is_that_of_eager_at_its_line():
    with ks.window(streams=2):
        launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0])
        with pytest.raises(RuntimeError, match="must match the size") as caught:
            torch.zeros(2) + torch.zeros(3)
    assert caught.traceback[0].path.name == "test_semantics_errors.py"
    with pytest.raises(RuntimeError, match="must match the size") as eager:
        torch.zeros(2) + torch.zeros(3)
    assert str(caught.value) == str(eager.value)


def test_bad_launch_raises_as_without_a_window():
    x = wp.zeros(N, dtype=int, device="cpu")
    with pytest.raises(Exception, match="x") as outside:
        launch(kernels.fill, [x, 1.0])
    with ks.window(streams=2), pytest.raises(type(outside.value)) as inside:
        for _ in range(3):
            launch(kernels.fill, [wp.zeros(N, dtype=float, device="cpu"), 1.0])
        launch(kernels.fill, [x, 1.0])
    assert str(inside.value) == str(outside.value)
