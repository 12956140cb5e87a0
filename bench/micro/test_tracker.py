"""The hazard tracker: nanoseconds per task, native and plain Python."""

import pytest

from kscheduler import _core, hazards
from kscheduler.access import READ, WRITE, Access

TASKS = 20_000


@pytest.mark.parametrize("window", [8, 32, 128])
@pytest.mark.parametrize("ranges", [4, 10])
def test_native_tracker(benchmark, window, ranges):
    nanoseconds = benchmark(_core.HazardTracker.benchmark, TASKS, window, ranges)
    benchmark.extra_info["ns_per_task"] = nanoseconds
    assert nanoseconds > 0.0


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
