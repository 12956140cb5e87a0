"""What random programs work on: registers of arrays that share memory in many ways.

An operation names registers by small numbers, taken modulo their count, so that a program stays
meaningful whatever is cut out of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import warp as wp

__all__ = ["OPERATIONS", "Machine", "Op", "Operation", "Settings", "World", "execute", "operation"]

COLUMNS = 8


@dataclass(frozen=True)
class Op:
    """One operation of a program.

    Attributes:
        name: A key of `OPERATIONS`.
        numbers: Registers and small constants.
        bodies: The operations inside a loop, branch, window or try block.
    """

    name: str
    numbers: tuple[int, ...] = ()
    bodies: tuple[tuple[Op, ...], ...] = ()


@dataclass(frozen=True)
class Operation:
    """What an operation does, and when a program may use it.

    Attributes:
        run: Called with the machine, the bodies if it has any, and the numbers.
        numbers: How many numbers it takes.
        bodies: How many bodies it takes.
        weight: How often the generator picks it.
        replay: Whether a recording accepts it: "yes", "no" (it raises NotReplayable), "maybe".
        is_native: Only Warp tasks on existing arrays, so that recorded loops may contain it.
    """

    run: Callable[..., None]
    numbers: int
    bodies: int
    weight: int
    replay: str
    is_native: bool


OPERATIONS: dict[str, Operation] = {}


def operation(
    *, weight: int = 2, bodies: int = 0, replay: str = "yes", native: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as an operation of its name."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        taken = 1 + (bodies > 0)
        numbers = len(inspect.signature(run).parameters) - taken
        OPERATIONS[run.__name__] = Operation(run, numbers, bodies, weight, replay, native)
        return run

    return register


@dataclass
class Settings:
    """Host values that a program reads, and that may change between its calls."""

    scale: float = 0.5
    flag: int = 0


@dataclass
class World:
    """Arrays that outlive a call of the program, filled from a seed.

    Attributes:
        size: Elements of each one-dimensional array.
        torch_arrays: (size,) float32 tensors.
        warp_arrays: (size,) float32 Warp arrays.
        table: (size / 8, 8) float32 Warp array.
        index: (size,) int32 tensor, 0 <= value < 65536, with repetitions.
        points: (size / 4,) vec3 Warp array.
        counters: One int32 each: the conditions of loops.
        generator: A random generator of the program's own.
        settings: Host values.
    """

    size: int
    seed: int
    torch_arrays: list[torch.Tensor] = field(init=False)
    warp_arrays: list[wp.array] = field(init=False)
    table: wp.array = field(init=False)
    index: torch.Tensor = field(init=False)
    points: wp.array = field(init=False)
    counters: list[wp.array] = field(init=False)
    generator: torch.Generator = field(init=False)
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        rows = self.size // COLUMNS

        def floats(*shape: int) -> np.ndarray:
            return 2.0 * random.random(shape, np.float32) - 1.0

        def on_warp(values: np.ndarray, dtype: Any) -> wp.array:
            return wp.array(values, dtype=dtype, device="cpu", copy=True)

        self.torch_arrays = [torch.from_numpy(floats(self.size)).clone() for _ in range(2)]
        self.warp_arrays = [on_warp(floats(self.size), float) for _ in range(5)]
        self.table = on_warp(floats(rows, COLUMNS), float)
        self.index = torch.from_numpy(random.integers(0, 65536, self.size, np.int32)).clone()
        self.points = on_warp(floats(self.size // 4, 3), wp.vec3)
        self.counters = [wp.zeros(1, dtype=int, device="cpu") for _ in range(2)]
        self.generator = torch.Generator().manual_seed(self.seed)
        self.settings = Settings()
        torch.manual_seed(self.seed)

    def inputs(self, call: int) -> list[torch.Tensor]:
        """Two new arguments of the program's function: (size,) and (size / 8, 8) float32."""
        random = np.random.default_rng([self.seed, call])
        shapes = ((self.size,), (self.size // COLUMNS, COLUMNS))
        values = [2.0 * random.random(shape, np.float32) - 1.0 for shape in shapes]
        return [torch.from_numpy(value).clone() for value in values]


class Machine:
    """The registers of one call of a program.

    Attributes:
        vectors: One-dimensional float32 tensors.
        grids: Two-dimensional float32 tensors.
        arrays: One-dimensional float32 Warp arrays.
        tables: Two-dimensional float32 Warp arrays.
        indices: One-dimensional int32 tensors.
        points: vec3 Warp arrays.
        returned: Warp arrays that the function returns.
        log: What the host has seen.
    """

    def __init__(
        self,
        world: World,
        inputs: Sequence[torch.Tensor],
        window: Callable[[int, int], AbstractContextManager[Any]],
        log: list[str] | None,
    ) -> None:
        first, grid = inputs
        second, third = world.torch_arrays
        half = world.size // 2
        self.world = world
        self.window = window
        self.returned: list[wp.array] = []
        self.log = [] if log is None else log
        self.vectors = [first, second, third, second[::2], second[1::2], third[half - 1 :]]
        self.grids = [grid, grid[:, 0:3], grid[:, 3:6], grid[:, 2:4]]
        self.arrays = [
            *world.warp_arrays,
            wp.from_torch(second),
            wp.from_torch(third[:half]),
            wp.from_torch(first),
            wp.from_torch(grid[:, 0]),
        ]
        self.tables = [wp.from_torch(grid), wp.from_torch(grid[:, 3:6]), world.table]
        self.indices = [world.index, world.index[1::2]]
        self.points = [world.points, world.points[1::2]]

    def vector(self, number: int) -> torch.Tensor:
        """A one-dimensional tensor."""
        return self.vectors[number % len(self.vectors)]

    def grid(self, number: int) -> torch.Tensor:
        """A two-dimensional tensor."""
        return self.grids[number % len(self.grids)]

    def array(self, number: int) -> wp.array:
        """A one-dimensional Warp array."""
        return self.arrays[number % len(self.arrays)]

    def table(self, number: int) -> wp.array:
        """A two-dimensional Warp array."""
        return self.tables[number % len(self.tables)]

    def index(self, number: int) -> torch.Tensor:
        """An index tensor."""
        return self.indices[number % len(self.indices)]

    def point(self, number: int) -> wp.array:
        """A vec3 array."""
        return self.points[number % len(self.points)]

    def counter(self, number: int) -> wp.array:
        """The condition of a loop."""
        return self.world.counters[number % len(self.world.counters)]

    def set_vector(self, number: int, value: torch.Tensor) -> None:
        """Binds a register."""
        self.vectors[number % len(self.vectors)] = value

    def set_grid(self, number: int, value: torch.Tensor) -> None:
        """Binds a register."""
        self.grids[number % len(self.grids)] = value

    def set_array(self, number: int, value: wp.array) -> None:
        """Binds a register."""
        self.arrays[number % len(self.arrays)] = value

    def vector_pair(self, a: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two vectors, cut to the same length."""
        x, y = self.vector(a), self.vector(b)
        count = min(len(x), len(y))
        return x[:count], y[:count]


def execute(machine: Machine, ops: Sequence[Op]) -> None:
    """Runs operations in order; what a recording may refuse is noted in the log."""
    for op in ops:
        entry = OPERATIONS[op.name]
        if entry.replay != "yes":
            machine.log.append(entry.replay)
        if entry.bodies:
            entry.run(machine, op.bodies, *op.numbers)
        else:
            entry.run(machine, *op.numbers)
