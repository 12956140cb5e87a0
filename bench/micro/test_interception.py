"""What a window costs a program: opening it, submitting a launch, and torch ops beside it."""

import time
from statistics import median, quantiles

import pytest
import torch

import kscheduler as ks
from bench.cases import Program, find_case
from bench.micro.conftest import TINY_LAUNCHES


def per_launch(benchmark):
    microseconds = 1e6 * benchmark.stats.stats.median / TINY_LAUNCHES
    benchmark.extra_info["us_per_launch"] = microseconds


def test_empty_window(benchmark):
    def enter_and_leave():
        with ks.window(streams=2) as window:
            pass
        return window

    assert benchmark(enter_and_leave).report.tasks == 0


def test_launch_as_written(benchmark, tiny):
    benchmark(tiny)
    per_launch(benchmark)


def test_launch_submitted(benchmark, tiny):
    step = ks.window(streams=2)(tiny)
    benchmark(step)
    per_launch(benchmark)
    assert step.report.tasks == TINY_LAUNCHES


def hundred_adds(tensor):
    for _ in range(100):
        tensor.add_(1.0)


def test_torch_op_outside(benchmark):
    benchmark(hundred_adds, torch.zeros(8))


def test_torch_op_in_idle_window(benchmark):
    tensor = torch.zeros(8)
    with ks.window(streams=2):
        benchmark(hundred_adds, tensor)


TORCH_OPS = 2000


@pytest.mark.parametrize("worlds", [1, 16])
def test_physics_and_many_torch_ops(benchmark, worlds):
    """A humanoid step and 2,000 small torch ops, as written and in a window by turns."""
    program = Program(find_case("physics/humanoid"), worlds)
    program.load_action(0)
    tensor = torch.zeros(8)

    def step():
        program.step()
        for _ in range(TORCH_OPS // 100):
            hundred_adds(tensor)

    window = ks.window(streams=2)(step)
    seconds = {step: [], window: []}

    def both():
        for call, times in seconds.items():
            program.restore()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)

    benchmark.pedantic(both, rounds=15, iterations=1, warmup_rounds=2)
    ratios = [b / a for a, b in zip(*[times[2:] for times in seconds.values()], strict=True)]
    benchmark.extra_info["window_to_as_written"] = median(ratios)
    benchmark.extra_info["p20"], benchmark.extra_info["p80"] = quantiles(ratios, n=5)[::3]
    assert window.report.tasks < TORCH_OPS  # the rest ran out of the window's sight
