"""Runs a program in a window or as written, and returns everything that it did.

Two outcomes are equal when every byte of every array, every value that the host saw, every random
state and every error is the same, and the window left nothing behind.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import warp as wp

import kscheduler as ks
from bench.fuzz.control import Planned
from bench.fuzz.generate import Program
from bench.fuzz.machine import Machine, Op, World, execute
from kscheduler import _core

__all__ = ["Outcome", "as_written", "difference", "in_window"]

_HERE = os.path.dirname(os.path.abspath(__file__))
Step = Callable[[list[torch.Tensor]], tuple[Any, ...]]


@dataclass
class Outcome:
    """What a program did.

    Attributes:
        seen: (name, value) of everything that has to be equal, in order.
        refusals: For each call whether a recording has to refuse it: "yes", "no", "maybe".
        overlapped: Tasks that ran while another one ran.
        replayed: Whether a recording was replayed.
    """

    seen: list[tuple[str, Any]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    overlapped: int = 0
    replayed: bool = False


def as_written(program: Program) -> Outcome:
    """The program without a window."""
    world = World(program.size, program.seed)
    outcome = Outcome()
    calls = _Calls(program, world)
    with _clean_modes():
        for call in range(program.calls):
            log: list[str] = []
            step = _step(program, world, _no_window, log)
            calls.run(step, call, outcome)
            kinds = set(log) & {"no", "maybe"}
            refusal = "yes" if "no" in kinds else "maybe" if kinds else "no"
            outcome.refusals.append(refusal)
    return outcome


def in_window(program: Program) -> Outcome:
    """The program under its strategy."""
    world = World(program.size, program.seed)
    outcome = Outcome()
    before = _global_state()
    with _clean_modes():
        if program.strategy == "graph":
            _run_graph(program, world, outcome)
        else:
            with _jitter(program.jitter_us):
                _run_stream(program, world, outcome)
    outcome.seen.append(("left behind", _changes(before, _global_state())))
    return outcome


def difference(expected: Outcome, found: Outcome) -> str | None:
    """What differs first, in words; None if nothing does."""
    for call, refusal in enumerate(expected.refusals):
        refused = [value for name, value in found.seen if name == f"call {call} refused"]
        if refused and refusal == "no":
            return f"call {call} was refused: {refused[0]}"
        if refused:
            return None  # what a refused call leaves half done is not promised
    if expected.refusals[0] == "yes" and found.replayed:
        return "a call that reads values on the host was recorded"
    found_values = dict(found.seen)
    for name, value in expected.seen:
        if name not in found_values:
            return f"{name} is missing"
        if found_values[name] != value:
            return f"{name}: {_short(value)} became {_short(found_values[name])}"
    left = found_values["left behind"]
    return f"the window left behind: {left}" if left else None


def _run_stream(program: Program, world: World, outcome: Outcome) -> None:
    def window(size: int, streams: int) -> AbstractContextManager[Any]:
        return ks.window(size=size, streams=streams)

    used = ks.window(size=program.window, streams=program.streams)
    step = _step(program, world, window, [])

    def inside(inputs: list[torch.Tensor]) -> Any:
        with used:
            return step(inputs)

    _Calls(program, world).run(inside, 0, outcome)
    outcome.overlapped = used.report.overlapped


def _run_graph(program: Program, world: World, outcome: Outcome) -> None:
    def window(size: int, streams: int) -> AbstractContextManager[Any]:
        return ks.window(size=size, streams=streams)

    decorate = ks.window(size=program.window, streams=program.streams, strategy="graph")
    step = decorate(_step(program, world, window, None))
    calls = _Calls(program, world)
    for call in range(program.calls):
        # Recording runs one task after the other; a pause before each would only cost time.
        with _jitter(program.jitter_us if call else 0):
            is_accepted = calls.run(step, call, outcome)
        if not is_accepted:
            return
        outcome.replayed |= bool(step.timeline())
        outcome.overlapped += step.report.overlapped


@dataclass
class _Setting:
    """What a program's function finds around it; one object, as recording looks at each."""

    ops: tuple[Op, ...]
    world: World
    window: Callable[[int, int], AbstractContextManager[Any]]
    log: list[str] | None


