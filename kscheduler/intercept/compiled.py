"""Lets `torch.compile`d callables really run compiled inside a window, as one opaque task.

A dispatch mode and compiled code switch each other off in silence. While a `CompiledCalls` is open,
each call of a compiled callable by its thread first calls `sink.compiled_call`, which has to finish
everything in flight; then the interceptor's modes are off the stack until the call ends. Afterwards
`calls` and `compiled` tell what was called and what really ran compiled. Tasks launched
inside have to be waited for at once (`TorchInterceptor.arm` says no there), since compiled code
reads memory unseen.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch

from kscheduler.errors import UnsupportedVersion
from kscheduler.intercept.host_reads import unreported
from kscheduler.intercept.patches import PatchSet
from kscheduler.intercept.torch_ops import TorchInterceptor

__all__ = ["CompiledCalls", "CompiledSink"]


_DYNAMO = "torch._dynamo.eval_frame"


class CompiledSink(Protocol):
    """What is told of compiled calls; a window implements it."""

    def compiled_call(self, name: str) -> None:
        """Finish everything in flight: code that nobody watches is about to run."""


@dataclass(slots=True)
class _Call:
    """One running call of a compiled callable."""

    frame: FrameType  # of torch's wrapper around it
    name: str
    function: Any
    switches: int = 0  # how often the wrapper has set the frame evaluator
    has_suspended: bool = False
    reads: Any = None


class _Current(threading.local):
    calls: CompiledCalls | None = None


_current = _Current()


class CompiledCalls:
    """Context manager around a window's code.

    Args:
        sink: Is told before a compiled callable runs.
        interceptor: Its modes are taken away meanwhile.

    Attributes:
        calls: How often each compiled callable was called.
        compiled: How many of these calls ran compiled code; the others ran as they were written.
    """

    def __init__(self, sink: CompiledSink, interceptor: TorchInterceptor) -> None:
        self._sink = sink
        self._interceptor = interceptor
        self._running: list[_Call] = []
        self._outer: CompiledCalls | None = None
        self._patches: PatchSet | None = None
        self.calls: Counter[str] = Counter()
        self.compiled: Counter[str] = Counter()

    def __enter__(self) -> CompiledCalls:
        self._outer, _current.calls = _current.calls, self
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._running:
            self._leave()
        if self._patches is not None:
            self._patches.uninstall()
        _current.calls, self._outer = self._outer, None

    def _install(self) -> None:
        """Hook Dynamo, or, as importing it takes seconds, what would import it."""
        wanted = _dynamo_patches if _DYNAMO in sys.modules else _compile_patches
        if self._patches is not wanted:
            if self._patches is not None:
                self._patches.uninstall()
            wanted.install()
            self._patches = wanted

    def _begin(self, frame: FrameType) -> None:
        """A wrapper around a compiled callable has begun; `frame` is its own."""
        function = frame.f_locals.get("fn")
        name = getattr(function, "__qualname__", type(function).__qualname__)
        if not self._running:
            self._sink.compiled_call(name)
        call = _Call(frame, name, function)
        self._running.append(call)
        self.calls[name] += 1
        call.has_suspended = self._interceptor.suspend()
        call.reads = unreported()
        call.reads.__enter__()

    def _switch(self, frame: FrameType) -> None:
        """A wrapper sets the frame evaluator: first to begin, then to end."""
        if self._running and self._running[-1].frame is frame:
            self._running[-1].switches += 1
            if self._running[-1].switches == 2:
                self._leave()

    def _leave(self) -> None:
        call = self._running.pop()
        call.reads.__exit__(None, None, None)
        if call.has_suspended:
            self._interceptor.resume()
        self.compiled[call.name] += _has_compiled(call.function)


def _has_compiled(function: Any) -> bool:
    """Whether a call that ended just now found or made compiled code."""
    if sys.modules[_DYNAMO]._stance.stance == "force_eager":
        return False
    code = getattr(function, "__code__", None)
    entries = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    return code is None or entries is None or bool(entries(code))


def _hooked_stance(original: Callable[[], bool]) -> Callable[[], bool]:
    """Called by the wrapper before it notes the dispatch keys that the compiled code runs under."""

    def stance() -> bool:
        calls = _current.calls
        if calls is not None:
            frame = sys._getframe(1)
            if frame.f_code.co_name == "compile_wrapper":
                calls._begin(frame)
        return original()

    return stance


def _hooked_switch(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def switch(callback: Any) -> Any:
        calls = _current.calls
        if calls is not None:
            calls._switch(sys._getframe(1))
        return original(callback)  # last, or Dynamo would compile the lines above

    return switch


def _hooked_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _current.calls is not None:
            _current.calls._install()
        return result

    return compile


def _dynamo_replacements() -> Iterator[tuple[Any, str, Any]]:
    module = sys.modules[_DYNAMO]
    for name, hooked in (
        ("_is_skip_guard_eval_unsafe_stance", _hooked_stance),
        ("_maybe_set_eval_frame", _hooked_switch),
    ):
        if not hasattr(module, name):
            raise UnsupportedVersion(
                f"torch {torch.__version__} enters compiled code in another way than this release "
                "of kscheduler knows; install torch>=2.9,<2.14"
            )
        yield module, name, hooked(getattr(module, name))


def _compile_replacements() -> Iterator[tuple[Any, str, Any]]:
    yield torch, "compile", _hooked_compile(torch.compile)


_dynamo_patches = PatchSet(_dynamo_replacements)
_compile_patches = PatchSet(_compile_replacements)
