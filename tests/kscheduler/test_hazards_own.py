"""Four hazards of our own: float modes, modules with tiles, loops whose body changes in Python, and
replays on a busy machine."""

from __future__ import annotations

import subprocess
import sys

import kernels_semantics as kernels
import kernels_tiles as tiles
import pytest
import torch
import warp as wp
from hazard_rows import hazard, replaced
from latch import held

import kscheduler as ks
from kscheduler.intercept import warp_launch
from kscheduler.record import RecordSink

N = 64
TILES = (1 << 15) * tiles.TILE


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


# --- the float mode ------------------------------------------------------------------------------


@hazard(switch=None, why="the control word is copied with each task, whatever its order")
def test_float_mode_of_the_issuing_thread_is_that_of_its_tasks():
    x = torch.full((N,), 1.5e-38)
    results = {}
    before = torch.tensor([1.5e-38]) * 0.5
    with ks.window(streams=2):
        for flush in (True, False, True):
            torch.set_flush_denormal(flush)
            try:
                y = torch.ones(N)
                with held(kernels.denormal) as latch:
                    launch(kernels.denormal, [wp.from_torch(x)], [wp.from_torch(y)])
                    latch.wait()  # a worker runs it, and was made before the mode was set
                    torch.set_flush_denormal(not flush)
                    results.setdefault(flush, []).append(y.clone())
            finally:
                torch.set_flush_denormal(False)
    assert all((y == 0.0).all() for y in results[True])
    assert all((y == before).all() for y in results[False])
    assert before != 0.0


@hazard(switch=None, why="the control word is copied with each replay, whatever its order")
def test_float_mode_of_a_replay_is_that_of_its_caller():
    x = torch.full((4096,), 1.5e-38)
    outs = [torch.ones(4096) for _ in range(4)]

    @graph
    def halve():
        for out in outs:
            launch(kernels.denormal, [wp.from_torch(x)], [wp.from_torch(out)], 4096)

    halve()
    for flush in (True, False, True, False):
        torch.set_flush_denormal(flush)
        try:
            halve()
        finally:
            torch.set_flush_denormal(False)
        assert all(bool((out == 0.0).all()) is flush for out in outs)


# --- tiles ---------------------------------------------------------------------------------------


def _run_tiles(rounds):
    x = torch.arange(float(TILES))
    outs = [torch.zeros(TILES) for _ in range(6)]
    arrays = [wp.from_torch(out) for out in outs]
    with ks.window(streams=2) as window:
        for _ in range(rounds):
            for k, array in enumerate(arrays):
                if k % 2:
                    launch(tiles.plain_double, [wp.from_torch(x)], [array], TILES)
                else:
                    wp.launch_tiled(
                        tiles.tile_double,
                        dim=[TILES // tiles.TILE],
                        inputs=[wp.from_torch(x)],
                        outputs=[array],
                        block_dim=1,
                        device="cpu",
                    )
    assert all(torch.equal(out, 2.0 * x) for out in outs)
    return window.report


@hazard(switch=None, why="without its guard the process crashes; the copies are checked below")
def test_tile_module_runs_beside_itself():
    assert any(_run_tiles(4).overlapped > 0 for _ in range(20))


@hazard(
    switch=replaced(warp_launch, "lane_code", lambda *args: None),
    why="kernels of one module share a static, not memory that a task names",
)
def test_tile_module_has_one_copy_per_lane():
    assert _lanes_of(tiles.tile_double) == 3
    assert _lanes_of(tiles.plain_double) == 3  # it writes the same static


def _lanes_of(kernel):
    made = []
    original = warp_launch._core.LaneCode
    lane_code = warp_launch.lane_code
    hooks = kernel.module.load(wp.get_device("cpu"), 1).get_kernel_hooks(kernel)
    module_exec = warp_launch.find_module_exec(kernel, hooks)
    assert warp_launch.kernel_access(kernel, module_exec).uses_tiles
    functions = []
    warp_launch._core = _Recorder(original, functions)
    try:
        made.append(lane_code(kernel, module_exec, False, 3))
    finally:
        warp_launch._core = _Recorder.core
    return len(set(functions)) if made[0] is not None else 0


class _Recorder:
    core = warp_launch._core

    def __init__(self, original, functions):
        self._original, self._functions = original, functions

    def LaneCode(self, functions):
        self._functions += functions
        return self._original(functions)


# --- loops ---------------------------------------------------------------------------------------


def _swapping_loop(is_swapping):
    def program(left):
        arrays = [wp.from_torch(t) for t in (torch.ones(N), torch.zeros(N))]

        def body():
            launch(kernels.step_down, [arrays[0]], [arrays[1], left])
            if is_swapping:
                arrays.reverse()

        wp.capture_while(left, body)
        return wp.to_torch(arrays[0]).clone(), wp.to_torch(arrays[1]).clone()

    return program


def four():
    return wp.array([4], dtype=int, device="cpu")


@hazard()
def test_changing_body_of_a_loop_runs_as_written_in_a_window():
    expected = _swapping_loop(True)(four())
    with ks.window(streams=2), held(kernels.step_down) as latch:
        result = _swapping_loop(True)(four())
        assert not latch.is_standing
    assert all(map(torch.equal, expected, result))


@hazard(
    switch=replaced(RecordSink, "_differs", lambda self, recordings: None),
    why="a body that changes is another graph each time, not another order",
)
def test_changing_body_of_a_loop_is_not_recorded():
    with pytest.raises(ks.NotReplayable, match="not the same in each iteration"):
        graph(_swapping_loop(True))(four())


# --- a busy machine ------------------------------------------------------------------------------


@hazard()
def test_busy_core_delays_a_replay_and_nothing_else():
    values = torch.zeros(N)

    @graph
    def chain(x):
        parts = [torch.zeros(N) for _ in range(8)]
        for k, part in enumerate(parts):
            launch(kernels.scale_into, [wp.from_torch(x), float(k)], [wp.from_torch(part)])
            launch(kernels.add, [wp.from_torch(part), 1.0])
        return torch.stack(parts).sum(0) + values

    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for k in range(100):
            assert (chain(torch.full((N,), float(k))) == 28.0 * k + 8.0).all()
    finally:
        busy.kill()
        busy.wait()
