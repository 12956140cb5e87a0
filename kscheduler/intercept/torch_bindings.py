"""Finds the quickest callable for a recorded op: PyTorch's own binding, where it is the same.

Calling an overload boxes its arguments, which costs about a microsecond more than the binding that
programs use (`torch.add`, `Tensor.add_`). A binding picks its overload by the arguments, so it is
taken only after a trial: with a dispatch mode on top that stops it at the first op, it has to have
come to this very overload with these very arguments. Nothing runs in the trial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["quickest"]

_HOLDERS = (torch._C._VariableFunctions, torch._C.TensorBase, torch._C._nn)


class _ReachedError(Exception):
    """Ends a trial at the first op."""


class _Stop(TorchDispatchMode):
    reached: tuple[Any, tuple, dict] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.reached = (func, args, kwargs or {})
        raise _ReachedError


def quickest(func: Any, args: tuple, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The callable that does the same as an op overload on arguments like these, soonest.

    Args:
        func: The overload, or any other callable, which is returned as it is.
        args: Arguments of the kind that it will get: the tensors may be others then, of the same
            dtype, device and geometry.
        kwargs: Keyword arguments.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return func
    if func.namespace == "aten":
        name = func._schema.name.removeprefix("aten::")
        for holder in _HOLDERS:
            binding = getattr(holder, name, None)
            if callable(binding) and _is_same(binding, func, args, kwargs):
                return binding
    # The C function below the overload saves at least a Python frame.
    return getattr(func, "_op", func)


def _is_same(binding: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    stop = _Stop()
    try:
        with torch.no_grad(), stop:
            binding(*args, **kwargs)
    except _ReachedError:
        pass
    except (TypeError, RuntimeError, ValueError, IndexError):  # it does not take these arguments
        return False
    return stop.reached is not None and _equal(stop.reached, (func, args, kwargs))


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tensor) or type(a) is not type(b):
        return isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and _all_equal(a, b)
    if isinstance(a, (list, tuple)):
        return _all_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


def _all_equal(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
