"""Arms: what each strategy is, as data, and how a program is prepared for it.

`serial` is the program as written and the oracle. `warp-graph`, `torch-compile` and
`warp-graph+compile` are what a user can build today by hand; the others wrap the program's step in
`kscheduler.window`, without changing it. An arm that is not `exact` may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import warp as wp

import kscheduler as ks
from bench.cases import Program
from bench.errors import UnknownNameError

__all__ = ["STRATEGIES", "Arm", "Strategy", "find_strategy", "forget_compiled"]

Step = Callable[[], Any]


@dataclass(frozen=True)
class Strategy:
    """One way to run a program.

    Attributes:
        name: As on the command line.
        says: One line for people.
        prepare: Makes the step from a program and an arm.
        kinds: The kinds of cases it applies to.
        exact: Whether its results must equal those of `serial` bit for bit.
        windowed: Whether it takes `streams` and `window`.
        warm_calls: Untimed calls after the first one.
    """

    name: str
    says: str
    prepare: Callable[[Program, Arm], Step]
    kinds: tuple[str, ...] = ("physics", "env")
    exact: bool = True
    windowed: bool = False
    warm_calls: int = 2


@dataclass(frozen=True)
class Arm:
    """A strategy with its options; `streams` and `window` are None where they mean nothing."""

    strategy: Strategy
    streams: int | None = None
    window: int | None = None

    @property
    def label(self) -> str:
        """Name for people, with the number of streams if there is one."""
        if self.streams is None:
            return self.strategy.name
        return f"{self.strategy.name}, {self.streams} streams"

    def prepare(self, program: Program) -> Step:
        """Makes the step to call; may record or capture, does not count as a call."""
        return self.strategy.prepare(program, self)


def _serial(program: Program, arm: Arm) -> Step:
    return program.step


def _captured(body: Step) -> Step:
    # On the CPU a capture records without running; the replay is a serial loop in C.
    with wp.ScopedCapture(device="cpu") as capture:
        body()
    graph = capture.graph
    return lambda: wp.capture_launch(graph)


def _compiled(part: Callable[[], Any]) -> Callable[[], Any]:
    return torch.compile(part, fullgraph=True, dynamic=False)


def _warp_graph(program: Program, arm: Arm) -> Step:
    task = program.task
    if program.case.kind == "physics":
        return _captured(task.physics_step)
    return task.by_parts(physics=_captured)


def _torch_compile(program: Program, arm: Arm) -> Step:
    return program.task.by_parts(torch_part=_compiled)


def _warp_graph_and_compile(program: Program, arm: Arm) -> Step:
    return program.task.by_parts(physics=_captured, torch_part=_compiled)


def _windowed(program: Program, arm: Arm) -> Step:
    wrap = ks.window(size=arm.window, streams=arm.streams, strategy=arm.strategy.name)
    return wrap(program.step)


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("serial", "as written, in program order; the oracle", _serial),
        Strategy("warp-graph", "physics in Warp's own CPU graph, torch eager", _warp_graph),
        Strategy(
            "torch-compile",
            "torch part compiled, physics as written",
            _torch_compile,
            kinds=("env",),
            exact=False,
        ),
        Strategy(
            "warp-graph+compile",
            "physics in Warp's graph, torch part compiled: the best to build by hand",
            _warp_graph_and_compile,
            kinds=("env",),
            exact=False,
        ),
        Strategy("stream", "the sliding window of kscheduler", _windowed, windowed=True),
        Strategy("graph", "record once, replay as a branching graph", _windowed, windowed=True),
        Strategy(
            "auto",
            "kscheduler measures the exact ones and keeps the fastest",
            _windowed,
            windowed=True,
            warm_calls=16,
        ),
    )
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UnknownNameError: There is none; the message lists what exists.
    """
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, tuple(STRATEGIES))
    return STRATEGIES[name]


def forget_compiled() -> None:
    """Drops compiled code, so that many cases in one process stay below torch's recompile limit."""
    torch._dynamo.reset()
