"""What a window costs a program: opening it, submitting a launch, and torch ops beside it."""

import torch

import kscheduler as ks
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
