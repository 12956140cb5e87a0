"""The `graph` strategy: record a function once, then replay it natively while its key matches.

The key of a recording is everything that decides what the function does and where: the arguments'
structure, shapes, strides and dtypes, host scalars, torch's modes, the identity of other objects,
and the guards on what the code has read from them. Array arguments are rebound; an attribute that
the function itself replaces by a new tensor is carried from call to call. On any other difference
the function is recorded again; it never runs on an old pointer or scalar.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import warp

from kscheduler.arguments import (
    Arguments,
    containers,
    flatten,
    leaf_range,
    modes_key,
    take_apart,
)
from kscheduler.errors import NotReplayable, StaleArgument
from kscheduler.guard_collector import GuardCollector
from kscheduler.guards import Guards
from kscheduler.host_state import DRAWS, HostState
from kscheduler.intercept.compiled import CompiledCalls
from kscheduler.intercept.current import current_sink
from kscheduler.intercept.host_reads import HostReads
from kscheduler.intercept.torch_slots import has_memory
from kscheduler.intercept.warp_patches import WarpPatches
from kscheduler.program import Input, Program
from kscheduler.record import RecordSink
from kscheduler.report import Report
from kscheduler.spaces import MISSING
from kscheduler.summary import empty_report, graph_report
from kscheduler.trace import TraceEvent

__all__ = ["GraphCall", "Recording"]

_MAX_RECORDINGS = 8  # kept per function
_MAX_KEYS = 32  # different arguments for which recordings are kept
_MAX_FIRST_TIMES = 3  # calls of one key that may add entries to caches
_MAX_STALE = 16  # recordings of one key after which the function runs as a stream


@dataclass(slots=True)
class Recording:
    """A recorded call: its program, its key, and how its result is put together."""

    program: Program
    sink: RecordSink
    guards: Guards
    arguments: Arguments
    carried: list[tuple[Any, str]]  # attributes that the function replaces by new tensors
    build: Callable[[list[Any]], Any]
    outputs: list[Any]
    seconds: float

    def replay(self, leaves: list[Any]) -> Any:
        """One run with these arrays in the place of the recorded arguments."""
        return self._replay(leaves, self.program.run)

    def replay_in(self, order: list[int]) -> Any:
        """One run, task by task in the given order, on the last call's arguments."""
        return self._replay(
            self.arguments.leaves, lambda values: self.program.run_in(values, order)
        )

    def _replay(self, leaves: list[Any], run: Callable[[Any], None]) -> Any:
        all_leaves = leaves + [getattr(holder, name) for holder, name in self.carried]
        self.program.rebind([_address(leaf) for leaf in all_leaves])
        tape = self.sink.tape
        values = tape.begin_replay([x for x in all_leaves if isinstance(x, torch.Tensor)])
        run(values)
        return self.hand_out(values, leaves)

    def hand_out(self, values: list[Any], leaves: list[Any]) -> Any:
        """Sets the carried attributes and builds the result from the tape's values."""
        made = self.sink.tape.outputs(values, self.outputs) if self.outputs else []
        for (holder, name), value in zip(self.carried, made, strict=False):
            setattr(holder, name, value)
        return self.build([*made, *leaves])


def _address(leaf: Any) -> int:
    return leaf_range(leaf).start


