"""`verify`: do all strategies agree, and is any edge missing?

Runs a function from one start state under every bit-exact strategy and compares all memory that it
wrote, its results and the random state bitwise. Then it searches its recorded graph for orders that
the edges allow and program order does not: each task is moved as far ahead as its edges let it, and
where the outcome changes, the pair of tasks whose edge is missing is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kscheduler.access import Access
from kscheduler.arguments import take_apart
from kscheduler.audit import AuditSink
from kscheduler.errors import InvalidOption, NotReplayable
from kscheduler.graph_call import GraphCall
from kscheduler.intercept.warp_patches import WarpPatches
from kscheduler.memory import Snapshot, merge_spans
from kscheduler.program import Program
from kscheduler.strategies import Scheduled
from kscheduler.window import window

__all__ = ["MissingEdge", "VerifyReport", "verify"]


@dataclass(frozen=True, slots=True)
class MissingEdge:
    """Two tasks that the graph does not order although the outcome depends on it.

    Attributes:
        first: The task that comes first in program order, with its line.
        second: The other one.
        start: First byte that differs when they are swapped (address).
        end: One past the last such byte.
    """

    first: str
    second: str
    start: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.second} must come after {self.first}: swapped, bytes {self.start:#x}.."
            f"{self.end:#x} differ. One of them touches memory that it does not declare"
        )


@dataclass
class VerifyReport:
    """What `verify` found.

    Attributes:
        equal: For each strategy, whether it gave bit for bit what program order gives.
        differing: For each strategy that did not, the first range that differs.
        missing: Pairs of tasks whose edge is missing.
        orders: Orders of the recorded graph that were tried.
        notes: What could not be checked, and why.
    """

    equal: dict[str, bool] = field(default_factory=dict)
    differing: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: list[MissingEdge] = field(default_factory=list)
    orders: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything agreed."""
        return all(self.equal.values()) and not self.missing

    def __str__(self) -> str:
        lines = [f"{name}: {'equal' if same else 'DIFFERS'}" for name, same in self.equal.items()]
        lines += [str(edge) for edge in self.missing]
        lines.append(f"{self.orders} other orders of the graph tried")
        return "\n".join(lines + self.notes)


class _Scout(AuditSink):
    """Runs the function once and copies each piece of memory before its first write."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[tuple[Access, Snapshot]] = []

    def _checked(
        self, name: str, declared: tuple[Access, ...] | None, run: Callable[[], Any]
    ) -> Any:
        self._look_at(declared or ())
        return run()

    def _look_at(self, accesses: Iterable[Access]) -> None:
        for access in accesses:
            if access.start < access.end and (access.start, access.end) not in self._known:
                self._learn(access)
                self.first.append((access, Snapshot([(access.start, access.end)])))

    def restore(self) -> None:
        """Puts the memory back to what it was before the function ran."""
        for _, snapshot in reversed(self.first):
            snapshot.restore()

    def spans(self) -> list[tuple[int, int]]:
        """All memory that the function's tasks have named."""
        return merge_spans(access for access, _ in self.first)


class _Start:
    """The state that every run starts from, as far as tasks can change it."""

    def __init__(self, scout: _Scout, rng: torch.Tensor) -> None:
        self._scout = scout
        self._rng = rng
        self._spans = scout.spans()
        scout.restore()
        self._memory = Snapshot(self._spans)

    def restore(self) -> None:
        self._memory.restore()
        torch.random.set_rng_state(self._rng)

    def outcome(self, result: Any) -> _Outcome:
        tensors: list[Any] = []
        take_apart(result, tensors, lambda value: True)
        values = [tensor.detach().clone() for tensor in tensors]
        return _Outcome(Snapshot(self._spans), values, torch.random.get_rng_state())


@dataclass
class _Outcome:
    memory: Snapshot
    values: list[torch.Tensor]
    rng: torch.Tensor

    def difference(self, other: _Outcome) -> tuple[int, int] | None:
        found = self.memory.difference(other.memory)
        if found is None and not all(
            _same_bits(a, b) for a, b in zip(self.values, other.values, strict=True)
        ):
            return (0, 0)
        return found if torch.equal(self.rng, other.rng) else (found or (0, 0))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [t.contiguous().flatten().view(torch.uint8) if t.numel() else t for t in (a, b)]
    return bool(torch.equal(*flat))