def _step(
    program: Program,
    world: World,
    window: Callable[[int, int], AbstractContextManager[Any]],
    log: list[str] | None,
) -> Step:
    setting = _Setting(program.ops, world, window, log)

    def step(inputs: list[torch.Tensor]) -> tuple[Any, ...]:
        machine = Machine(setting.world, inputs, setting.window, setting.log)
        execute(machine, setting.ops)
        return machine.vectors, machine.grids, machine.returned, machine.log

    return step


class _Calls:
    """The calls of a program's function, one after the other."""

    def __init__(self, program: Program, world: World) -> None:
        self._program = program
        self._world = world
        self._inputs: list[torch.Tensor] | None = None
        self._results: tuple[Any, ...] = ()  # of the last call

    def run(self, step: Step, call: int, outcome: Outcome) -> bool:
        """One call; returns False when a recording refused it."""
        if self._program.changes_settings:
            self._world.settings.scale = 0.5 + 0.25 * (call // 2)
            self._world.settings.flag = call // 2
        inputs = self._next_inputs(call)
        earlier, self._results = self._results, ()
        error = None
        try:
            self._results = step(inputs)
        except ks.NotReplayable as refused:
            outcome.seen.append((f"call {call} refused", str(refused)))
            return False
        except (Planned, RuntimeError, IndexError) as raised:
            error = (type(raised).__name__, str(raised), _line(raised))
        outcome.seen.append((f"call {call} error", error))
        for name, value in _observed(self._world, inputs, self._results):
            outcome.seen.append((f"call {call} {name}", value))
        for name, value in _results(earlier):
            outcome.seen.append((f"after call {call}, earlier {name}", value))
        return True

    def _next_inputs(self, call: int) -> list[torch.Tensor]:
        new = self._world.inputs(call)
        if self._inputs is None or not self._program.same_inputs:
            self._inputs = new
        else:
            for tensor, value in zip(self._inputs, new, strict=True):
                tensor.copy_(value)
        return list(self._inputs)


def _line(error: BaseException) -> tuple[str, int]:
    """The innermost line of a program's own that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    return next(
        (f.filename, f.lineno or 0) for f in reversed(frames) if f.filename.startswith(_HERE)
    )


def _observed(
    world: World, inputs: list[torch.Tensor], results: tuple[Any, ...]
) -> Iterator[tuple[str, Any]]:
    for kind, arrays in (
        ("input", inputs),
        ("torch array", world.torch_arrays),
        ("warp array", [*world.warp_arrays, world.table, world.points, *world.counters]),
        ("index", [world.index]),
    ):
        for number, array in enumerate(arrays):
            yield f"{kind} {number}", _bytes(array)
    yield from _results(results)
    if results:
        yield "log", tuple(results[3])
    yield "random state", torch.get_rng_state().numpy().tobytes()
    yield "own generator", world.generator.get_state().numpy().tobytes()


def _results(results: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for kind, arrays in zip(("vector", "grid", "array"), results[:3], strict=False):
        for number, array in enumerate(arrays):
            yield f"{kind} {number}", _bytes(array)


def _bytes(array: Any) -> tuple[Any, ...]:
    if isinstance(array, wp.array):
        return "warp", array.shape, array.numpy().tobytes()
    return array.dtype, tuple(array.shape), array.detach().contiguous().numpy().tobytes()


@contextmanager
def _jitter(microseconds: int) -> Iterator[None]:
    _core.set_jitter_us(microseconds)
    try:
        yield
    finally:
        _core.set_jitter_us(0)


@contextmanager
def _clean_modes() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _no_window(size: int, streams: int) -> AbstractContextManager[Any]:
    return nullcontext()


def _global_state() -> dict[str, Any]:
    """What a window replaces and has to put back."""
    included = torch._C._dispatch_tls_is_dispatch_key_included
    return {
        "torch modes": torch._C._len_torch_dispatch_stack(),
        "dispatch key Python": included(torch._C.DispatchKey.Python),
        "gradient mode": torch.is_grad_enabled(),
        "wp.launch": wp.launch,
        "wp.copy": wp.copy,
        "wp.capture_while": wp.capture_while,
        "Tensor.item": torch.Tensor.item,
        "Tensor.numpy": torch.Tensor.numpy,
        "runtime.core": wp._src.context.runtime.core,
        "os.fork": os.fork,
    }


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if before[name] is not after[name]]


def _short(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[-1], bytes):
        return f"{value[0]} {value[1]} #{hash(value[-1]) & 0xFFFF:04x}"
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."
