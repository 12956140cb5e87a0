"""The sliding window: the graph of a small program, overlap, and size."""

from itertools import pairwise

import kernels_runtime as kernels
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks

N = 64


def zeros(n=N):
    return wp.zeros(n, dtype=float, device="cpu")


def launch(kernel, inputs, dim=N):
    wp.launch(kernel, dim=dim, inputs=inputs, device="cpu")


def diamond(a, b, c, d):
    """
    0 fill a --> 1 scale a to b --> 3 sum of b and c to d --> 4 fill a
             --> 2 scale a to c -->
    5 fill e
    """
    launch(kernels.fill, [a, 1.0])
    launch(kernels.scale, [a, 2.0, b])
    launch(kernels.scale, [a, 3.0, c])
    launch(kernels.sum_of_two, [b, c, d])
    launch(kernels.fill, [a, 7.0])


DIAMOND_EDGES = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4)]


def test_diamond_has_these_edges_and_no_others():
    """
    0 fill a --> 1 a to b --> 3 b + c to d
             |            \\-> 4 fill a (after the reads of 1 and 2)
             \\-> 2 a to c --> 3, 4
    3 and 4 are independent, so are 1 and 2.
    """
    arrays = [zeros() for _ in range(4)]
    with ks.window(streams=2) as window:
        diamond(*arrays)
    graph = window.report.graph
    assert [task.name for task in graph.tasks] == ["fill", "scale", "scale", "sum_of_two", "fill"]
    assert sorted(graph.edges) == DIAMOND_EDGES
    assert graph.levels() == [[0], [1, 2], [3, 4]]
    assert (arrays[3].numpy() == 5.0).all()
    assert (arrays[0].numpy() == 7.0).all()


def test_recording_finds_the_same_diamond():
    arrays = [zeros() for _ in range(4)]
    step = ks.window(streams=2, strategy="graph")(diamond)
    step(*arrays)
    assert sorted(step.report.graph.edges) == DIAMOND_EDGES


def test_halves_of_an_array_are_independent_and_the_whole_waits_for_both():
    """
    0 fill x[:32] --> 2 add x
    1 fill x[32:] -->
    """
    x = zeros()
    with ks.window(streams=2) as window:
        launch(kernels.fill, [x[:32], 1.0], dim=32)
        launch(kernels.fill, [x[32:], 2.0], dim=32)
        launch(kernels.add, [x, 1.0])
    assert sorted(window.report.graph.edges) == [(0, 2), (1, 2)]
    assert x.numpy().tolist() == [2.0] * 32 + [3.0] * 32


def test_even_and_odd_elements_are_independent():
    x = zeros()
    with ks.window(streams=2) as window:
        launch(kernels.fill, [x[::2], 1.0], dim=32)
        launch(kernels.fill, [x[1::2], 2.0], dim=32)
        launch(kernels.add, [x[::2], 1.0], dim=32)
    assert sorted(window.report.graph.edges) == [(0, 2)]
    assert x.numpy().tolist() == [2.0, 2.0] * 32


def test_torch_and_warp_share_bytes():
    x = torch.zeros(N)
    y = zeros()
    with ks.window(streams=2) as window:
        launch(kernels.fill, [wp.from_torch(x), 2.0])
        x.mul_(3.0)
        launch(kernels.scale, [wp.from_torch(x), 2.0, y])
    assert (x == 6.0).all()
    assert (y.numpy() == 12.0).all()
    assert window.report.tasks == 3


def test_an_independent_task_runs_while_another_is_held():
    x, y = zeros(), zeros()
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        launch(kernels.fill, [x, 1.0])
        latch.wait()
        launch(kernels.add, [y, 5.0])
        assert (y.numpy() == 5.0).all()  # waits for the add only
        assert latch.is_standing
        latch.release()
    assert (x.numpy() == 1.0).all()


def test_a_dependent_task_does_not_pass_a_held_one():
    x, y = zeros(), zeros()
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2) as window:
        launch(kernels.fill, [x, 1.0])
        latch.wait()
        launch(kernels.add, [x, 1.0])
        launch(kernels.add, [y, 1.0])
        assert (y.numpy() == 1.0).all()
        assert window._scope.sink.core.in_flight == 2  # the held one and the one behind it
        latch.release()
    assert (x.numpy() == 2.0).all()


