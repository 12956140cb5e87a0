"""Semantics 4, 12 and 13: windows in windows, in threads, across forks, around compiled code."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import kernels_semantics as kernels
import pytest
import torch
import torch._dynamo
import warp as wp
from latch import held
from test_hazards_threads import in_thread

import kscheduler as ks
from kscheduler import _core
from kscheduler.intercept import current

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


# --- 4: nested -----------------------------------------------------------------------------------


def test_inner_window_shares_the_streams_of_the_outer_one():
    with ks.window(streams=2):
        sink = current.current_sink()
        with ks.window(size=4, streams=1):
            assert current.current_sink() is sink
            with ks.window(strategy="auto"):
                assert current.current_sink() is sink
        assert current.current_sink() is sink
    assert current.current_sink() is None


def test_inner_report_tells_of_the_inner_tasks():
    x = torch.zeros(N)
    with ks.window(streams=2) as outer:
        for _ in range(3):
            launch(kernels.add, [wp.from_torch(x), 1.0])
        x.add_(1.0)
        with ks.window() as inner:
            launch(kernels.add, [wp.from_torch(x), 1.0])
            x.add_(1.0)
    assert [task.name for task in inner.report.graph.tasks] == ["add"]
    assert 1 <= inner.report.tasks <= 2  # an op is counted while something is in flight
    assert 4 <= outer.report.tasks <= 6


def test_exception_in_an_inner_window_leaves_the_outer_one_usable():
    x, y = torch.zeros(N), torch.zeros(N)
    with ks.window(streams=2) as outer:
        launch(kernels.add, [wp.from_torch(x), 1.0])
        with pytest.raises(ZeroDivisionError), ks.window() as inner:
            launch(kernels.scale_into, [wp.from_torch(x), 3.0], [wp.from_torch(y)])
            launch(kernels.add, [wp.from_torch(y), 1.0 / 0.0])
        launch(kernels.add, [wp.from_torch(y), 1.0])
    assert (y == 4.0).all()
    assert inner.report.fences["exception"] == 1
    assert outer.report.fences["window_exit"] == 1


def test_recording_inside_a_window_is_behind_its_tasks():
    x = torch.zeros(N)
    step = graph(lambda x: x * 2.0)
    step(x)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 3.0])
        latch.wait()
        y = step(x)
        launch(kernels.fill, [wp.from_torch(x), 4.0])
        z = graph(lambda x: x + 1.0)(x)  # recorded in here
    assert (y == 6.0).all()
    assert (z == 5.0).all()
    assert window.report.fences["program_order"] >= 2


def test_function_to_record_runs_as_written_inside_a_window():
    x = torch.zeros(N)
    step = graph(lambda x: x[0].item())
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 3.0])
        latch.wait()
        assert step(x) == 3.0
    with pytest.raises(ks.NotReplayable):
        step(x)
    assert current.current_sink() is None


def test_window_object_cannot_be_entered_twice_but_again():
    window = ks.window(streams=2)
    with window, pytest.raises(ks.WindowError, match="open already"):
        window.__enter__()
    with window:
        pass


# --- 12: threads ---------------------------------------------------------------------------------


def test_window_cannot_be_left_by_another_thread():
    window = ks.window(streams=2)

    def leave():
        with pytest.raises(ks.WindowError, match="another thread"):
            window.__exit__(None, None, None)

    with window:
        in_thread(leave)
        x = torch.ones(N)
        launch(kernels.add, [wp.from_torch(x), 1.0])
    assert (x == 2.0).all()


def test_windows_of_many_threads_open_and_close_in_any_order():
    before = (wp.launch, torch.Tensor.tolist, os.fork)
    failures = []

    def work(number):
        x, y = torch.zeros(N), torch.zeros(N)
        ax, ay = wp.from_torch(x), wp.from_torch(y)
        for k in range(30):
            with ks.window(size=1 + number, streams=1 + number % 3):
                launch(kernels.fill, [ax, float(k)])
                launch(kernels.scale_into, [ax, 2.0], [ay])
                if y.tolist() != [2.0 * k] * N:
                    failures.append((number, k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures
    assert (wp.launch, torch.Tensor.tolist, os.fork) == before


def test_recorded_functions_of_two_threads_run_at_once():
    def work():
        weight = torch.full((N,), 3.0)
        step = graph(lambda x: _scaled(x) + weight)
        for k in range(50):
            assert (step(torch.full((N,), float(k))) == 2.0 * k + 3.0).all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    in_thread(work)
    for thread in threads:
        thread.join(60.0)


def _scaled(x):
    y = torch.zeros(N)
    launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(y)])
    return y


def test_threads_are_kept_and_lent_again():
    for _ in range(3):
        with ks.window(streams=3):
            launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0])
    size = _core.pool_size()
    for _ in range(30):
        with ks.window(streams=3):
            launch(kernels.fill, [wp.from_torch(torch.zeros(N)), 1.0])
    assert _core.pool_size() == size


def test_arrays_of_a_window_may_be_collected_by_another_thread():
    with ks.window(streams=2):
        for _ in range(20):
            cycle = [wp.zeros(N, dtype=float, device="cpu")]
            cycle.append(cycle)
            launch(kernels.fill, [cycle[0], 1.0])
            del cycle
        in_thread(gc.collect)
        x = torch.zeros(N)
        launch(kernels.fill, [wp.from_torch(x), 1.0])
    assert (x == 1.0).all()


# --- 12: forks -----------------------------------------------------------------------------------


def test_fork_is_refused_while_a_window_is_open():
    with ks.window(streams=2):
        with pytest.raises(ks.WindowError, match="fork"):
            os.fork()
        with ks.window():
            pass
        with pytest.raises(ks.WindowError, match="fork"):
            os.fork()
        assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
    with pytest.raises(ks.WindowError, match="fork"), ks.window(streams=2):
        in_thread(os.fork)


def test_forked_child_makes_threads_of_its_own():
    x = torch.zeros(N)
    array = wp.from_torch(x)
    with ks.window(streams=2):
        launch(kernels.fill, [array, 1.0])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            with ks.window(streams=3), held(kernels.fill) as latch:
                launch(kernels.fill, [array, 5.0])
                latch.wait()  # a worker of the child
                code = 0 if x.tolist() == [5.0] * N else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (x == 1.0).all()
    with ks.window(streams=2):
        launch(kernels.fill, [array, 2.0])
    assert (x == 2.0).all()


# --- 13: compiled code and graphs of others -------------------------------------------------------


def test_compiled_callable_and_tasks_take_turns():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: x.sin() + y, backend="eager")
    x, y = torch.zeros(N), torch.zeros(N)

    def program(function):
        x.zero_(), y.zero_()
        for k in range(4):
            launch(kernels.add, [wp.from_torch(x), 0.5])
            y.copy_(function(x, y))
            launch(kernels.add, [wp.from_torch(y), float(k)])
        return y.clone()

    expected = program(lambda x, y: x.sin() + y)
    with ks.window(streams=2) as window:
        result = program(compiled)
    assert torch.equal(result, expected)
    assert window.report.fences["compiled_callable"] == 4
    assert any("4 times; compiled code ran in 4" in note for note in window.report.notes)


def test_warp_graph_of_the_programs_own_is_behind_everything():
    x, y = torch.zeros(N), torch.zeros(N)
    ax, ay = wp.from_torch(x), wp.from_torch(y)
    with wp.ScopedCapture(device="cpu") as capture:
        launch(kernels.scale_into, [ax, 2.0], [ay])
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        launch(kernels.fill, [ax, 3.0])
        latch.wait()
        wp.capture_launch(capture.graph)
        seen = y.clone()
    assert (seen == 6.0).all()
    assert window.report.fences["stream_sync"] == 1


@pytest.mark.gpu
def test_cuda_graph_of_the_programs_own_is_behind_everything():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x = torch.zeros(N, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x * 2
    with ks.window(streams=2):
        x.fill_(3.0)
        captured.replay()
        z = y + 1
    assert (z == 7.0).all()
