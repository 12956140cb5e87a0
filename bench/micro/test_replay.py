"""Replaying: a real step beside Warp's own graph, and the cost of a tiny task."""

import pytest
import warp as wp

import kscheduler as ks
from bench.micro.conftest import TINY_LAUNCHES


@pytest.mark.parametrize("streams", [1, 2])
def test_replay_tiny_launches(benchmark, tiny, streams):
    step = ks.window(strategy="graph", streams=streams)(tiny)
    for _ in range(3):
        step()
    benchmark(step)
    benchmark.extra_info["us_per_task"] = 1e6 * benchmark.stats.stats.median / TINY_LAUNCHES


def test_warp_graph_tiny_launches(benchmark, tiny):
    with wp.ScopedCapture(device="cpu") as capture:
        tiny()
    benchmark(wp.capture_launch, capture.graph)


@pytest.mark.parametrize("streams", [1, 2])
def test_replay_half_cheetah(benchmark, half_cheetah, streams):
    step = ks.window(strategy="graph", streams=streams)(half_cheetah.step)
    step()
    benchmark.pedantic(step, setup=half_cheetah.restore, rounds=50, warmup_rounds=5)


def test_warp_graph_half_cheetah(benchmark, half_cheetah):
    with wp.ScopedCapture(device="cpu") as capture:
        half_cheetah.step()
    graph = capture.graph

    def replay():
        wp.capture_launch(graph)

    benchmark.pedantic(replay, setup=half_cheetah.restore, rounds=50, warmup_rounds=5)
