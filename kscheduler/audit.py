"""`audit`: does each task write only what it says?

Runs a function task by task in program order and compares all memory that its tasks have named so
far before and after each one. It sees bytes: a write of an equal value, and a write to memory that
no task has ever named, are invisible to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kscheduler.access import WRITE, Access
from kscheduler.arguments import leaf_range
from kscheduler.errors import UndeclaredAccess
from kscheduler.intercept.current import current_sink
from kscheduler.intercept.torch_access import op_accesses
from kscheduler.intercept.user_line import user_line
from kscheduler.intercept.warp_launch import argument_spans, pack
from kscheduler.intercept.warp_patches import WarpPatches, warp_core
from kscheduler.memory import Snapshot, covers, merge_spans
from kscheduler.native import NativeCall
from kscheduler.sink import TaskSink

__all__ = ["AuditReport", "Undeclared", "audit"]

_GAP_BYTES = 8


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A write that a task did not declare.

    Attributes:
        task: Kernel, op or callable.
        start: First byte that changed (address).
        end: One past the last byte that changed.
        line: The user's line.
        declared: What the task did declare.
    """

    task: str
    start: int
    end: int
    line: str
    declared: tuple[Access, ...]

    def __str__(self) -> str:
        return (
            f"{self.task} at {self.line} wrote bytes {self.start:#x}..{self.end:#x}, which it does "
            "not declare"
        )


@dataclass
class AuditReport:
    """What `audit` found.

    Attributes:
        tasks: Tasks that ran.
        undeclared: Every undeclared write, in program order.
        unknown: Names of tasks whose memory cannot be listed; they run behind fences.
        result: What the function returned.
    """

    tasks: int = 0
    undeclared: list[Undeclared] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    result: Any = None

    def raise_if_any(self) -> None:
        """Raises UndeclaredAccess if a task wrote what it does not declare."""
        if self.undeclared:
            raise UndeclaredAccess("; ".join(str(found) for found in self.undeclared[:8]))

    def __str__(self) -> str:
        lines = [f"{self.tasks} tasks, {len(self.undeclared)} undeclared writes"]
        lines += [f"  {found}" for found in self.undeclared]
        if self.unknown:
            lines.append(f"  not checked, behind fences: {', '.join(sorted(set(self.unknown)))}")
        return "\n".join(lines)


class AuditSink(TaskSink):
    """Runs every task in place and compares memory around it."""

    def __init__(self) -> None:
        super().__init__()
        self.report = AuditReport()
        self._keep: list[Any] = []
        self._known: dict[tuple[int, int], Access] = {}
        self._freed: list[int] = []

    def launch(self, kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
        """Checks a launch; arrays that it does not declare are looked at, too."""
        self._look_at(argument_spans(kernel, params))
        self.native(pack(kernel, hooks, params, adjoint, lanes=1))

    def native(self, call: NativeCall) -> None:
        """Checks a native call."""
        self._keep.append((self.owners, call.keep))
        self._checked(call.name, call.accesses, call.run_here)

    def torch_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Checks a torch op."""
        self._keep.append((args, kwargs))
        accesses = op_accesses(func, args, kwargs)
        declared = None if accesses is None else tuple(accesses)
        result = self._checked(str(func), declared, lambda: func(*args, **kwargs))
        self._keep.append(result)
        return result

    def opaque(
        self,
        name: str,
        run: Callable[[], Any],
        accesses: tuple[Access, ...],
        arrays: list[Any],
    ) -> Any:
        """Checks a declared callable."""
        self._keep.append(arrays)
        self._look_at(leaf_range(array) for array in arrays)  # also those that are not declared
        return self._checked(name, accesses, run)

    def _checked(
        self, name: str, declared: tuple[Access, ...] | None, run: Callable[[], Any]
    ) -> Any:
        self.report.tasks += 1
        if declared is None:
            self.report.unknown.append(name)
            return run()
        self._look_at(declared)
        before = Snapshot(merge_spans(self._known.values()))
        result = run()
        written = [access for access in declared if access.mode & WRITE]
        wrong = [span for span in before.changes() if not covers(written, *span)]
        for start, end in _joined(wrong):
            self.report.undeclared.append(Undeclared(name, start, end, user_line(), declared))
        return result

    def _look_at(self, accesses: Iterable[Access]) -> None:
        for access in accesses:
            self._learn(access)

    def _learn(self, access: Access) -> None:
        self._known.setdefault((access.start, access.end), access)

    def free(self, pointer: int) -> bool:
        """Keeps the block to the end, so that addresses stay unique."""
        self._freed.append(pointer)
        return True

    def release(self) -> None:
        """Frees what the program has freed."""
        for pointer in self._freed:
            warp_core().wp_free_host(pointer)
        self._freed.clear()

    def host_read(self, access: Access | None, what: str, exported: bool = False) -> None:
        """Nothing is in flight."""

    def compiled_call(self, name: str) -> None:
        """Compiled code is not checked."""
        self.report.unknown.append(name)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans with short gaps closed: some bytes of a number may be what they were."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < _GAP_BYTES:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def audit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> AuditReport:
    """Runs ``function(*args, **kwargs)`` once and names each write that was not declared.

    Args:
        function: Code with PyTorch ops, Warp launches and callables declared with `kernel`.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        The findings; `AuditReport.raise_if_any` turns them into `UndeclaredAccess`.

    Every task costs a copy of the program's memory: use few worlds.
    """
    sink = AuditSink()
    outer = current_sink()
    if outer is not None:
        outer.fence("program_order")
    with ExitStack() as stack:
        stack.enter_context(WarpPatches.installed())
        stack.callback(sink.release)
        stack.enter_context(sink.activate())
        sink.report.result = function(*args, **kwargs)
    return sink.report
