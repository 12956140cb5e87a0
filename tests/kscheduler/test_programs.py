"""Programs that nobody wrote give the same bytes in a window as without one.

Hypothesis draws 500 of them and shrinks a failure; `python -m bench fuzz` runs any number.
"""

import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from bench.fuzz.command import Tally, check
from bench.fuzz.generate import generate, show
from bench.fuzz.known import KNOWN
from bench.fuzz.run import as_written, difference, in_window
from bench.fuzz.shrink import find_failure, missing_edge, shrink
from kscheduler import _core

RUNS = 3  # of each known program: an order that is wrong shows itself now and then


@settings(
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(source=st.randoms(use_true_random=False))
def test_random_programs_do_what_they_do_without_a_window(source):
    program = generate(source)
    note(show(program))
    assert difference(as_written(program), in_window(program)) is None


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_do_what_they_do_without_a_window(name):
    assert find_failure(KNOWN[name], RUNS) is None


def test_tasks_of_random_programs_overlap():
    tally = Tally()
    for seed in range(40):
        assert check(seed, tally, "stream") is None
    assert tally.overlapped > 0


def test_random_programs_are_replayed():
    tally = Tally()
    for seed in range(40):
        assert check(seed, tally, "graph") is None
    assert tally.replayed > 0


def test_same_seed_gives_same_program():
    assert generate(random.Random(7)) == generate(random.Random(7))


def test_shrinking_finds_the_tasks_whose_edge_is_missing():
    program = KNOWN["read after write"]
    _core.set_fault("drop_raw")
    try:
        smallest = shrink(program)
        edge = missing_edge(smallest)
    finally:
        _core.set_fault("")
    assert len(smallest.ops) == 2
    assert edge == smallest.ops


def test_function_without_warp_can_be_recorded_before_warp_is_initialised():
    code = (
        "import torch, kscheduler as ks\n"
        "step = ks.window(strategy='graph')(lambda x: x * 2.0)\n"
        "assert all(step(torch.full((2,), v)).tolist() == [2 * v] * 2 for v in (1.0, 2.0, 3.0))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
