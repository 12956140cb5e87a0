"""Measuring: timed batches, the guard against foreign load, and the statistics.

A step is timed from its call until everything it did has ended. Loading the action and restoring
the start state are outside. A batch during which other processes used more than 5% of the machine
does not count; how often it is repeated is bounded, and what stays is marked `noisy`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil
import warp as wp

__all__ = [
    "FOREIGN_LOAD_LIMIT",
    "Batch",
    "LoadMeter",
    "Spread",
    "is_slower",
    "largest_error",
    "measure_quietly",
    "run_batch",
    "spread",
    "unequal_arrays",
]

FOREIGN_LOAD_LIMIT = 0.05
_SHORTEST_BATCH_SECONDS = 0.3
Clock = Callable[[], float]


class Loadable(Protocol):
    """What a batch needs of a program."""

    def load_action(self, index: int) -> None:
        """Puts the action of one step where the step reads it."""

    def restore(self) -> None:
        """Puts the start state back."""


@dataclass(frozen=True)
class Batch:
    """One timed run of an arm.

    Attributes:
        seconds: Time of each step.
        wall_seconds: From before the first step to after the last one, actions included; restoring
            the start state is not.
        foreign: Share of the machine's CPU time that others used, 0 to 1.
        outputs: What the last step returned.
    """

    seconds: tuple[float, ...]
    wall_seconds: float
    foreign: float
    outputs: Any = None

    @property
    def is_noisy(self) -> bool:
        """Whether others used more of the machine than is tolerated."""
        return self.foreign > FOREIGN_LOAD_LIMIT


class LoadMeter:
    """Share of the machine's CPU time that other processes used since `start`."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begins a new span."""
        self._machine = _machine_seconds()
        self._own = _own_seconds()

    def foreign(self) -> float:
        """The share, 0 to 1; 0 while the clock of the machine has not ticked."""
        busy, total = _machine_seconds()
        own = _own_seconds() - self._own
        spent = total - self._machine[1]
        if spent <= 0:
            return 0.0
        return min(1.0, max(0.0, (busy - self._machine[0] - own) / spent))


def _machine_seconds() -> tuple[float, float]:
    # Time stolen by a hypervisor counts as busy: it is not ours.
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    total = sum(times) - guest
    return total - idle, total


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def run_batch(
    program: Loadable,
    step: Callable[[], Any],
    steps: int,
    *,
    clock: Clock = time.perf_counter,
) -> Batch:
    """Restores the start state and times some steps one by one.

    Short steps are run in several rounds, each from the start state, until the batch is long
    enough for the meter, whose clock ticks 100 times a second.

    Args:
        program: Owner of the state and the actions.
        step: What to time.
        steps: How many in one round.
        clock: Seconds.
    """
    seconds: list[float] = []
    wall_seconds = 0.0
    outputs = None
    meter = LoadMeter()
    while wall_seconds < _SHORTEST_BATCH_SECONDS:
        program.restore()
        began = clock()
        for index in range(steps):
            program.load_action(index)
            start = clock()
            outputs = step()
            _fence()
            seconds.append(clock() - start)
        wall_seconds += clock() - began
    return Batch(tuple(seconds), wall_seconds, meter.foreign(), outputs)


def _fence() -> None:
    # Every arm ends with it. Nothing is pending on the CPU once a step has returned.
    wp.synchronize()


def measure_quietly(run: Callable[[], Batch], retries: int) -> tuple[Batch, int]:
    """Runs a batch again while others disturb it, a bounded number of times.

    Args:
        run: Runs one batch.
        retries: How many batches may be thrown away.

    Returns:
        The batch that counts, and how many were thrown away; it is the last one, even if noisy.
    """
    for used in range(retries):
        batch = run()
        if not batch.is_noisy:
            return batch, used
    return run(), retries


@dataclass(frozen=True)
class Spread:
    """Median and the 20th and 80th percentile of some seconds."""

    p50: float
    p20: float
    p80: float


def spread(seconds: Sequence[float]) -> Spread:
    """Median, 20th and 80th percentile.

    Args:
        seconds: At least one value.
    """
    p20, p50, p80 = np.percentile(np.asarray(seconds, dtype=np.float64), [20, 50, 80])
    return Spread(float(p50), float(p20), float(p80))


def is_slower(base: Sequence[float], new: Sequence[float], *, tolerance: float = 0.05) -> bool:
    """Whether interleaved measurements show `new` to be slower than `base`.

    Args:
        base: Medians of the batches of one arm, in the order measured.
        new: Medians of the batches that were measured between them; ``new[i]`` follows ``base[i]``.
        tolerance: The smallest slowdown that counts.

    Returns:
        True if the median of the paired ratios exceeds the tolerance and four pairs in five agree
        on the direction, so that one disturbed batch raises no alarm.
    """
    ratios = np.asarray(new, dtype=np.float64) / np.asarray(base, dtype=np.float64)
    return bool(np.median(ratios) > 1.0 + tolerance and np.percentile(ratios, 20) > 1.0)


def unequal_arrays(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> list[str]:
    """Names of the arrays that differ in at least one bit, or exist on one side only."""
    return [
        name
        for name in sorted(expected.keys() | actual.keys())
        if name not in expected
        or name not in actual
        or expected[name].dtype != actual[name].dtype
        or expected[name].shape != actual[name].shape
        or expected[name].tobytes() != actual[name].tobytes()
    ]


def largest_error(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> float:
    """The largest absolute difference over common arrays; NaN where one side alone is NaN."""
    worst = 0.0
    for name in expected.keys() & actual.keys():
        left = expected[name].astype(np.float64)
        right = actual[name].astype(np.float64)
        both_nan = np.isnan(left) & np.isnan(right)
        with np.errstate(invalid="ignore"):
            error = np.where(both_nan | (left == right), 0.0, np.abs(left - right))
        worst = float(np.maximum(worst, error.max(initial=0.0)))
    return worst
