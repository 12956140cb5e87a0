"""Every planted fault is caught by the programs that ought to show it.

    python -m pytest tests/mutations

plants each fault of `faults.py` in a child process (some crash it) and runs its programs there. A
fault that is not caught means that the suite would not notice if somebody made that mistake.
"""

import faulthandler
import os
import signal
import traceback

import pytest
import torch
import warp as wp
from faults import FAULTS

from bench.fuzz.known import KNOWN
from bench.fuzz.shrink import find_failure
from kscheduler import _core

RIGHT, WRONG, BROKEN = 0, 1, 2
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
ENDLESS = signal.SIGALRM  # a loop whose condition is read too early may never end
RUNS = 150  # until a fault shows itself, which takes a free core; without one, a few


def outcome(names, plant=None, runs=RUNS, seconds=60) -> int:
    """Exit status of a child that runs known programs with a fault, or minus its signal."""
    child = os.fork()
    if child == 0:
        status = BROKEN
        try:
            faulthandler.disable()  # a crash is an answer
            signal.alarm(seconds)
            torch.set_num_threads(1)
            if plant is None:
                found = [find_failure(KNOWN[name], runs) for name in names]
            else:
                with plant():
                    found = [find_failure(KNOWN[name], runs) for name in names]
            status = WRONG if all(found) else RIGHT
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module", autouse=True)
def no_threads_to_lose():
    """Children have no pool threads; those of earlier tests must be gone before the fork."""
    wp.init()
    _core.shut_down_pool()


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name):
    fault = FAULTS[name]
    status = outcome(fault.programs, fault.plant)
    assert status == WRONG or -status in (*CRASHES, ENDLESS), (
        f"{fault.says} Nothing noticed ({status})."
    )


@pytest.mark.parametrize("program", sorted({p for f in FAULTS.values() for p in f.programs}))
def test_without_a_fault_nothing_is_caught(program):
    assert outcome([program], runs=3) == RIGHT