class GraphCall:
    """Calls a function by replaying its recording."""

    def __init__(
        self, function: Callable[..., Any], size: int, streams: int, strict: bool = True
    ) -> None:
        self._function = function
        self._size = size
        self._streams = streams
        self._strict = strict
        self._recordings: dict[Any, list[Recording]] = {}
        self._carried: dict[Any, list[tuple[Any, str]]] = {}
        self._stale: dict[Any, int] = {}
        self._first_times: dict[Any, int] = {}
        self._recorded = 0
        self._replayed = 0
        self._notes: list[str] = []
        self.last: Recording | None = None  # the one that the last call used
        self._fallback: Any = None
        self._seconds = 0.0
        self.refusal: str | None = None
        self.is_undecided = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replays, or records where no recording fits."""
        outer = current_sink()
        if isinstance(outer, RecordSink):
            raise NotReplayable(
                "a recorded function was called inside another recording; decorate the outer one "
                "only"
            )
        if outer is not None:
            outer.fence("program_order")
        if self.refusal is not None:
            return self._function(*args, **kwargs)
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        start = time.perf_counter()
        arguments = flatten(args, kwargs)
        key = (arguments.key, modes_key())
        reason = None
        for recording in self._recordings.get(key, ()):
            reason = recording.guards.stale()
            if reason is None:
                try:
                    result = recording.replay(arguments.leaves)
                except StaleArgument as error:
                    reason = str(error)
                    continue
                self.last = recording
                self._replayed += 1
                self._stale[key] = max(0, self._stale.get(key, 0) - 1)
                self._seconds = time.perf_counter() - start
                return result
        if reason is not None:
            self._count_stale(key, reason)
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        if outer is not None:  # two of us cannot watch one thread
            return self._function(*args, **kwargs)
        return self._record(key, arguments, args, kwargs)

    def _count_recording(self) -> None:
        """Gives up where calls differ so much that nearly each one is recorded."""
        self._recorded += 1
        if self._recorded > 2 * _MAX_KEYS and self._recorded > self._replayed:
            self._fall_back(f"{self._recorded} of the calls needed a recording of their own")

    def _fall_back(self, why: str) -> None:
        from kscheduler.strategies import StreamCall

        self._notes.append(f"{why}; the function runs as strategy='stream' from now on")
        self._fallback = StreamCall(self._function, self._size, self._streams)
        self._recordings.clear()

    def _count_stale(self, key: Any, reason: str) -> None:
        self._stale[key] = self._stale.get(key, 0) + 1
        self._notes.append(f"recorded again: {reason}")
        del self._notes[:-4]
        if self._stale[key] >= _MAX_STALE:
            self._fall_back(f"nearly every call needed a new recording ({reason})")

    def _record(self, key: Any, arguments: Arguments, args: Any, kwargs: Any) -> Any:
        start = time.perf_counter()
        sink = RecordSink(max(2, self._streams), self._strict)
        carried = self._carried.get(key, [])
        leaves = arguments.leaves + [getattr(holder, name) for holder, name in carried]
        sink.keep += [*leaves, *arguments.objects]
        inputs = [Input(i, leaf_range(leaf)) for i, leaf in enumerate(leaves)]
        sink.inputs = [given.recorded for given in inputs]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        sink.tape.bind_inputs(tensors)
        collector = GuardCollector()
        result = self._watch(sink, collector, args, kwargs)
        guards, changed = collector.finish()
        given = containers((args, kwargs))
        known = collector.outside - given
        try:
            grown = self._check_changes(key, changed, carried)
            _check_host_objects(collector, sink)
            outputs = [getattr(holder, name) for holder, name in carried]
            build = take_apart(result, outputs, lambda x: id(x) in known, arguments.leaves)
            if sink.refusal is not None:
                raise sink.refusal
        except NotReplayable as error:
            if self._strict:
                raise
            self.refusal = str(error)
            return result
        if grown or sink.is_undecided or len(self._carried.get(key, [])) != len(carried):
            self.is_undecided = True
            return result  # recorded again on the next call
        self.is_undecided = False
        guards.without({(id(vars(holder)), name) for holder, name in carried})
        _fix_shared(inputs, guards, sink, given)
        for tensor in outputs:
            if has_memory(tensor) and sink.is_own_memory(tensor.data_ptr()):
                sink.tape.own(tensor)
        for guard in guards.objects:
            if isinstance(guard.value, torch.Tensor):
                sink.tape.watch(guard.value)
        sink.tape.pin(_native_ranges(sink))
        program = Program(sink, self._streams, inputs)
        recording = Recording(
            program, sink, guards, arguments, carried, build, outputs,
            time.perf_counter() - start,
        )  # fmt: skip
        self._keep(key, recording)
        self._seconds = time.perf_counter() - start
        # What later replays overwrite is handed out as a copy, as in each replay.
        return recording.hand_out(sink.tape.recorded_values(), arguments.leaves)

    def _watch(self, sink: RecordSink, collector: GuardCollector, args: Any, kwargs: Any) -> Any:
        """Calls the function; its tasks go to `sink`, and what its code can read to `collector`."""
        for value in (*args, *kwargs.values(), getattr(self._function, "__self__", None)):
            collector.add_root(value)
        collector.add_function(self._function)
        with ExitStack() as stack:
            stack.enter_context(WarpPatches.installed())
            stack.enter_context(HostReads(sink))
            stack.enter_context(CompiledCalls(sink, sink.torch))
            stack.enter_context(sink.activate())
            stack.enter_context(_no_garbage_collection())
            stack.enter_context(HostState(sink.refuse))
            stack.enter_context(collector)
            return self._function(*args, **kwargs)

    def _keep(self, key: Any, recording: Recording) -> None:
        """The newest recording of a key is tried first."""
        kept = self._recordings.setdefault(key, [])
        kept.insert(0, recording)
        del kept[_MAX_RECORDINGS:]
        if len(self._recordings) > _MAX_KEYS:
            del self._recordings[next(iter(self._recordings))]
        self._count_recording()
        self.last = recording

    def _check_changes(
        self, key: Any, changed: list[tuple[Any, str, Any, Any]], carried: list[tuple[Any, str]]
    ) -> bool:
        """Finds the tensors that are carried from call to call. Raises NotReplayable for others.

        Returns:
            Whether something was there for the first time, so that another recording has to tell.
        """
        known = {(id(holder), name) for holder, name in carried}
        grown = False
        for holder, name, before, after in changed:
            if (id(holder), name) in known:
                continue
            if _is_carriable(holder, before, after):
                self._carried.setdefault(key, []).append((holder, name))
                continue
            was_empty = before is MISSING or before is None
            if was_empty and self._first_times.get(key, 0) < _MAX_FIRST_TIMES:
                grown = True  # a cache that was filled: the next call says whether it was one
                continue
            what = f"{type(holder).__name__}.{name}"
            raise NotReplayable(
                f"the function changes {what} from {_short(before)} to {_short(after)}, which a "
                "replay would not do; keep it in a tensor that is updated in place, or use "
                "strategy='stream'"
            )
        if grown:
            self._first_times[key] = self._first_times.get(key, 0) + 1
        return grown

    def report(self) -> Report:
        """The recorded graph, its bound, and the last call's time."""
        if self._fallback is not None:
            report = self._fallback.report()
        elif self.last is None:
            report = empty_report("graph", self._streams, self._seconds)
        else:
            report = graph_report(self.last.program, self._seconds)
        report.notes += self._notes
        return report

    def timeline(self) -> list[TraceEvent]:
        """When each task of the last replay ran, by stream; empty before the first one."""
        return [] if self.last is None else self.last.program.timeline()