def verify(
    function: Callable[..., Any],
    *args: Any,
    streams: Sequence[int] = (1, 2, 4),
    orders: int = 2000,
    **kwargs: Any,
) -> VerifyReport:
    """Runs ``function(*args, **kwargs)`` under all bit-exact strategies and compares the outcomes.

    Args:
        function: Code that changes arrays only; attributes that it sets are not put back.
        *args: Its arguments.
        streams: Numbers of streams to try.
        orders: Most other orders of the recorded graph to try; 0 for none.
        **kwargs: Its keyword arguments.

    Returns:
        Which strategies agree bitwise, and every pair of tasks whose edge is missing.

    Raises:
        InvalidOption: The function is one that `window` has decorated.
    """
    if isinstance(getattr(function, "__func__", function), Scheduled):
        raise InvalidOption(
            "this function is decorated with kscheduler.window, and verify applies the strategies "
            "itself: pass the undecorated function"
        )
    report = VerifyReport()
    rng = torch.random.get_rng_state()
    scout = _Scout()
    _run_under(scout, function, args, kwargs)
    start = _Start(scout, rng)
    start.restore()
    reference = start.outcome(function(*args, **kwargs))
    start.restore()
    again = start.outcome(function(*args, **kwargs))
    if reference.difference(again) is not None:
        report.notes.append(
            "the function gives other results from one call to the next although its memory and "
            "torch's random state are put back: it depends on the host (a counter, a clock, "
            "randomness of Python or NumPy), so that strategies cannot be compared"
        )
        scout.release()
        return report
    refused: dict[str, list[str]] = {}
    for count in streams:
        for strategy in ("stream", "graph"):
            name = f"{strategy}, {count} stream{'s' if count > 1 else ''}"
            scheduled = window(streams=count, strategy=strategy)(function)
            try:
                outcome = _outcome(start, scheduled, args, kwargs, 1 if strategy == "stream" else 3)
            except NotReplayable as error:
                refused.setdefault(str(error), []).append(name)
            else:
                _compare(report, name, reference, outcome)
    if orders:
        try:
            _search_orders(report, start, reference, function, args, kwargs, orders)
        except NotReplayable as error:
            refused.setdefault(str(error), []).append("other orders")
    report.notes += [f"left out: {'; '.join(names)}. {why}" for why, names in refused.items()]
    start.restore()
    function(*args, **kwargs)
    scout.release()
    return report


def _run_under(sink: AuditSink, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with WarpPatches.installed(), sink.activate():
        return function(*args, **kwargs)


def _outcome(
    start: _Start, scheduled: Callable[..., Any], args: Any, kwargs: Any, runs: int
) -> _Outcome:
    """What the last of some runs leaves behind; the first calls of a graph record."""
    for _ in range(runs):
        start.restore()
        outcome = start.outcome(scheduled(*args, **kwargs))
    return outcome


def _compare(report: VerifyReport, name: str, reference: _Outcome, outcome: _Outcome) -> None:
    found = reference.difference(outcome)
    report.equal[name] = found is None
    if found is not None:
        report.differing[name] = found


def _search_orders(
    report: VerifyReport,
    start: _Start,
    reference: _Outcome,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    limit: int,
) -> None:
    graph = GraphCall(function, 128, 2)
    for _ in range(2):
        start.restore()
        graph(*args, **kwargs)
    recording = graph.last
    if recording is None:
        report.notes.append("other orders were not tried: the function was not recorded")
        return
    search = _OrderSearch(recording, start, reference)
    for task in search.movable()[:limit]:
        report.orders += 1
        found = search.first_missing(task)
        if found is not None:
            report.missing.append(found)


class _OrderSearch:
    """Runs a recording in other orders that its edges allow."""

    def __init__(self, recording: Any, start: _Start, reference: _Outcome) -> None:
        self._recording = recording
        self._program: Program = recording.program
        self._start = start
        self._ancestors = _ancestors(self._program)
        self._baseline = self._outcome(range(len(self._program.steps)))
        self.is_repeatable = reference.memory.difference(self._baseline.memory) is None

    def movable(self) -> list[int]:
        """Tasks that can run earlier than in program order."""
        return [t for t, before in enumerate(self._ancestors) if before.bit_count() < t]

    def _outcome(self, order: Any) -> _Outcome:
        self._start.restore()
        return self._start.outcome(self._recording.replay_in(list(order)))

    def _moved(self, task: int, position: int) -> list[int]:
        """Program order, but `task` right after its ancestors and the tasks below `position`."""
        before = self._ancestors[task]
        head = [t for t in range(task) if t < position or before >> t & 1]
        tail = [t for t in range(task) if not (t < position or before >> t & 1)]
        return [*head, task, *tail, *range(task + 1, len(self._ancestors))]

    def _differs(self, task: int, position: int) -> tuple[int, int] | None:
        return self._baseline.difference(self._outcome(self._moved(task, position)))

    def first_missing(self, task: int) -> MissingEdge | None:
        """The latest earlier task that `task` may not overtake although no edge says so."""
        if self._differs(task, 0) is None:
            return None
        low, high = 0, task  # moved behind everything below `low` it differs, below `high` not
        while high - low > 1:
            middle = (low + high) // 2
            if self._differs(task, middle) is None:
                high = middle
            else:
                low = middle
        found = self._differs(task, low) or (0, 0)
        self._add_edge(low, task)
        steps = self._program.steps
        names = [
            f"{s.name} (task {t}, {s.line})" for t, s in ((low, steps[low]), (task, steps[task]))
        ]
        return MissingEdge(names[0], names[1], *found)

    def _add_edge(self, first: int, second: int) -> None:
        """Takes the missing edge as given from now on, so that only it is reported."""
        added = self._ancestors[first] | 1 << first
        for task in range(second, len(self._ancestors)):
            if task == second or self._ancestors[task] >> second & 1:
                self._ancestors[task] |= added


def _ancestors(program: Program) -> list[int]:
    """For each task the set of tasks that must come before it, as bits."""
    before = [0] * len(program.tasks)
    for first, second in sorted(program.graph.edges, key=lambda edge: edge[1]):
        before[second] |= before[first] | 1 << first
    return before
