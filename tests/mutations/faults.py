"""Faults, each planted by a context manager that takes it out again.

Every one is a mistake that is easily made in the tracker, the interception or the replay. A fault
names the known programs that show it, and how often they are run: a race does not show each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from unittest import mock

from kscheduler import _core, graph, hazards, host_state, program, record
from kscheduler.backends import streams
from kscheduler.guards import Guards
from kscheduler.intercept import torch_ops, torch_replay, warp_launch, warp_memory
from kscheduler.intercept.warp_patches import condition_holds
from kscheduler.window import _StreamScope

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        plant: Plants it within a `with` block.
        programs: Names of known programs that have to show it.
        says: What was forgotten.
    """

    plant: Callable[[], AbstractContextManager[object]]
    programs: tuple[str, ...]
    says: str


FAULTS: dict[str, Fault] = {}


def _fault(*programs: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def register(plant: Callable[[], Iterator[None]]) -> None:
        says = (plant.__doc__ or "").strip()
        FAULTS[plant.__name__] = Fault(contextmanager(plant), programs, says)

    return register


@contextmanager
def _in_tracker(name: str) -> Iterator[None]:
    _core.set_fault(name)
    try:
        yield
    finally:
        _core.set_fault("")


# --- the tracker ---------------------------------------------------------------------------------


@_fault("write after read")
def drop_war() -> Iterator[None]:
    """Writers do not wait for readers."""
    with _in_tracker("drop_war"):
        yield


@_fault("read after write")
def drop_raw() -> Iterator[None]:
    """Readers do not wait for writers: the paper's Algorithm 1 as printed."""
    with _in_tracker("drop_raw"):
        yield


@_fault("one shared element")
def short_ranges() -> Iterator[None]:
    """Ranges end one element too early."""
    with _in_tracker("short_ranges"):
        yield


@_fault("recorded write after read")
def drop_war_in_graphs() -> Iterator[None]:
    """Recorded writers do not wait for readers."""

    class Forgetful(hazards.HazardTracker):
        def add(self, id, accesses, is_done=None):
            edges = [
                other
                for other, earlier in self._tasks
                if hazards.hazards_between(earlier, accesses) - {"WAR"}
            ]
            super().add(id, accesses)
            return edges

    with mock.patch.object(graph, "HazardTracker", Forgetful):
        yield


# --- the interception ----------------------------------------------------------------------------


@_fault("zero between kernels")
def forget_zero() -> Iterator[None]:
    """A memset is not known to write."""
    _, check = warp_memory.MEMORY_FUNCTIONS["wp_memset_host"]
    nothing = {"wp_memset_host": (lambda args: [], check)}
    with mock.patch.dict(warp_memory.MEMORY_FUNCTIONS, nothing):
        yield


@_fault("view with an offset")
def forget_alias() -> Iterator[None]:
    """Views with an offset are taken for tensors of their own."""
    true_accesses = streams.op_accesses

    def accesses_without_views(func, args, kwargs):
        if any(getattr(arg, "_base", None) is not None for arg in args):
            return []
        return true_accesses(func, args, kwargs)

    with mock.patch.object(streams, "op_accesses", accesses_without_views):
        yield


@_fault("host read")
def forget_host_read() -> Iterator[None]:
    """The host looks at memory before its writers are done."""

    def run_at_once(self, func, args, kwargs):
        return func(*args, **kwargs)

    with (
        mock.patch.object(streams.StreamSink, "host_read"),
        mock.patch.object(streams.StreamSink, "torch_op", run_at_once),
    ):
        yield


@_fault("loop on data")
def forget_condition() -> Iterator[None]:
    """A loop's condition is tested before its writers are done."""
    with mock.patch.object(streams.StreamSink, "test", lambda self, c: condition_holds(c)):
        yield


@_fault("tiles side by side")
def share_tile_code() -> Iterator[None]:
    """Tile kernels of one module run side by side on one copy of its code."""
    with (
        mock.patch.object(warp_launch, "lane_code", return_value=None),
        mock.patch.dict(streams._launchers, clear=True),
    ):
        yield


@_fault("left while busy")
def leave_early() -> Iterator[None]:
    """A window is left while its tasks still run."""
    left = []

    def close_without_waiting(self, failed):
        self.sink.fences["window_exit"] += 1
        self._stack.close()

    with (
        mock.patch.object(_StreamScope, "close", close_without_waiting),
        mock.patch.object(streams.StreamSink, "close", lambda self: left.append(self)),
    ):
        yield
    for sink in left:
        sink.close()


@_fault("host read")
def leave_a_mode() -> Iterator[None]:
    """A window leaves its dispatch mode behind."""
    true_restore = torch_ops.TorchInterceptor._restore

    def restore_halfway(self):
        true_restore(self)
        torch_ops._push(self._mode)

    with mock.patch.object(torch_ops.TorchInterceptor, "_restore", restore_halfway):
        yield


# --- the replay ----------------------------------------------------------------------------------


@_fault("recorded setting")
def stale_scalar() -> Iterator[None]:
    """Host values are not looked at again."""
    with mock.patch.object(Guards, "stale", return_value=None):
        yield


@_fault("recorded seed")
def skip_generator() -> Iterator[None]:
    """Random draws are recorded like any other op, and nobody looks who seeds."""
    with (
        mock.patch.object(torch_replay, "is_random", return_value=None),
        mock.patch.object(host_state.HostState, "_on_call"),
    ):
        yield


@_fault("recorded input")
def stale_pointer() -> Iterator[None]:
    """Kernels keep the addresses of the first call's arguments."""
    with mock.patch.object(program.Program, "rebind"):
        yield


@_fault("recorded host read")
def record_host_read() -> Iterator[None]:
    """A value that the host read is taken for a constant."""
    with (
        mock.patch.object(record.RecordSink, "host_read"),
        mock.patch.object(torch_replay, "is_host_read", return_value=False),
    ):
        yield


@_fault("recorded temporaries")
def forget_memory() -> Iterator[None]:
    """A recording does not keep the memory that its kernels write."""

    class Nothing(list):
        def append(self, item):
            pass

    true_init = record.RecordSink.__init__

    def init(self, *args, **kwargs):
        true_init(self, *args, **kwargs)
        self.keep = Nothing()

    with (
        mock.patch.object(record.RecordSink, "__init__", init),
        mock.patch.object(record.RecordSink, "free", return_value=False),
    ):
        yield