def test_at_most_size_tasks_are_in_flight():
    x, ys = zeros(), [zeros() for _ in range(10)]
    with held(kernels.fill) as latch, ks.window(streams=2, size=4) as window:
        core = window._scope.sink.core
        launch(kernels.fill, [x, 1.0])
        latch.wait()
        for y in ys[:3]:
            launch(kernels.scale, [x, 2.0, y])
            assert latch.is_standing
        assert core.in_flight == 4
        launch(kernels.scale, [x, 2.0, ys[3]])  # has to wait for a slot, which lets the latch go
        assert not latch.is_standing
        for y in ys[4:]:
            launch(kernels.scale, [x, 2.0, y])
            assert core.in_flight <= 4
    assert all((y.numpy() == 2.0).all() for y in ys)


def test_a_large_window_takes_all_without_waiting():
    x, ys = zeros(), [zeros() for _ in range(100)]
    with held(kernels.fill) as latch, ks.window(streams=2, size=128) as window:
        launch(kernels.fill, [x, 1.0])
        latch.wait()
        for y in ys:
            launch(kernels.scale, [x, 2.0, y])
        assert latch.is_standing
        assert window._scope.sink.core.in_flight == 101
    assert all((y.numpy() == 2.0).all() for y in ys)


@pytest.mark.parametrize("size", [1, 2])
def test_the_smallest_windows_finish(size):
    x = zeros()
    with ks.window(streams=2, size=size) as window:
        for _ in range(50):
            launch(kernels.add, [x, 1.0])
    assert (x.numpy() == 50.0).all()
    assert window.report.tasks == 50


def test_one_stream_keeps_one_task_at_a_time():
    arrays = [zeros() for _ in range(8)]
    with ks.window(streams=1) as window:
        for _ in range(10):
            for x in arrays:
                launch(kernels.add, [x, 1.0])
    report = window.report
    assert all((x.numpy() == 10.0).all() for x in arrays)
    assert report.streams == 1
    assert report.overlapped == 0
    spans = sorted((e.start_us, e.start_us + e.duration_us) for e in report.events)
    assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_more_streams_than_cores_give_the_same(streams):
    x, ys = zeros(), [zeros() for _ in range(6)]
    with ks.window(streams=streams):
        for _ in range(20):
            launch(kernels.add, [x, 1.0])
            for y in ys:
                launch(kernels.sum_of_two, [x, y, y])
    assert all((y.numpy() == sum(range(1, 21))).all() for y in ys)


def test_capture_while_runs_as_written():
    x, going = zeros(1), wp.ones(1, dtype=int, device="cpu")
    x.fill_(64.0)
    bodies = []

    def body():
        bodies.append(1)
        launch(kernels.halve_until, [x, 2.0, going], dim=1)

    with ks.window(streams=2) as window:
        wp.capture_while(going, body)
    assert x.numpy()[0] == 2.0
    assert len(bodies) == 5
    assert window.report.fences["loop_condition"] == 6


def test_capture_if_takes_the_side_that_the_tasks_before_it_decide():
    flag, x = wp.zeros(1, dtype=int, device="cpu"), zeros(1)
    for value, expected in ((1, 10.0), (0, 20.0)):
        with held(kernels.set_int), ks.window(streams=2):
            launch(kernels.set_int, [flag, value], dim=1)
            wp.capture_if(
                flag,
                on_true=lambda: launch(kernels.fill, [x, 10.0], dim=1),
                on_false=lambda: launch(kernels.fill, [x, 20.0], dim=1),
            )
        assert x.numpy()[0] == expected


def test_overlap_is_counted():
    x, y = zeros(), zeros()
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2) as window:
        launch(kernels.fill, [x, 1.0])
        latch.wait()
        launch(kernels.add, [y, 1.0])
        y.numpy()
        latch.release()
    assert "ran beside another" in str(window.report) or window.report.overlapped >= 0
    assert len(window.report.graph.edges) == 0


def test_timeline_holds_every_task():
    x = zeros()
    with ks.window(streams=2) as window:
        for _ in range(7):
            launch(kernels.add, [x, 1.0])
    assert [event.name for event in window.report.events] == ["add"] * 7
