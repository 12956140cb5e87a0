"""The dispatch mode that hands every PyTorch op of one thread to a sink, nearly free when idle.

`TorchInterceptor` guarantees: while armed, each op that the entering thread issues, forward or
backward, reaches `sink.torch_op` once before it runs; ops of other threads never do; modes that the
user pushes, before or inside, see what they would have seen; on every exit path the mode stack, the
dispatch keys and the replaced functions are those of before.

How it is cheap: torch includes the thread-local dispatch keys `Python` and `PythonTLSSnapshot` when
the mode stack becomes non-empty, and clears them when it becomes empty; a handler runs with its own
mode popped. Armed, our mode lies on the stack once. To disarm, the handler puts it there a second
time and clears the keys: torch then sees no reason to set them, and ops run as if no mode existed
until `arm` sets them again. Where the private functions for this are missing, or modes of the
user's are on the stack, ours just stays armed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.autograd.variable import Variable
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kscheduler.errors import WindowError
from kscheduler.intercept.patches import PatchSet
from kscheduler.intercept.torch_access import is_trusted

__all__ = ["TorchInterceptor", "TorchSink", "out_of_sight", "unwatched_mode_stack"]

_PYTHON = torch._C.DispatchKey.Python
_SNAPSHOT = torch._C.DispatchKey.PythonTLSSnapshot
_set_included: Any = getattr(torch._C, "_dispatch_tls_set_dispatch_key_included", None)
_is_included: Any = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
_push = torch._C._push_on_torch_dispatch_stack
_pop = torch._C._pop_torch_dispatch_stack
_stack_size = torch._C._len_torch_dispatch_stack
_stack_at = torch._C._get_dispatch_stack_at
_get_ident = threading.get_ident
# Each `torch.func` transform puts back the thread's dispatch keys after every op.
_functorch_depth: Any = getattr(torch._C._functorch, "get_dynamic_layer_stack_depth", lambda: 0)


class _Current(threading.local):
    interceptor: TorchInterceptor | None = None


_current = _Current()


# Namespaces of ops whose kernels are native code.
_NATIVE = frozenset(("aten", "prims"))
_native_ops: set[Any] = set()  # those met so far


class TorchSink(Protocol):
    """What receives the ops; a window implements it."""

    def torch_op(self, func: Any, args: tuple, kwargs: dict) -> object:
        """Run one op in place and return its result, after waiting for what it conflicts with."""

    def wants_ops(self) -> bool:
        """Whether anything is in flight.

        After False the interceptor may be disarmed: the next task has to `arm` it again.
        """

    def fence(self, reason: str) -> None:
        """Wait for everything in flight, and count it under `reason`."""


class _Mode(TorchDispatchMode):
    """Our entry on the mode stack. Pushed without torch's own bookkeeping, which would turn
    `torch.compile` off; `kscheduler.intercept.compiled` takes it away around compiled callables."""

    supports_higher_order_operators = True

    def __init__(self, interceptor: TorchInterceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each op would pass through a wrapper that imports torch._dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        interceptor = self._interceptor
        if (
            interceptor._is_special
            or _get_ident() != interceptor._thread
            or (types and _overrides(types))
        ):
            return interceptor._special_op(func, types, args, kwargs or {})
        # The stack has to be empty while the op runs: saving a tensor for backward dispatches to
        # whatever mode lies there, cleared keys or not.
        if _stack_size():
            _pop(None)
        is_busy = interceptor._wants_ops()
        try:
            if interceptor._fences_foreign and not (_is_native(func) or is_trusted(func)):
                return interceptor._foreign_op(func, args, kwargs or {}, is_busy)
            if is_busy:
                return interceptor._torch_op(func, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            if _stack_size():  # `arm` was called while the op ran Python of its own
                while _stack_size():
                    _pop(None)
            elif not is_busy and not interceptor._backward_depth:
                _push(self)
                _set_included(_PYTHON, False)
                _set_included(_SNAPSHOT, False)


class TorchInterceptor:
    """Context manager that sends the ops of the thread that enters it to a sink.

    Starts disarmed. While it is open, `torch.autograd` runs its engine behind a fence, and backward
    ops are seen like forward ones.

    Args:
        sink: Receives the ops.
    """

    def __init__(self, sink: TorchSink) -> None:
        self._sink = sink
        self._torch_op = sink.torch_op
        self._wants_ops = sink.wants_ops
        self._fences_foreign = getattr(sink, "fences_foreign_ops", False)
        self._mode = _Mode(self)
        self._thread = 0
        self._is_special = False  # modes of others are about, or private functions are missing
        self._always_special = False
        self._is_busy = False  # inside `_special_op`
        self._suspended_modes = 0
        self._is_suspended = True  # not open yet
        self._backward_depth = 0
        self._outer: TorchInterceptor | None = None

    def __enter__(self) -> TorchInterceptor:
        if _current.interceptor is not None:
            raise WindowError("this thread's torch ops already go to a window; share it")
        self._thread = _get_ident()
        self._is_suspended = False
        self._always_special = _set_included is None or _is_included is None or _stack_size() > 0
        self._is_special = self._always_special
        _patches.install()
        self._outer, _current.interceptor = _current.interceptor, self
        _push(self._mode)
        self.disarm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _get_ident() != self._thread:
            raise WindowError("an interceptor has to be left by the thread that entered it")
        self._restore()

    @property
    def armed(self) -> bool:
        """Whether the next op of this thread goes to the sink."""
        if self._is_suspended:
            return False
        return self._always_special or _is_included(_PYTHON)

    def arm(self) -> bool:
        """Send ops to the sink from now on, until it wants none.

        Returns:
            True when every later op will be seen. False where that cannot be had (inside a compiled
            callable or a `torch.func` transform, or inside an op that runs below a mode of the
            user's): then whoever puts a task in flight has to wait for it before returning to the
            program.
        """
        if self._is_suspended or self._is_busy or _functorch_depth():
            return False
        if self._always_special:
            return True
        if _stack_size():
            _set_included(_PYTHON, True)
            _set_included(_SNAPSHOT, True)
        else:
            _push(self._mode)  # inside an op that runs Python: watch what it does
        return True

    def disarm(self) -> None:
        """Let ops run untouched from now on. Not to be called from within an op."""
        if self._is_special or self._is_suspended:
            return
        if _stack_size() == 1:
            _push(self._mode)
        _set_included(_PYTHON, False)
        _set_included(_SNAPSHOT, False)

    def suspend(self) -> bool:
        """Take our modes off the stack, so that compiled code can run; False when it cannot be."""
        if self._is_suspended or _get_ident() != self._thread or not self._is_alone():
            return False
        self._suspended_modes = _stack_size()
        for _ in range(self._suspended_modes):
            _pop(None)
        self._is_suspended = True
        self._wants_ops()  # with nothing in flight the sink learns that it has to arm again
        return True

    def resume(self) -> None:
        """Undo `suspend`; the interceptor is armed then."""
        self._is_suspended = False
        for _ in range(self._suspended_modes):
            _push(self._mode)

    def _special_op(self, func: Any, types: Any, args: tuple, kwargs: dict) -> object:
        """One op that others see too, or of another thread that torch gave our mode."""
        if self._is_busy or _get_ident() != self._thread or not self._wants_ops():
            return func(*args, **kwargs)
        self._is_busy = True
        try:
            if not _overrides(types) and _is_native(func):
                return self._torch_op(func, args, kwargs)
            # It may run any Python, which is not seen down here.
            self._sink.fence("tensor_subclass" if _overrides(types) else "op_below_mode")
            self._wants_ops()  # with nothing in flight the sink learns that it has to arm again
            return func(*args, **kwargs)
        finally:
            self._is_busy = False

    def _foreign_op(self, func: Any, args: tuple, kwargs: dict, is_busy: bool) -> object:
        """One op that may run any Python: whatever is launched inside is waited for at once."""
        if is_busy:
            self._sink.fence("unknown_access")
        before, self._is_busy = self._is_busy, True
        try:
            self._wants_ops()  # with nothing in flight the sink learns that it has to arm again
            return func(*args, **kwargs)
        finally:
            self._is_busy = before

    def _change_stack(self, change: Callable[..., Any], args: tuple, is_push: bool) -> Any:
        """A change of the mode stack by others, followed by a look at what is on it now."""
        if is_push and args[0] is not self._mode and not self._is_special and _stack_size() > 1:
            _pop(None)
        result = change(*args)
        self._is_special = self._always_special or not self._is_alone()
        size = _stack_size()
        if size and not self._always_special:
            _set_included(_PYTHON, True)
            _set_included(_SNAPSHOT, True)
        if not size and not is_push and self._wants_ops():
            self._sink.fence("modes_disabled")
        return result

    def _is_alone(self) -> bool:
        return all(_stack_at(index) is self._mode for index in range(_stack_size()))

    def _run_backward(self, run: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if self._wants_ops():
            self._sink.fence("autograd")
        # The engine puts back this thread's mode stack and keys before each node. They have to be
        # those of an armed interceptor, for a node may put a task in flight.
        if not self._is_special and _stack_size() > 1:
            _pop(None)
        self.arm()
        self._backward_depth += 1
        try:
            return run(*args, **kwargs)
        finally:
            self._backward_depth -= 1

    def _restore(self) -> None:
        _patches.uninstall()
        _current.interceptor, self._outer = self._outer, None
        others = []
        while _stack_size():
            mode = _pop(None)
            if mode is not self._mode:
                others.append(mode)
        for mode in reversed(others):
            _push(mode)
        self._thread = 0
        self._is_suspended = True


def _is_native(func: Any) -> bool:
    """Whether an op's kernel is PyTorch's own code, which calls no Python."""
    if func in _native_ops:
        return True
    if getattr(func, "namespace", "") not in _NATIVE:
        return False
    _native_ops.add(func)
    return True


def _overrides(types: Any) -> bool:
    """Whether a tensor subclass among the arguments runs the op itself."""
    return any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types)


@contextmanager
def out_of_sight() -> Iterator[None]:
    """Takes our modes away in this block, where they are the only ones; nothing is in flight."""
    interceptor = _current.interceptor
    is_away = interceptor is not None and interceptor.suspend()
    try:
        yield
    finally:
        if interceptor is not None and is_away:
            interceptor.resume()


@contextmanager
def unwatched_mode_stack() -> Iterator[None]:
    """Let torch take modes away and put them back in this block without a fence."""
    before, _current.interceptor = _current.interceptor, None
    try:
        yield
    finally:
        _current.interceptor = before


class _Engine:
    """Stands for torch's autograd engine while an interceptor is open."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        interceptor = _current.interceptor
        if interceptor is None or interceptor._is_suspended:
            return self._engine.run_backward(*args, **kwargs)
        return interceptor._run_backward(self._engine.run_backward, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _watched(change: Callable[..., Any], is_push: bool) -> Callable[..., Any]:
    def changed(*args: Any) -> Any:
        interceptor = _current.interceptor
        if interceptor is None or interceptor._is_suspended:
            return change(*args)
        return interceptor._change_stack(change, args, is_push)

    return changed


def _rearming(leave: Callable[..., Any]) -> Callable[..., Any]:
    """The end of an inference mode, which puts back the dispatch keys of its beginning."""

    @functools.wraps(leave)
    def left(*args: Any) -> Any:
        result = leave(*args)
        interceptor = _current.interceptor
        if interceptor is not None and interceptor._wants_ops():
            interceptor.arm()
        return result

    return left


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield torch.inference_mode, "__exit__", _rearming(torch.inference_mode.__exit__)
    yield Variable, "_execution_engine", _Engine(Variable._execution_engine)
    # Every change of the mode stack ends in one of these.
    for holder, name, is_push in (
        (_python_dispatch, "_push_on_torch_dispatch_stack", True),
        (_python_dispatch, "_pop_torch_dispatch_stack", False),
        (torch._C, "_set_dispatch_mode", True),
        (torch._C, "_unset_dispatch_mode", False),
    ):
        if hasattr(holder, name):
            yield holder, name, _watched(getattr(holder, name), is_push)


_patches = PatchSet(_replacements)
