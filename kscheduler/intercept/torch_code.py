"""Python source for recorded torch calls: what a replay runs, with no template left to walk.

Each node becomes a function of the list of values, ``def n3(v): v[7] = c1(v[2], c0, 1)``. Views are
no nodes: they are made where one is first needed, so that whoever orders the nodes by the bytes
they touch need not know of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from kscheduler.intercept.torch_bindings import quickest
from kscheduler.intercept.torch_slots import VIEW, Call, Ref, Slot

__all__ = ["generate"]

_Function = Callable[[list[Any]], Any]
_aten = torch.ops.aten
_EMPTY = frozenset(
    (
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
    )
)


def generate(
    calls: Sequence[Call],
    slots: Sequence[Slot],
    pinned: Collection[int],
    inference: Mapping[int, bool],
    is_plain: bool,
) -> tuple[list[_Function], dict[int, _Function]]:
    """The functions that replay a recording.

    Args:
        calls: The nodes.
        slots: All values.
        pinned: Results that have to stay in the recorded tensor.
        inference: Nodes that ran in another inference mode than the function was called in.
        is_plain: Whether neither autograd nor autocast acts where the replay runs; else each node
            keeps them out, for both were at work above the recorded ops already.

    Returns:
        One function per node, and by slot one that makes and returns a view.
    """
    code = _Code(slots)
    views = [number for number, slot in enumerate(slots) if slot.kind is VIEW]
    for number in views:
        call = slots[number].call
        assert call is not None
        code.define(
            f"w{number}", f"{code.targets(call.result)} = {code.call(call)}", f"return v[{number}]"
        )
    for index, call in enumerate(calls):
        statements = _statements(code, call, slots, pinned)
        if not is_plain:
            statements = _within(f"{code.constant(_below_autograd_and_autocast)}()", statements)
        if index in inference:
            mode = f"{code.constant(torch.inference_mode)}({inference[index]})"
            statements = _within(mode, statements)
        code.define(f"n{index}", *statements)
    names = code.compile()
    return (
        [names[f"n{index}"] for index in range(len(calls))],
        {number: names[f"w{number}"] for number in views},
    )


def _statements(
    code: _Code, call: Call, slots: Sequence[Slot], pinned: Collection[int]
) -> list[str]:
    kept = [ref for ref in _refs(call.result) if ref in pinned]
    keep = [f"v[{ref}] = {code.constant(slots[ref].tensor)}" for ref in kept]
    if kept and call.func in _EMPTY:
        return keep  # whatever the recorded memory holds will do
    target, made = code.targets(call.result), code.call(call)
    copy = [f"{code.constant(slots[ref].tensor)}.copy_(v[{ref}])" for ref in kept]
    return [f"{target} = {made}" if target else made, *copy, *keep]


def _within(context: str, statements: list[str]) -> list[str]:
    return [f"with {context}:", *("    " + statement for statement in statements)]


@contextmanager
def _below_autograd_and_autocast() -> Iterator[None]:
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    with torch.no_grad(), ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _refs(value: Any) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, list):
        return [ref for item in value for ref in _refs(item)]
    return []


class _Code:
    """Collects functions as source, then compiles them together."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}

    def call(self, call: Call) -> str:
        """The expression of one call."""
        parts = [self.expression(value) for value in call.args]
        parts += [f"{name}={self.expression(value)}" for name, value in call.kwargs.items()]
        args, kwargs = self.recorded(list(call.args)), self.recorded(call.kwargs)
        function = self.constant(quickest(call.func, tuple(args), kwargs))
        return f"{function}({', '.join(parts)})"

    def recorded(self, value: Any) -> Any:
        """An argument with the recorded tensors in it."""
        if isinstance(value, Ref):
            return self._slots[value].tensor
        if type(value) is list:
            return [self.recorded(item) for item in value]
        if type(value) is dict:
            return {key: self.recorded(item) for key, item in value.items()}
        return value

    def expression(self, value: Any) -> str:
        """The expression of one argument."""
        if isinstance(value, Ref):
            if self._slots[value].kind is VIEW:
                return f"(w{value}(v) if v[{value}] is None else v[{value}])"
            return f"v[{value}]"
        if type(value) is list:
            return f"[{', '.join(map(self.expression, value))}]"
        if value is None or type(value) in (bool, int):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        return self.constant(value)

    def constant(self, value: Any) -> str:
        """The name of an object that every replay uses as it is."""
        name = f"c{id(value)}"
        self._names[name] = value
        return name

    def targets(self, result: Any) -> str:
        """What a call's result is assigned to, such as ``[v[3], _, v[4]]``; "" for nothing."""
        if isinstance(result, Ref):
            return f"v[{result}]"
        if isinstance(result, list):
            parts = [self.targets(item) or "_" for item in result]
            if any(part != "_" for part in parts):
                return f"[{', '.join(parts)}]"
        return ""

    def define(self, name: str, *statements: str) -> None:
        """Add one function of the values `v`."""
        self._lines.append(f"def {name}(v):")
        self._lines += [f"    {statement}" for statement in statements]

    def compile(self) -> dict[str, Any]:
        """All names: functions and constants."""
        names = dict(self._names)
        exec(compile("\n".join(self._lines), "<recorded torch ops>", "exec"), names)
        return names
