"""Cuts a failing program down to the smallest one that still fails, and finds the missing edge.

A race shows itself now and then only, so a program counts as failing when any of several runs does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from bench.fuzz.generate import Program
from bench.fuzz.machine import Op
from bench.fuzz.run import as_written, difference, in_window

__all__ = ["find_failure", "missing_edge", "shrink"]


def find_failure(program: Program, runs: int = 12) -> str | None:
    """The first difference in `runs` runs, in words; None if all were right."""
    expected = as_written(program)
    for _ in range(runs):
        found = difference(expected, in_window(program))
        if found:
            return found
    return None


def shrink(
    program: Program,
    fails: Callable[[Program], bool] = lambda program: find_failure(program) is not None,
    limit: int = 400,
) -> Program:
    """The smallest program found that fails, starting from one that does.

    Args:
        program: A failing program.
        fails: Whether a program fails.
        limit: Most programs that are tried.
    """
    tried = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(program):
            tried += 1
            if tried > limit:
                return program
            if fails(candidate):
                program, is_smaller = candidate, True
                break
    return program


def missing_edge(program: Program) -> tuple[Op, Op] | None:
    """The operations between which a wait is missing, first and last.

    A fence after the first or later, and before the last or earlier, makes the program right. None
    if no fence does (the fault is not one of order), or for a recorded program, which has none.
    """
    if program.strategy != "stream":
        return None
    right = [
        position
        for position in range(1, len(program.ops))
        if find_failure(_with_fence(program, position)) is None
    ]
    if not right:
        return None
    return program.ops[right[0] - 1], program.ops[right[-1]]


def _with_fence(program: Program, position: int) -> Program:
    ops = (*program.ops[:position], Op("fence"), *program.ops[position:])
    return dataclasses.replace(program, ops=ops)


def _smaller(program: Program) -> Iterator[Program]:
    for ops in _smaller_ops(program.ops):
        yield dataclasses.replace(program, ops=ops)
    for name, simple in (("calls", 2), ("changes_settings", False), ("streams", 2), ("size", 64)):
        if getattr(program, name) > simple:
            yield dataclasses.replace(program, **{name: simple})


def _smaller_ops(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """Without some operations, then with smaller ones in the place of one."""
    length = len(ops) // 2
    while length:
        for start in range(0, len(ops), length):
            yield ops[:start] + ops[start + length :]
        length //= 2
    for position, op in enumerate(ops):
        for replacement in _simpler(op):
            yield ops[:position] + replacement + ops[position + 1 :]


def _simpler(op: Op) -> Iterator[tuple[Op, ...]]:
    for which, body in enumerate(op.bodies):
        yield body
        for smaller in _smaller_ops(body):
            bodies = (*op.bodies[:which], smaller, *op.bodies[which + 1 :])
            yield (dataclasses.replace(op, bodies=bodies),)
