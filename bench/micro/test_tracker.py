"""The hazard tracker: nanoseconds per task (timed in C++), and the plain Python twin."""

import statistics

import pytest

from kscheduler import _core, hazards
from kscheduler.access import READ, WRITE, Access

TASKS = 20_000


@pytest.mark.parametrize("window", [16, 32, 128])
@pytest.mark.parametrize("ranges", [6, 10])
def test_native_tracker(benchmark, window, ranges):
    per_task = []

    def run() -> None:
        per_task.append(_core.HazardTracker.benchmark(TASKS, window, ranges))

    benchmark.pedantic(run, rounds=21, warmup_rounds=1)
    benchmark.extra_info["ns_per_task_p50"] = statistics.median(per_task)
    benchmark.extra_info["ns_per_task_min"] = min(per_task)
    assert min(per_task) > 0.0


def test_python_twin(benchmark):
    def add_all():
        tracker = hazards.HazardTracker()
        for task in range(200):
            start = 64 * (task % 20)
            accesses = [Access(start, start + 64, WRITE), Access(start + 64, start + 128, READ)]
            tracker.add(task, accesses, lambda other, task=task: other + 32 < task)
        return tracker

    tracker = benchmark(add_all)
    assert tracker.query(Access(0, 64, READ)) != []
