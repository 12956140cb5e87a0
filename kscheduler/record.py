"""Recording: runs a function once, in program order, and remembers every task.

While recording, each launch runs at once on this thread, so that the first call gives the results
that program order gives. Memory that is freed stays with the recording: every temporary keeps its
own addresses, which removes the false dependencies of reused memory (renaming) and keeps every
recorded pointer valid. What a replay could not repeat raises `NotReplayable`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from kscheduler.access import READ, READ_WRITE, Access
from kscheduler.arguments import leaf_range
from kscheduler.errors import NotReplayable
from kscheduler.intercept.torch_replay import TorchTape
from kscheduler.intercept.user_line import user_line
from kscheduler.intercept.warp_launch import pack
from kscheduler.intercept.warp_patches import condition_access, condition_holds, warp_core
from kscheduler.native import NativeCall, merge
from kscheduler.sink import TaskSink

__all__ = ["EVERYTHING", "RecordSink", "Step"]

EVERYTHING = Access(0, 2**63, READ_WRITE)  # what an opaque task may touch

_IGNORED_FENCES = frozenset({"stream_sync", "program_order", "cpu_blocks", "autograd"})


@dataclass(slots=True)
class Step:
    """One recorded task.

    Attributes:
        name: What the user calls it.
        kind: ``"warp"``, ``"memory"``, ``"torch"``, ``"opaque"``, ``"loop"`` or ``"branch"``.
        accesses: What it touches, all iterations and both sides included.
        line: The user's line.
        call: The native call, for ``"warp"`` and ``"memory"``.
        torch_index: The node of the tape, for ``"torch"``.
        action: What to call again, for ``"opaque"``.
        condition: Address of the tested int32, for ``"loop"`` and ``"branch"``.
        bodies: Steps of the loop's body, or of the branch's two sides.
    """

    name: str
    kind: str
    accesses: tuple[Access, ...]
    line: str
    call: NativeCall | None = None
    torch_index: int = -1
    action: Callable[[], Any] | None = None
    condition: int = 0
    bodies: tuple[list[Step], list[Step]] = field(default_factory=lambda: ([], []))

    def difference(self, other: Step) -> str | None:
        """Why two steps are not the same task on the same memory; None if they are."""
        if (self.name, self.kind) != (other.name, other.kind):
            return f"{self.name} became {other.name}"
        if self.call is not None and other.call is not None:
            mine, theirs = self.call, other.call
            if (mine.args, mine.blob) != (theirs.args, theirs.blob):
                return f"{self.name} got other arguments"
            # The code of a kernel moves where its module is loaded again, with a new overload.
            if mine.function != theirs.function and not _is_same_kernel(mine, theirs):
                return f"{self.name} became another function"
        if self.condition != other.condition:
            return f"{self.name} tests another array"
        for mine_body, other_body in zip(self.bodies, other.bodies, strict=True):
            found = first_difference(mine_body, other_body)
            if found:
                return found
        return None


def _is_same_kernel(a: NativeCall, b: NativeCall) -> bool:
    return a.kind == b.kind == "warp" and a.keep[0] is b.keep[0]


def first_difference(first: list[Step], second: list[Step]) -> str | None:
    """Why two recordings of one body differ; None if they do not."""
    if len(first) != len(second):
        return f"one iteration has {len(first)} tasks and the next {len(second)}"
    for a, b in zip(first, second, strict=True):
        found = a.difference(b)
        if found:
            return found
    return None


class RecordSink(TaskSink):
    """Runs every task at once and appends it to `steps`."""

    def __init__(self, code_lanes: int, is_strict: bool = True) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.tape = TorchTape()
        self.keep: list[Any] = []
        self.inputs: list[Access] = []  # memory of the arguments, which replays exchange
        self.code_lanes = code_lanes
        self.refusal: NotReplayable | None = None  # of a sink that is not strict
        self.is_undecided = False  # a loop did not run, so that its body is not known yet
        self._is_strict = is_strict
        self._in_body = 0  # inside a loop's or branch's body
        self._dry = 0  # inside a body that is recorded without running
        self._blocks: list[tuple[int, int]] = []  # that the function itself allocated
        self._freed: list[int] = []
        weakref.finalize(self, _free_all, warp_core().wp_free_host, self._freed)

    # --- tasks ------------------------------------------------------------------------------

    def launch(self, kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
        """Records a launch."""
        self.native(pack(kernel, hooks, params, adjoint, self.code_lanes))

    def native(self, call: NativeCall) -> None:
        """Records a call and, outside of loop bodies, runs it."""
        accesses = (EVERYTHING,) if call.accesses is None else call.accesses
        if self.owners is None:
            self.refuse(
                f"{call.name} at {user_line()} works on memory whose owner is not known, so that a "
                "replay might find it freed; call it through warp.utils, or use strategy='stream'"
            )
        self.keep.append((self.owners, call.keep))
        self.steps.append(Step(call.name, call.kind, accesses, user_line(), call))
        if not self._dry:
            call.run_here()

    def allocated(self, pointer: int, size: int) -> None:
        """Remembers the block: each replay writes there again."""
        self._blocks.append((pointer, pointer + size))

    def is_own_memory(self, address: int) -> bool:
        """Whether an address lies in a block that the function itself allocated with Warp."""
        return any(start <= address < end for start, end in self._blocks)

    def free(self, pointer: int) -> bool:
        """Keeps the block as long as the recording."""
        self._freed.append(pointer)
        return True

    def torch_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a torch op and runs it."""
        if self._in_body:
            self.refuse(
                f"{func} at {user_line()} is inside the body of wp.capture_while or wp.capture_if, "
                "which is replayed without Python; use a Warp kernel there, or strategy='stream'"
            )
        if self.refusal is not None:
            return func(*args, **kwargs)
        try:
            return self._record_op(func, args, kwargs)
        except NotReplayable as error:
            self.refuse(str(error))
            return func(*args, **kwargs)

    def _record_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = len(self.tape.nodes)
        result = self.tape.op(func, args, kwargs)
        for index in range(known, len(self.tape.nodes)):
            node = self.tape.nodes[index]
            accesses = (EVERYTHING,) if node.accesses is None else merge(node.accesses)
            step = Step(node.name, "torch", accesses, user_line(), torch_index=index)
            self.steps.append(step)
        return result

    def opaque(
        self,
        name: str,
        run: Callable[[], Any],
        accesses: tuple[Access, ...],
        arrays: list[Any],
    ) -> Any:
        """Runs a declared callable and records that it has to be called again."""
        where = f"{name} at {user_line()}"
        if self._in_body:
            self.refuse(f"{where} is inside a wp.capture_while or wp.capture_if body")
            return run()
        for array in arrays:
            given = leaf_range(array)
            is_input = any(given.start < i.end and i.start < given.end for i in self.inputs)
            is_made = isinstance(array, torch.Tensor) and self.tape.is_recorded_memory(array)
            if is_input or is_made:
                self.refuse(
                    f"{where} gets an array that is an argument or result of the recorded "
                    "function, whose address changes from call to call; pass it arrays that live "
                    "outside of the function"
                )
        result = run()
        if result is not None:
            self.refuse(
                f"{where} returns a {type(result).__name__}, which a replay could not use; let it "
                "write into an array that lives outside of the function"
            )
        step = Step(name, "opaque", merge(accesses), user_line(), action=run)
        self.steps.append(step)
        return result

    # --- the host ---------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Everything recorded so far has run; reasons that mean more are refused."""
        if reason not in _IGNORED_FENCES:
            self.refuse(
                f"{_REFUSALS.get(reason, reason)} at {user_line()} cannot be replayed; move it out "
                "of the recorded function or use strategy='stream'"
            )

    def host_read(self, access: Access | None, what: str, exported: bool = False) -> None:
        """Refuses: the value would not be looked at again in a replay."""
        self.refuse(
            f"{what} at {user_line()} gives a value to the host, which a replay would not read "
            "again; keep it on the device, return the tensor, or use strategy='stream'"
        )

    def compiled_call(self, name: str) -> None:
        """Refuses: compiled code runs outside of the interception."""
        self.refuse(
            f"{name} at {user_line()} is a compiled callable, whose memory is not seen; record the "
            "function without it, or use strategy='stream'"
        )

    # --- loops and branches -----------------------------------------------------------------

    def loop(self, condition: Any, body: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        """Runs the loop as written and records each iteration; they must be the same tasks.

        A loop that ran less than twice is completed by recording its body without running it.
        """
        line = user_line()
        iterations: list[list[Step]] = []
        while not self._dry and condition_holds(condition):
            iterations.append(self._record_body(body, kwargs, is_dry=False))
            if len(iterations) > 2 and not self._differs(iterations[-2:]):
                iterations.pop()
        if self._differs(iterations):
            self._refuse_body(iterations, line)
            return
        if self._is_strict or not iterations:
            while len(iterations) < 2:
                if not self._is_strict:
                    self.is_undecided = True
                    return
                iterations.append(self._record_body(body, kwargs, is_dry=True))
        if self._differs(iterations):
            self._refuse_body(iterations, line)
            return
        self._add_block("capture_while", "loop", condition, (iterations[0], []), line)

    def branch(
        self,
        condition: Any,
        on_true: Callable[..., Any] | None,
        on_false: Callable[..., Any] | None,
        kwargs: dict[str, Any],
    ) -> None:
        """Runs the side that is taken and records both."""
        line = user_line()
        taken = None if self._dry else condition_holds(condition)
        sides: list[list[Step]] = []
        for is_true, side in ((True, on_true), (False, on_false)):
            if side is None:
                sides.append([])
                continue
            recordings = [self._record_body(side, kwargs, is_dry=taken is not is_true)]
            if self._is_strict:
                recordings.append(self._record_body(side, kwargs, is_dry=True))
            if self._differs(recordings):
                self._refuse_body(recordings, line)
                return
            sides.append(recordings[0])
        self._add_block("capture_if", "branch", condition, (sides[0], sides[1]), line)

    def _record_body(
        self, body: Callable[..., Any], kwargs: dict[str, Any], is_dry: bool
    ) -> list[Step]:
        outer, self.steps = self.steps, []
        self._dry += is_dry
        self._in_body += 1
        try:
            body(**kwargs)
            return self.steps
        finally:
            self._in_body -= 1
            self._dry -= is_dry
            self.steps = outer

    def _differs(self, recordings: list[list[Step]]) -> str | None:
        for first, second in pairwise(recordings):
            found = first_difference(first, second)
            if found:
                return found
        return None

    def _refuse_body(self, recordings: list[list[Step]], line: str) -> None:
        self.refuse(
            f"the body recorded at {line} is not the same in each iteration: "
            f"{self._differs(recordings)}. It swaps or allocates arrays in Python; do that in "
            "kernels, or use strategy='stream'"
        )

    def refuse(self, why: str) -> None:
        """Raises NotReplayable; a sink that is not strict goes on in program order instead."""
        error = NotReplayable(why)
        if self._is_strict:
            raise error
        self.refusal = self.refusal or error

    def _add_block(
        self,
        name: str,
        kind: str,
        condition: Any,
        bodies: tuple[list[Step], list[Step]],
        line: str,
    ) -> None:
        self.keep.append(condition)
        accesses = [condition_access(condition)._replace(mode=READ)]
        for body in bodies:
            for step in body:
                accesses += step.accesses
        block = Step(name, kind, merge(accesses), line, condition=condition.ptr, bodies=bodies)
        self.steps.append(block)


_REFUSALS = {
    "mode_sensitive": "a torch.linalg function that takes another way while it is watched",
    "unknown_access": "an operation whose memory cannot be listed",
    "mesh_or_bvh": "building, refitting or freeing a mesh, BVH, hash grid, volume or texture",
    "unlisted_core_call": "a Warp core function that is not known to be safe",
    "host_read": "a host read",
}


def _free_all(free: Any, pointers: list[int]) -> None:
    for pointer in pointers:
        free(ctypes.c_void_p(pointer))
