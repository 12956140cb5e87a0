"""Recording: a real step and a hundred tiny launches, kernels loaded."""

import pytest

import kscheduler as ks
from bench.micro.conftest import TINY_LAUNCHES


def test_record_tiny_launches(benchmark, tiny):
    def record():
        step = ks.window(strategy="graph", streams=2)(tiny)
        step()
        return step

    assert benchmark(record).report.tasks == TINY_LAUNCHES


@pytest.mark.parametrize("streams", [2])
def test_record_half_cheetah(benchmark, half_cheetah, streams):
    def record():
        half_cheetah.restore()
        step = ks.window(strategy="graph", streams=streams)(half_cheetah.step)
        step()
        return step

    assert benchmark.pedantic(record, rounds=5, warmup_rounds=1).report.tasks > 50
