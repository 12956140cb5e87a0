"""Cases: what is measured, as data, and the program that a case builds.

A program is one batch of worlds with pre-drawn actions. All strategies run the same program object:
`restore` puts every byte that can influence a result back to the start, so that two strategies see
the same states and the same actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.envs import TASKS
from bench.envs.fighter import FighterTask
from bench.errors import UnknownNameError, UnusableOptionError
from bench.models import Simulation

__all__ = ["CASES", "Case", "Program", "Snapshot", "find_case"]

Snapshot = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        kind: ``"physics"`` (action in, one physics step) or ``"env"`` (action in, physics,
            observation, reward, termination, masked reset).
        task: A key of `bench.envs.TASKS`, or "fighter".
        says: One line for people.
    """

    kind: str
    task: str
    says: str

    @property
    def name(self) -> str:
        """``"kind/task"``, as on the command line."""
        return f"{self.kind}/{self.task}"


_SAYS = {
    "ant": "four legs, RK4",
    "half_cheetah": "planar runner, Euler",
    "humanoid": "17 actuators, RK4, the largest step",
    "walker2d": "planar walker, RK4",
    "grasp": "hand of four two-joint fingers and a ball, Euler",
}

CASES: dict[str, Case] = {
    case.name: case
    for kind in ("physics", "env")
    for case in (Case(kind, task, _SAYS[task]) for task in TASKS)
}
FIGHTER = Case("env", "fighter", "all of fighter_env's step; torch-compile takes part of it")
CASES[FIGHTER.name] = FIGHTER


def find_case(name: str) -> Case:
    """The case of that name.

    Raises:
        UnknownNameError: There is none; the message lists what exists.
    """
    if name not in CASES:
        raise UnknownNameError("case", name, tuple(CASES))
    return CASES[name]


class Program:
    """A built case: `load_action(i)`, then `step()`, any number of times.

    Args:
        case: What to build.
        worlds: Number of worlds, at least 1.
        conditional: Whether the solver loop is `wp.capture_while` or unrolled.
        steps: Actions to draw; `load_action` repeats them after that.
        frame_skip: Physics steps per step of an `env/` case.
        seed: Seed of actions and reset noise.

    Attributes:
        task: The environment; its `physics_step` is the `physics/` case.
        outputs: What the last `run` returned; None for `physics/` cases.

    Raises:
        UnusableOptionError: `worlds`, `steps` or `frame_skip` is below 1.
    """

    def __init__(
        self,
        case: Case,
        worlds: int,
        *,
        conditional: bool = True,
        steps: int = 100,
        frame_skip: int = 1,
        seed: int = 0,
    ) -> None:
        for name, value in (("worlds", worlds), ("steps", steps), ("frame skip", frame_skip)):
            if value < 1:
                raise UnusableOptionError(f"{name} must be at least 1, not {value}")
        self.case = case
        self.task: Any = _build(case, worlds, conditional, frame_skip, seed)
        self.simulation = self.task.simulation
        self.step = self.task.step if case.kind == "env" else self.task.physics_step
        generator = torch.Generator().manual_seed(seed)
        unit = torch.rand(steps, *self.task.action.shape, generator=generator)
        span = self.task.ctrl_high - self.task.ctrl_low
        self._actions = self.task.ctrl_low + unit * span
        self._start = self.snapshot()

    def load_action(self, index: int) -> None:
        """Puts the action of one step where `step` reads it."""
        self.task.action.copy_(self._actions[index % len(self._actions)])

    def live(self) -> Snapshot:
        """Every array of the program, as views of the live memory."""
        torch_side = {name: tensor.numpy() for name, tensor in self.task.tensors().items()}
        return self.simulation.arrays() | torch_side

    def snapshot(self, outputs: Any = None) -> Snapshot:
        """Copies of every array, and of what a step returned.

        Args:
            outputs: The return value of a step, or None.
        """
        copies = {name: array.copy() for name, array in self.live().items()}
        copies.update(_named_outputs(outputs, "output"))
        return copies

    def restore(self) -> None:
        """Puts every array back to what it was when the program was built."""
        for name, array in self.live().items():
            np.copyto(array, self._start[name])


def _build(case: Case, worlds: int, conditional: bool, frame_skip: int, seed: int) -> Any:
    if case is FIGHTER:
        return FighterTask(worlds, conditional=conditional, frame_skip=frame_skip, seed=seed)
    simulation = Simulation(case.task, worlds, conditional=conditional)
    return TASKS[case.task](simulation, frame_skip=frame_skip, seed=seed)


def _named_outputs(value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Copies of the tensors in tuples and dictionaries, by dotted name."""
    if isinstance(value, torch.Tensor):
        yield name, value.numpy().copy()
    elif isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        for field, item in zip(fields, value, strict=True):
            yield from _named_outputs(item, f"{name}.{field}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_outputs(item, f"{name}.{key}")
