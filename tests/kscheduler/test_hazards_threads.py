"""Faults that others shipped: threads with a window each, and streams of the user (row K)."""

from __future__ import annotations

import threading

import kernels_semantics as kernels
import pytest
import torch
import warp as wp
from hazard_rows import hazard, replaced
from latch import held

import kscheduler as ks
from kscheduler.intercept import warp_patches

N = 64
ROUNDS = 300
SINKS: list = []


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def in_thread(function):
    """Run a function on another thread; its exception is raised here."""
    caught = []

    def run():
        try:
            function()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive(), "the other thread has not come to an end"
    if caught:
        raise caught[0]


@hazard()
def test_k1_each_thread_has_a_window_of_its_own():
    x, y, z = (torch.zeros(N) for _ in range(3))

    def other():
        with ks.window(streams=2):
            launch(kernels.fill, [wp.from_torch(y), 5.0])
            y.add_(1.0)

    with ks.window(streams=2), held(kernels.scale_into) as latch:
        x.fill_(2.0)
        launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(z)])
        latch.wait()
        in_thread(other)  # comes to its end although this window's task stands still
        assert latch.is_standing
        assert (y == 6.0).all()
        z.add_(1.0)
    assert (z == 5.0).all()


@hazard(needs_gpu=True)
def test_k1_user_streams_stay_ordered():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x = torch.full((N,), 3.0, device="cuda")
        with ks.window(streams=2):
            y = x * 2
        z = y + 1
    stream.synchronize()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert (z == 7.0).all()


@hazard()
def test_k2_rows_written_in_one_window_are_never_torn_in_another():
    rows = torch.zeros(16, N)
    staging = torch.zeros(N)
    array = wp.from_torch(staging)
    lock = threading.Lock()
    torn = []

    def write(first, last):
        for k in range(first, last):
            with lock, ks.window(streams=2):
                launch(kernels.fill, [array, float(k)])
                launch(kernels.scale_into, [array, 1.0], [wp.from_torch(rows[k % 16])])

    def sample():
        for k in range(ROUNDS):
            with lock, ks.window(streams=2):
                row = rows[k % 16].clone()
            if not (row == row[0]).all():
                torn.append(row)

    writer = threading.Thread(target=write, args=(0, ROUNDS))
    writer.start()
    sample()
    writer.join()
    assert not torn
    with lock, held(kernels.fill) as latch, ks.window(streams=2):
        launch(kernels.fill, [array, -1.0])
        latch.wait()
        launch(kernels.scale_into, [array, 1.0], [wp.from_torch(rows[0])])
    assert (rows[0] == -1.0).all()


@hazard(
    switch=replaced(warp_patches, "current_sink", lambda: next(iter(SINKS), None)),
    why="whose window a launch belongs to is decided before the tracker sees it",
)
def test_k2_launches_of_another_thread_stay_out_of_the_window():
    x, y = torch.zeros(N), torch.zeros(N)

    def other():
        for value in (1.0, 2.0):
            launch(kernels.fill, [wp.from_torch(y), value])

    with ks.window(streams=2) as window:
        SINKS.append(window._scope.sink)
        try:
            launch(kernels.fill, [wp.from_torch(x), 1.0])
            in_thread(other)
        finally:
            SINKS.clear()
    assert window.report.tasks == 1
    assert (y == 2.0).all()


@hazard(switch=None, why="who is told of an error is no order of tasks")
def test_k2_errors_reach_the_thread_that_issued_the_task():
    from test_semantics_errors import submit_failing

    def other():
        with ks.window(streams=2) as window:
            submit_failing(window, torch.zeros(N))

    with ks.window(streams=2):
        with pytest.raises(RuntimeError, match="failing"):
            in_thread(other)
        x = torch.zeros(N)
        launch(kernels.fill, [wp.from_torch(x), 1.0])
    assert (x == 1.0).all()
