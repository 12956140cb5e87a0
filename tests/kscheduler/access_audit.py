"""Compare what Warp launches do to memory with what the access analysis says of them.

Every launch is run with its array arguments copied before and after: bytes that changed must lie in
an argument that is declared written. For some launches it is then run again, from the same state,
once for every argument that is declared not read, with the content of that argument replaced: the
result must not change. Writes of an equal value are invisible here, and so is memory that no
argument leads to.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

import numpy as np
import warp as wp
import warp._src.context as context
from warp._src.codegen import Struct
from warp._src.types import matches_array_class, type_size_in_bytes

from kscheduler.access import READ, WRITE
from kscheduler.intercept.warp_access import KernelAccess, kernel_access


class Argument:
    """The memory of one array argument of a launch."""

    def __init__(self, label: str, mode: int, header: Any, item_bytes: int) -> None:
        self.label = label
        self.mode = mode
        extents = header.shape[: header.ndim]
        strides = header.strides[: header.ndim]
        self.start = header.data or 0
        self.item_bytes = item_bytes
        empty = not self.start or 0 in extents or any(stride < 0 for stride in strides)
        reach = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
        self.end = self.start if empty else self.start + reach + self.item_bytes

    @property
    def memory(self) -> np.ndarray:
        """(bytes,) uint8, a view of the argument's span."""
        if self.end == self.start:
            return np.empty(0, np.uint8)
        span = (ctypes.c_uint8 * (self.end - self.start)).from_address(self.start)
        return np.ctypeslib.as_array(span)

    def overlaps(self, other: Argument) -> bool:
        """Whether two arguments share memory."""
        return self.start < other.end and other.start < self.end


class AccessAudit:
    """Context manager: audits every forward launch on the CPU while it is open.

    Args:
        replaced_launches: For this many launches of every kernel, contents are replaced as well.
    """

    def __init__(self, replaced_launches: int = 1) -> None:
        self.faults: list[str] = []
        self.launches: Counter[str] = Counter()
        self.replaced = 0
        self.accesses: dict[str, KernelAccess] = {}
        self.labels: dict[str, list[str]] = {}
        self._limit = replaced_launches

    def __enter__(self) -> AccessAudit:
        self._invoke = context.invoke
        context.invoke = self._audit
        return self

    def __exit__(self, *exception: object) -> None:
        context.invoke = self._invoke

    def _audit(self, kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
        if adjoint:
            self._invoke(kernel, hooks, params, adjoint)
            return
        module_exec = next(
            one
            for (device, _), one in kernel.module.execs.items()
            if device is None and hooks in one.kernel_hooks.values()
        )
        access = kernel_access(kernel, module_exec)
        name = module_exec.get_kernel_mangled_name(kernel)
        self.accesses[name] = access
        self.labels[name] = [arg.label for arg in kernel.adj.args]
        arguments = [
            Argument(arg.label, mode, header, type_size_in_bytes(arg.type.dtype))
            for arg, mode, header in zip(kernel.adj.args, access.modes, params[1:], strict=True)
            if matches_array_class(arg.type, wp.array)
        ]
        self.launches[name] += 1
        before = [argument.memory.copy() for argument in arguments]
        self._invoke(kernel, hooks, params, adjoint)
        self._check_writes(name, arguments, before)
        # Memory that no array argument describes is not put back: such a kernel runs once.
        has_struct = any(isinstance(arg.type, Struct) for arg in kernel.adj.args)
        repeatable = not has_struct and not any(access.opaque)
        if self.launches[name] <= self._limit and repeatable:
            self._check_reads(
                name, arguments, before, lambda: self._invoke(kernel, hooks, params, adjoint)
            )

    def _check_writes(self, name: str, arguments: list[Argument], before: list[Any]) -> None:
        for argument, old in zip(arguments, before, strict=True):
            changed = argument.memory != old
            for other in arguments:
                if other.mode & WRITE and other.overlaps(argument):
                    covered = slice(
                        max(other.start - argument.start, 0), max(other.end - argument.start, 0)
                    )
                    changed[covered] = False
            if changed.any():
                self.faults.append(f"{name} writes {argument.label}, which is not declared")

    def _check_reads(
        self, name: str, arguments: list[Argument], before: list[Any], run: Any
    ) -> None:
        after = [argument.memory.copy() for argument in arguments]
        for index, argument in enumerate(arguments):
            shared = any(other is not argument and other.overlaps(argument) for other in arguments)
            if argument.mode & READ or shared or argument.start == argument.end:
                continue
            for other, old in zip(arguments, before, strict=True):
                other.memory[:] = old
            poison = _replacement(before[index], argument.item_bytes)
            argument.memory[:] = poison
            run()
            self.replaced += 1
            for position, (other, new) in enumerate(zip(arguments, after, strict=True)):
                same = other.memory == new
                if position == index:
                    # Where neither run wrote, the contents that were put there differ.
                    same |= (other.memory == poison) & (new == before[index])
                if not same.all():
                    self.faults.append(
                        f"{name} reads {argument.label}, which is not declared: "
                        f"{other.label} depends on it"
                    )
            for other, new in zip(arguments, after, strict=True):
                other.memory[:] = new


def _replacement(content: np.ndarray, item_bytes: int) -> np.ndarray:
    """Other bytes of the same kind: items rolled by one, and the lowest bit of each flipped."""
    replaced = np.roll(content, item_bytes)
    replaced[:: max(item_bytes, 1)] ^= 1
    return replaced