def _fix_shared(inputs: list[Input], guards: Guards, sink: RecordSink, own: set[int]) -> None:
    """Marks arguments whose memory the function also reaches by another way than the argument."""
    used = sink.tape.constant_memory()
    for guard in guards.objects:
        if id(guard.space) not in own and isinstance(guard.value, (torch.Tensor, warp.array)):
            used.append(leaf_range(guard.value))
    for given in inputs:
        start, end = given.recorded.start, given.recorded.end
        given.is_fixed = any(a.start < end and start < a.end for a in used)


def _check_host_objects(collector: GuardCollector, sink: RecordSink) -> None:
    """Raises NotReplayable for what a replay would not advance, or not make again."""
    if collector.advanced_generators():
        raise NotReplayable(DRAWS)
    for kind in collector.iterators():
        raise NotReplayable(
            f"the function can advance a {kind}, which a replay would not do; pass the item as an "
            "argument, or use strategy='stream'"
        )
    for generator in sink.tape.generators:
        if not any(_is_same_generator(generator, known) for known in collector.generators()):
            raise NotReplayable(
                "the function draws from a torch.Generator that it makes itself, which a replay "
                "would not make again; make it outside, or use strategy='stream'"
            )


def _is_same_generator(a: torch.Generator, b: torch.Generator) -> bool:
    """Whether two objects stand for one generator; ops see another object than the program."""
    state = a.get_state()
    if a is b or not torch.equal(state, b.get_state()):
        return a is b
    a.manual_seed(1 + a.initial_seed() % 2**32)
    is_same = torch.equal(a.get_state(), b.get_state())
    a.set_state(state)
    return is_same


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Destructors and callbacks of the collector are not part of the recorded function."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _native_ranges(sink: RecordSink) -> list[Any]:
    return [a for step in sink.steps if step.kind != "torch" for a in step.accesses]


def _is_carriable(holder: Any, before: Any, after: Any) -> bool:
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if not isinstance(getattr(holder, "__dict__", None), dict):
        return False
    layouts = [(t.dtype, t.shape, t.stride(), t.device, t.requires_grad) for t in (before, after)]
    return layouts[0] == layouts[1] and type(before) is type(after)


def _short(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = repr(value) if not isinstance(value, torch.Tensor) else f"a tensor {tuple(value.shape)}"
    return text if len(text) <= 60 else text[:57] + "..."
