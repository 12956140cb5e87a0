"""Random programs as plain data: printable, made again from a seed, and still programs when cut."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.fuzz import control, torch_ops, warp_memory_ops, warp_ops
from bench.fuzz.machine import OPERATIONS, Op

__all__ = ["Program", "generate", "show"]

_MODULES = (control, torch_ops, warp_ops, warp_memory_ops)  # they register the operations
_MAX_DEPTH = 3


@dataclass(frozen=True)
class Program:
    """A program and how it is run.

    Attributes:
        seed: Of the arrays' contents.
        ops: What it does.
        size: Elements of each one-dimensional array.
        streams: Streams of the window.
        window: Size of the window.
        strategy: ``"stream"`` or ``"graph"``.
        jitter_us: Longest random pause before a task.
        calls: How often the function is called, each time with new inputs.
        changes_settings: Whether host values change in the middle of the calls.
        same_inputs: Whether each call gets the same tensors with new contents.
    """

    seed: int
    ops: tuple[Op, ...]
    size: int = 4096
    streams: int = 2
    window: int = 32
    strategy: str = "stream"
    jitter_us: int = 50
    calls: int = 1
    changes_settings: bool = False
    same_inputs: bool = False


def generate(source: random.Random) -> Program:
    """A program drawn from a source of random numbers (Hypothesis has one that shrinks)."""
    strategy = source.choice(("stream", "stream", "stream", "graph"))
    is_graph = strategy == "graph"
    accepts_refusals = not is_graph or source.randrange(8) == 0
    ops = _ops(source, source.randint(12, 40), 0, False, accepts_refusals)
    changes_settings = is_graph and source.randrange(3) == 0
    return Program(
        seed=source.randrange(1 << 16),
        ops=ops,
        size=source.choice((1024, 4096, 8192, 16384)),
        streams=source.choice((1, 2, 2, 2, 2, 4, 4, 4, 4, 4)),
        window=source.choice((2, 8, 32, 128)),
        strategy=strategy,
        jitter_us=source.choice((0, 20, 50, 200)),
        calls=1 if not is_graph else 4 if changes_settings else 3,
        changes_settings=changes_settings,
        same_inputs=is_graph and source.randrange(2) == 0,
    )


def _ops(
    source: random.Random, count: int, depth: int, is_native: bool, accepts_refusals: bool
) -> tuple[Op, ...]:
    names: list[str] = []
    while len(names) < count:
        # Tasks overlap in runs of launches; torch ops and the host wait in between.
        is_run = is_native or source.randrange(3) > 0
        length = source.randint(6, 16) if is_run else source.randint(1, 4)
        names += _names(source, length, depth, is_run, accepts_refusals)
    return tuple(_op(source, name, depth, accepts_refusals) for name in names[:count])


def _names(
    source: random.Random, count: int, depth: int, is_native: bool, accepts_refusals: bool
) -> list[str]:
    names, weights = [], []
    for name, entry in OPERATIONS.items():
        if is_native and not entry.is_native:
            continue
        if entry.replay != "yes" and not accepts_refusals:
            continue
        if entry.bodies and depth >= _MAX_DEPTH:
            continue
        names.append(name)
        weights.append(entry.weight)
    return source.choices(names, weights, k=count)


def _op(source: random.Random, name: str, depth: int, accepts_refusals: bool) -> Op:
    entry = OPERATIONS[name]
    numbers = tuple(source.randrange(40) for _ in range(entry.numbers))
    bodies = tuple(
        _ops(source, source.randint(1, 4), depth + 1, name.startswith("native_"), accepts_refusals)
        for _ in range(entry.bodies)
    )
    return Op(name, numbers, bodies)


def show(program: Program) -> str:
    """The program as text, one operation a line."""
    head = ", ".join(
        f"{name}={getattr(program, name)!r}"
        for name in ("strategy", "streams", "window", "size", "jitter_us", "calls", "seed")
    )
    flags = [name for name in ("changes_settings", "same_inputs") if getattr(program, name)]
    return "\n".join([f"Program({head}) {' '.join(flags)}", *_lines(program.ops, 1)])


def _lines(ops: tuple[Op, ...], depth: int) -> list[str]:
    lines = []
    for op in ops:
        numbers = ", ".join(map(str, op.numbers))
        lines.append("  " * depth + f"{op.name}({numbers})")
        for which, body in enumerate(op.bodies):
            if which:
                lines.append("  " * depth + "else")
            lines += _lines(body, depth + 1)
    return lines
