"""Each hazard test fails when what it tests is switched off; and every known row is there.

Without their guards some of them write to freed memory, so each runs in a child process of its own.
"""

from __future__ import annotations

import os
import signal
import traceback

import pytest
import test_hazards_graph
import test_hazards_host
import test_hazards_memory
import test_hazards_own
import test_hazards_threads
import torch
from hazard_rows import ROWS
from latch import independent

FILES = (
    test_hazards_graph,
    test_hazards_host,
    test_hazards_memory,
    test_hazards_own,
    test_hazards_threads,
)
KNOWN = (
    *("a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2", "e1", "e2", "f1", "f2"),
    *("g1", "g2", "i1", "i2", "k1", "k2", "l1", "l2", "m1", "n2"),
)
OWN = ("float_mode", "tile_module", "changing_body", "busy_core")
WITH_SWITCH = [row for row in ROWS if row.switch is not None and not row.needs_gpu]


PASSED, FAILED, OTHER = 0, 1, 2
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)


def outcome_without_guard(row) -> int:
    """Exit code of a child that runs the test with its switch thrown, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = OTHER
        try:
            signal.alarm(100)
            torch.set_num_threads(1)  # OpenMP's threads are not there any more
            with row.switch():
                row.run()
            code = PASSED
        except (AssertionError, pytest.fail.Exception):
            code = FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("row", WITH_SWITCH, ids=[row.name for row in WITH_SWITCH])
def test_each_hazard_fails_without_its_guard(row):
    assert outcome_without_guard(row) in (FAILED, *(-number for number in CRASHES))


def test_every_known_row_has_a_test():
    names = [name for module in FILES for name in vars(module) if name.startswith("test_")]
    for row in (*KNOWN, *OWN):
        assert any(name.startswith(f"test_{row}_") for name in names), row


def test_every_row_is_registered():
    registered = {row.name.partition("[")[0] for row in ROWS}
    names = {name for module in FILES for name in vars(module) if name.startswith("test_")}
    assert registered == names


def test_most_known_rows_fail_without_the_tracker():
    shown = {row.name[5:7] for row in WITH_SWITCH if row.switch is independent}
    assert shown >= {"a1", "b1", "b2", "d1", "d2", "f1", "f2", "l1", "l2"}


def test_rows_for_a_gpu_are_written():
    names = {row.name for row in ROWS if row.needs_gpu}
    assert names == {"test_d2_atomics_on_a_gpu_are_close", "test_k1_user_streams_stay_ordered"}
