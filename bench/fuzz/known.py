"""Small programs: one for each kind of order that a window keeps, and those that found faults.

Registers are numbers: vectors 0 to 5 are the first argument, two tensors, the even and the odd
elements of the first of them, and the second half of the other with one element more; arrays 0 to 4
are Warp's own, 5 to 8 view the first tensor, the first half of the second, the first argument, and
a column of the other argument.
"""

from __future__ import annotations

from bench.fuzz.generate import Program
from bench.fuzz.machine import Op

__all__ = ["KNOWN"]

SLOW = 7  # the number that makes `iterate` take longest


def _program(*ops: Op, repeat: int = 1, **how: object) -> Program:
    options: dict = {"seed": 1, "size": 8192, "streams": 4, "window": 32, "jitter_us": 200, **how}
    return Program(ops=ops * repeat, **options)


def _recorded(*ops: Op, repeat: int = 1, **how: object) -> Program:
    return _program(*ops, repeat=repeat, strategy="graph", calls=4, **how)


def _each(name: str, *numbers: tuple[int, ...]) -> tuple[Op, ...]:
    return tuple(Op(name, given) for given in numbers)


_READ_THEN_WRITE = (
    *_each("sine", (0, 1), (0, 2), (0, 3)),
    Op("fill", (0, 3)),
    *_each("add_scaled", (1, 4, 3), (2, 4, 4)),
    Op("fill", (1, 5)),
)
_WRITE_THEN_READ = (Op("iterate", (0, SLOW)), Op("scale", (0, 1, 1)), Op("scale", (1, 2, 2)))

KNOWN: dict[str, Program] = {
    "write after read": _program(*_READ_THEN_WRITE, repeat=6),
    "read after write": _program(*_WRITE_THEN_READ, repeat=6),
    "one shared element": _program(
        Op("iterate", (6, SLOW)),
        Op("combine", (0, 5, 5)),
        Op("add_in_place", (0, 1)),
        repeat=6,
    ),
    "zero between kernels": _program(
        Op("iterate", (0, SLOW)),
        Op("zero", (0,)),
        Op("add_scaled", (1, 0, 3)),
        repeat=6,
    ),
    "view with an offset": _program(
        Op("view_slice", (0, 1, 2, 0)),
        Op("from_torch", (3, 0)),
        Op("iterate", (3, SLOW)),
        Op("scale_in_place", (0, 1)),
        repeat=4,
    ),
    "left while busy": _program(*_each("iterate", *((a, SLOW) for a in range(6))), repeat=2),
    "tiles side by side": _program(
        *_each("tile", (0, 1, 0), (2, 3, 0), (4, 5, 0), (1, 0, 1), (3, 2, 2)),
        repeat=20,
        size=65536,
        jitter_us=20,
    ),
    "memory of temporaries": _program(
        *_each("temporary", (0, 1), (2, 3), (4, 5)), Op("torch_temporary", (0, 2)), repeat=6
    ),
    "loop on data": _program(
        Op("native_loop", (0, 0, 3), ((Op("iterate", (0, SLOW)), Op("scale", (0, 1, 1))),)),
        repeat=4,
    ),
    "host read": _program(Op("iterate", (5, SLOW)), Op("read_item", (1,)), repeat=4),
    "shorter than the flush": _program(
        Op("flush_denormals", (1,)),
        *_each("denormal", (0, 1), (2, 3)),
        Op("flush_denormals", (0,)),
        *_each("denormal", (0, 4), (2, 5)),
        repeat=3,
    ),
    "recorded write after read": _recorded(*_READ_THEN_WRITE, repeat=6),
    "recorded input": _recorded(Op("iterate", (7, SLOW)), Op("add_scaled", (7, 0, 1))),
    "recorded setting": _recorded(
        Op("scale_by_setting", (1,)), Op("branch_on_setting", (2,)), changes_settings=True
    ),
    "recorded seed": _recorded(
        Op("draw_default", (0, 0)), Op("seed_again", (5,)), Op("draw_default", (1, 0))
    ),
    "recorded host read": _recorded(Op("scale_in_place", (1, 1)), Op("read_item", (1,))),
    "recorded temporaries": _recorded(
        *_each("temporary", (0, 1), (2, 3)), Op("new_zeros", (4, 1)), Op("new_zeros", (4, 2))
    ),
    # A recording did not hold arrays that Warp zeroes, and replays wrote to freed memory.
    "recorded zeroes": _recorded(
        Op("new_zeros", (3, 1)), Op("add_scaled", (0, 3, 1)), Op("new_zeros", (4, 1))
    ),
    # A recording handed out Warp views of the first call's argument.
    "recorded view of an input": _recorded(
        Op("from_torch", (3, 0)), Op("scale", (0, 1, 1)), Op("return_array", (3,))
    ),
    # Or of the results of its own torch ops.
    "recorded view of a result": _recorded(
        Op("sort_vector", (0, 1)), Op("from_torch", (3, 0)), Op("return_array", (3,))
    ),
}
