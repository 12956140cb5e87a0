"""Measuring: what a batch times, when it counts, and when a difference is one."""

import math
import time

import numpy as np
import pytest
import torch

import kscheduler as ks
from bench import measure
from bench.measure import (
    Batch,
    is_slower,
    largest_error,
    measure_quietly,
    run_batch,
    spread,
    unequal_arrays,
)


class Recorder:
    """A program that remembers the order of calls."""

    def __init__(self):
        self.calls = []

    def load_action(self, index):
        self.calls.append(("action", index))

    def restore(self):
        self.calls.append("restore")

    def step(self):
        self.calls.append("step")
        return len(self.calls)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_batch_starts_from_the_start_state_with_the_first_action():
    program, clock = Recorder(), Clock()

    def step():
        clock.now += 1.0
        return program.step()

    batch = run_batch(program, step, 2, clock=clock)
    assert program.calls == ["restore", ("action", 0), "step", ("action", 1), "step"]
    assert batch.outputs == 5
    assert batch.seconds == (1.0, 1.0)


def test_step_times_exclude_actions_and_sum_to_the_wall_with_them():
    clock = Clock()

    class Slow(Recorder):
        def load_action(self, index):
            clock.now += 0.25

        def restore(self):
            clock.now += 100.0

    def step():
        clock.now += 2.0

    batch = run_batch(Slow(), step, 4, clock=clock)
    assert sum(batch.seconds) == 8.0
    assert batch.wall_seconds == 9.0


def test_short_steps_run_in_rounds_from_the_start_state():
    program, clock = Recorder(), Clock()

    def step():
        clock.now += 0.04
        program.step()

    batch = run_batch(program, step, 3, clock=clock)
    assert program.calls.count("restore") == 3
    assert len(batch.seconds) == 9


def test_planted_operation_is_timed_in_full():
    batch = run_batch(Recorder(), lambda: time.sleep(0.05), 3)
    assert min(batch.seconds) >= 0.05
    assert sum(batch.seconds) <= batch.wall_seconds


@pytest.mark.parametrize("strategy", ["serial", "stream", "graph", "auto"])
def test_operation_planted_in_a_window_is_timed_in_full(strategy):
    values = torch.zeros(4)

    @ks.kernel(writes=("into",))
    def slow(into):
        time.sleep(0.05)
        into.add_(1.0)

    step = ks.window(streams=2, strategy=strategy)(lambda: slow(values))
    batch = run_batch(Recorder(), step, 6)
    assert min(batch.seconds) >= 0.05
    assert values.tolist() == [len(batch.seconds)] * 4


def test_noisy_batches_are_thrown_away_while_retries_last():
    loads = iter([0.5, 0.2, 0.01])
    batch, thrown = measure_quietly(lambda: Batch((1.0,), 1.0, next(loads)), retries=5)
    assert (batch.foreign, thrown, batch.is_noisy) == (0.01, 2, False)


def test_last_batch_counts_when_retries_are_used_up_and_is_marked():
    loads = iter([0.5, 0.4, 0.3])
    batch, thrown = measure_quietly(lambda: Batch((1.0,), 1.0, next(loads)), retries=2)
    assert (batch.foreign, thrown, batch.is_noisy) == (0.3, 2, True)


@pytest.mark.parametrize(
    ("machine", "own", "expected"),
    [
        ((1.0, 4.0), 1.0, 0.0),
        ((2.0, 4.0), 1.0, 0.25),
        ((0.5, 4.0), 1.0, 0.0),
        ((0.0, 0.0), 0.0, 0.0),
    ],
)
def test_foreign_load_is_what_is_not_ours(monkeypatch, machine, own, expected):
    readings = iter([(10.0, 20.0), (10.0 + machine[0], 20.0 + machine[1])])
    ours = iter([5.0, 5.0 + own])
    monkeypatch.setattr(measure, "_machine_seconds", lambda: next(readings))
    monkeypatch.setattr(measure, "_own_seconds", lambda: next(ours))
    assert measure.LoadMeter().foreign() == pytest.approx(expected)


def test_spread_of_a_known_sample():
    values = spread([5.0, 1.0, 3.0, 2.0, 4.0, 6.0])
    assert (values.p20, values.p50, values.p80) == (2.0, 3.5, 5.0)


def noisy_run(rng, batches, slowdown=1.0):
    """Medians of two interleaved arms on a machine whose speed drifts and jumps."""
    drift = np.exp(np.cumsum(rng.normal(0.0, 0.03, batches)))
    base = drift * rng.normal(1.0, 0.02, batches)
    new = drift * rng.normal(1.0, 0.02, batches) * slowdown
    disturbed = rng.random(batches) < 0.1
    new[disturbed] *= rng.uniform(1.0, 2.0, np.count_nonzero(disturbed))
    return base, new


@pytest.mark.parametrize("seed", range(5))
def test_same_code_raises_at_most_one_alarm_in_twenty(seed):
    rng = np.random.default_rng(seed)
    alarms = sum(is_slower(*noisy_run(rng, 9)) for _ in range(20))
    assert alarms <= 1


@pytest.mark.parametrize("seed", range(5))
def test_planted_slowdown_of_a_fifth_raises_nineteen_alarms_in_twenty(seed):
    rng = np.random.default_rng(seed)
    alarms = sum(is_slower(*noisy_run(rng, 9, slowdown=1.2)) for _ in range(20))
    assert alarms >= 19


def test_gate_looks_at_pairs_not_at_pooled_medians():
    base = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert is_slower(base, [1.2 * value for value in base])
    assert not is_slower(base, base)
    assert not is_slower(base, [0.8 * value for value in base])


def test_arrays_are_compared_by_bits():
    nan, zero = np.array([math.nan]), np.array([0.0])
    assert unequal_arrays({"a": nan}, {"a": nan.copy()}) == []
    assert unequal_arrays({"a": zero}, {"a": -zero}) == ["a"]
    assert unequal_arrays({"a": zero}, {"a": zero.astype(np.float32)}) == ["a"]
    assert unequal_arrays({"a": zero}, {"b": zero}) == ["a", "b"]


def test_largest_error_sees_nan_on_one_side_only():
    nan = np.array([1.0, math.nan])
    assert largest_error({"a": nan}, {"a": nan.copy()}) == 0.0
    assert math.isnan(largest_error({"a": nan}, {"a": np.array([1.0, 2.0])}))
    left = {"a": np.array([1.0, math.inf]), "b": np.array([True, False])}
    right = {"a": np.array([1.5, math.inf]), "b": np.array([True, True])}
    assert largest_error(left, right) == 1.0
