"""`python -m bench check`: audits and verifies the cases themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

import kscheduler as ks
from bench.cases import CASES, Program, find_case
from bench.errors import UnusableOptionError

__all__ = ["CheckOptions", "check"]


@dataclass
class CheckOptions:
    """Does every task of a case write only what it says, and do all orders agree?

    Runs one step of each case task by task (`kscheduler.audit`), then under every exact strategy
    and in other orders that the recorded graph allows (`kscheduler.verify`). Exits with 1 if a
    write was not declared, a strategy differs, or an edge is missing.
    """

    case: list[str] = field(default_factory=lambda: list(CASES))
    """Cases to check; all of them by default (see `list`)."""
    worlds: int = 2
    """Worlds per case; the audit copies all memory around each task."""
    warm_steps: int = 5
    """Steps before the checked one, so that contacts exist."""
    orders: int = 200
    """Most other orders of the recorded graph to try."""


def check(options: CheckOptions) -> int:
    """Checks each case; returns the exit code."""
    if options.warm_steps < 0:
        raise UnusableOptionError(f"warm steps must not be negative, not {options.warm_steps}")
    torch.set_num_threads(1)
    failed = False
    for name in options.case:
        program = Program(find_case(name), options.worlds)
        for index in range(options.warm_steps):
            program.load_action(index)
            program.step()
        with torch.no_grad():
            audit = ks.audit(program.step)
            verify = ks.verify(program.step, orders=options.orders)
        failed |= bool(audit.undeclared) or not verify.ok
        print(f"{name}\n  audit   {_indented(audit)}\n  verify  {_indented(verify)}", flush=True)
    return int(failed)


def _indented(report: object) -> str:
    return str(report).replace("\n", "\n" + " " * 10)
