"""The `stream` strategy on the CPU: tasks go to native threads while the program goes on.

Guarantee: a task starts after every earlier task that it conflicts with, and the program sees
memory only behind the tasks that write it. What cannot be described runs in place behind a fence.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import warp
from warp._src import context

from kscheduler import _core
from kscheduler.access import READ, READ_WRITE, Access, overlaps
from kscheduler.intercept.host_memory import borrowed_memory, host_memory, may_vanish
from kscheduler.intercept.torch_access import op_accesses
from kscheduler.intercept.warp_launch import pack, prepared_entry
from kscheduler.intercept.warp_patches import condition_access, warp_core
from kscheduler.native import NativeCall
from kscheduler.sink import TaskSink

__all__ = ["CLEAR_OPS", "NAMES", "RECORD_LIMIT", "StreamSink", "label_of"]

# Torch ops without a conflict after which what is in flight is finished first. A humanoid step of 1
# and 16 worlds with 2,000 small ops took 0.78 and 0.73 of program order's time with 64 (0.74 and
# 0.75 with 16, 0.85 and 0.86 with 256), and 1.97 and 1.30 without an end.
CLEAR_OPS = 64
RECORD_LIMIT = 4096  # tasks whose accesses and times are kept for the report


NAMES: list[tuple[str, str]] = []  # label -> (name, kind), the same in all windows
_labels: dict[tuple[str, str], int] = {}
_launchers: dict[int, _core.Launcher] = {}
_unprepared: weakref.WeakSet[Any] = weakref.WeakSet()


def label_of(name: str, kind: str) -> int:
    """The number by which the native core knows tasks of this name."""
    label = _labels.get((name, kind))
    if label is None:
        label = _labels[name, kind] = len(NAMES)
        NAMES.append((name, kind))
    return label


def _launcher(code_lanes: int) -> _core.Launcher:
    """What is known of kernels outlives the window that learnt it."""
    if code_lanes not in _launchers:
        _launchers[code_lanes] = _core.Launcher(
            {
                "config": warp.config,
                "runtime": context.runtime,
                "cpu": context.runtime.cpu_device,
                "array": warp.array,
                "kernel": context.Kernel,
            }
        )
    return _launchers[code_lanes]


class StreamSink(TaskSink):
    """Submits native calls to the sliding window and runs torch ops in place."""

    fences_foreign_ops = True  # of libraries: they may launch, and read what nobody passes

    def __init__(self, streams: int, size: int) -> None:
        super().__init__()
        self.core = _core.Streams(streams, size, RECORD_LIMIT)
        self.streams = streams
        self.code_lanes = max(2, streams)
        self.fences: Counter[str] = Counter()
        self.torch_ops = 0
        self.opaque_calls = 0
        self._clear_ops = 0  # torch ops in a row that had nothing to wait for
        self._clear_since = 0  # the next task's number when they began
        self._free_code = 0
        self._launcher = _launcher(self.code_lanes)
        self.native_way = (self._launcher, self.core)  # of `wp.launch`, while this is the sink

    # --- launches and memory functions ------------------------------------------------------

    def launch(self, kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
        """A launch that took Warp's own way; the next one of the kernel may be prepared."""
        self.native(pack(kernel, hooks, params, adjoint, self.code_lanes))
        if adjoint or kernel in _unprepared or self._launcher.is_prepared(kernel):
            return
        label = label_of(kernel.key, "warp")
        entry = prepared_entry(kernel, hooks, params, label, self.code_lanes)
        if entry is None:
            _unprepared.add(kernel)
        else:
            self._launcher.prepare(kernel, entry)

    def native(self, call: NativeCall) -> None:
        """Submits a call; in place where its memory is unknown, unowned or visible to the host."""
        if self.core.has_failed:
            self.finish_errors()
        if self.owners is not None:
            self._look_for_host_memory(self.owners)
        if call.accesses is None:
            self.fence("unknown_access")
        elif self.core.is_visible(call.accesses) or self._borrows(call.accesses):
            self.fences["host_visible"] += 1
            self._wait_for(call.accesses)
        elif self.owners is None or any(map(may_vanish, self.owners)):
            # Nobody vouches for the memory once the program goes on.
            self._wait_for(call.accesses)
        else:
            self.core.submit(
                call.function,
                call.args,
                call.blob,
                call.blob_args,
                call.check,
                call.lanes,
                call.accesses,
                (*self.owners, *call.keep),
                label_of(call.name, call.kind),
            )
            return
        call.run_here()

    def free(self, pointer: int) -> bool:
        """Frees a block behind its users; False if there are none."""
        if self.core.in_flight == 0:
            return False
        if not self._free_code:
            self._free_code = _code_of(warp_core().wp_free_host)
        return self.core.submit_free(pointer, self._free_code, label_of("free", "memory"))

    # --- the host ---------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Finishes everything in flight, and reports what failed."""
        self.fences[reason] += 1
        self.core.wait_for_all()
        self.finish_errors()

    def finish_errors(self, name: str = "") -> None:
        """Raises the error of a task that failed. Raises RuntimeError."""
        error = self.core.take_error()
        if error is not None:
            message, label = error
            raise RuntimeError(f"{name or NAMES[label][0]}: {message}")

    def host_read(self, access: Access | None, what: str, exported: bool = False) -> None:
        """Waits for what writes `access`; exported memory is the host's until the window ends."""
        if access is None:
            self.fence("host_read")
            return
        self.fences["host_read"] += 1
        self._wait_for((access._replace(mode=READ_WRITE) if exported else access,))
        if exported:
            self.core.add_visible(access.start, access.end)

    def test(self, condition: Any) -> bool:
        """The value of a loop's or branch's condition, behind the tasks that write it."""
        self.fences["loop_condition"] += 1
        self._wait_for((condition_access(condition)._replace(mode=READ),))
        return super().test(condition)

    # --- torch ------------------------------------------------------------------------------

    def torch_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op in place, behind the tasks that it conflicts with."""
        self.torch_ops += 1
        accesses = op_accesses(func, args, kwargs)
        if accesses is None:
            self.fence("unknown_access")
        elif accesses:
            if self._wait_for(accesses):
                self._clear_ops = 0
            else:
                self._count_clear_op()
        return func(*args, **kwargs)

    def _count_clear_op(self) -> None:
        """Ends a long run of ops that have nothing to wait for: seeing each costs more."""
        if self._clear_since != self.core.next_id:
            self._clear_since = self.core.next_id
            self._clear_ops = 0
        self._clear_ops += 1
        if self._clear_ops >= CLEAR_OPS:
            self._clear_ops = 0
            self.fence("torch_run")

    def opaque(
        self,
        name: str,
        run: Callable[[], Any],
        accesses: tuple[Access, ...],
        arrays: list[Any],
    ) -> Any:
        """Runs a declared callable in place, behind the tasks that it conflicts with."""
        self.opaque_calls += 1
        self._wait_for(accesses)
        return run()

    def wants_ops(self) -> bool:
        """Whether torch ops have anything to wait for; if not, the next task arms them again."""
        if self.core.in_flight > 0 or self.core.has_failed:
            return True
        self.core.set_disarmed()
        return False

    def compiled_call(self, name: str) -> None:
        """A compiled callable is about to run outside of the interception."""
        self.fence("compiled_callable")

    # --- life -------------------------------------------------------------------------------

    def arm(self) -> None:
        """Torch ops are seen from the next task on."""
        self.core.set_arm(self.torch.arm)

    def disarm(self) -> None:
        """Submitting tasks arms nothing any more."""
        self.core.set_arm(None)

    def close(self) -> None:
        """Finishes everything and gives the threads back."""
        self.core.close()

    def _wait_for(self, accesses: Any) -> bool:
        """Waits for conflicting tasks, and reports what failed; whether there were any."""
        had_to_wait = self.core.wait_for(accesses)
        if self.core.has_failed:
            self.finish_errors()
        return bool(had_to_wait)

    def _borrows(self, accesses: tuple[Access, ...]) -> bool:
        """Whether a call works on memory of objects that only the host looks after."""
        for owner in self.owners or ():
            borrowed = borrowed_memory(owner)
            if borrowed is not None and any(overlaps(borrowed, access) for access in accesses):
                return True
        return False

    def _look_for_host_memory(self, owners: tuple[Any, ...]) -> None:
        for owner in owners:
            access = host_memory(owner)
            if access is not None:
                self.core.add_visible(access.start, access.end)


def _code_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
