"""What a generated Warp function reads and writes, by following addresses through its statements.

Every parameter of a function is a *root*. A variable is described by the roots whose memory it can
reach; the description only grows, and the statements are visited until it no longer does, so
branches, loops and reassigned arrays need no special care. A function is summed up once and
its callers use the summary.

Guarantee: memory that a launch writes belongs to a root that is marked written, and memory that it
reads to one that is marked read. Whatever is not understood (a statement, a builtin, a native
snippet, an address turned into an integer) reads and writes everything that it names, and marks it
opaque. Arrays used only for their shape, or not at all, are marked neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kscheduler.intercept import warp_builtins as builtins
from kscheduler.intercept.warp_source import Function, Node, Statement, Types
from kscheduler.intercept.warp_summary import (
    RETURN,
    Summary,
    pick,
    summarise_flags,
    summarise_unseen,
)

__all__ = ["summarise_module"]


class _Value(NamedTuple):
    """What an expression stands for: roots it holds, roots it points into, locals it points to."""

    holds: int = 0
    into: int = 0
    locals: frozenset[str] = frozenset()


_NOTHING = _Value()


def summarise_module(types: Types, functions: Iterable[Function]) -> list[Summary]:
    """Sum up every forward function of a module.

    Args:
        types: Types of the module.
        functions: Functions, callees before callers.

    Returns:
        One summary per function, in the same order.
    """
    known: dict[str, list[Summary]] = {}
    summaries = []
    for function in functions:
        if function.kind == "forward":
            summary = _Flow(types, function, known).run()
        else:
            summary = summarise_unseen(types, function)
        known.setdefault(function.name, []).append(summary)
        summaries.append(summary)
    return summaries


class _Flow:
    """One function on the way to its summary."""

    def __init__(
        self, types: Types, function: Function, known: Mapping[str, list[Summary]]
    ) -> None:
        self._types = types
        self._function = function
        self._known = known
        self._ctypes = dict(function.parameters) | function.locals
        self._carriers = frozenset(
            name for name, ctype in self._ctypes.items() if types.is_carrier(ctype)
        )
        self._pointers = frozenset(
            name for name in self._carriers if types.is_pointer(self._ctypes[name])
        )
        self._holds: dict[str, int] = {}
        self._into: dict[str, int] = {}
        self._locals: dict[str, frozenset[str]] = {}
        for index, (name, _) in enumerate(function.parameters):
            if name in self._carriers and not name.startswith("ret_"):
                (self._into if name in self._pointers else self._holds)[name] = 1 << index
        self._reads = self._writes = self._opaque = 0

    def run(self) -> Summary:
        """Visit the statements until nothing changes."""
        statements = list(self._function.statements(self._carriers))
        before: tuple[object, ...] = ()
        while before != (after := self._state()):
            before = after
            for statement in statements:
                self._visit(statement)
        outputs = [name for name, _ in self._function.parameters if name.startswith("ret_")]
        return Summary(
            self._function.name,
            self._function.is_kernel,
            self._function.parameters,
            self._reads,
            self._writes,
            self._opaque,
            {name: self._holds.get(name, 0) for name in [RETURN, *outputs]},
            *summarise_flags(self._types, self._function, self._known),
        )

    def _state(self) -> tuple[object, ...]:
        return (
            dict(self._holds),
            dict(self._into),
            dict(self._locals),
            (self._reads, self._writes, self._opaque),
        )

    # Statements

    def _visit(self, statement: Statement) -> None:
        if statement.value is None:
            roots = self._roots_of(statement.names)
            self._escape(roots)
            self._mix(_Value(roots), statement.names)
            return
        value = self._evaluate(statement.value)
        if statement.target is None:
            return
        if isinstance(statement.target, str):
            self._assign_variable(RETURN, value)
        elif statement.target[0] == "var":
            self._assign_variable(statement.target[1], value)
        else:
            self._store(self._evaluate(statement.target), value)

    def _assign_variable(self, name: str, value: _Value) -> None:
        if name in self._pointers:
            self._grow(self._into, name, value.into | (0 if value.locals else value.holds))
            self._locals[name] = self._locals.get(name, frozenset()) | value.locals
            return
        self._reads |= value.into
        if name in self._carriers or name == RETURN:
            self._grow(self._holds, name, self._roots(value))

    def _store(self, place: _Value, value: _Value) -> None:
        """``*place = value``."""
        self._reads |= value.into
        self._writes |= place.into
        held = self._roots(value)
        for name in place.locals:
            self._grow(self._holds, name, held)
        if place.into:
            self._escape(held)

    def _grow(self, table: dict[str, int], name: str, roots: int) -> None:
        table[name] = table.get(name, 0) | roots

    def _roots(self, value: _Value) -> int:
        """Every root that a value can lead to."""
        roots = value.holds | value.into
        for name in value.locals:
            roots |= self._holds.get(name, 0)
        return roots

    def _roots_of(self, names: Iterable[str]) -> int:
        roots = 0
        for name in names:
            roots |= self._roots(self._variable(name))
        return roots

    def _escape(self, roots: int) -> None:
        """Addresses that can no longer be followed."""
        self._reads |= roots
        self._writes |= roots
        self._opaque |= roots

    def _mix(self, value: _Value, names: Iterable[str]) -> None:
        """Any of the variables may have received any of the addresses."""
        roots = self._roots(value)
        for name in names:
            if name in self._pointers:
                self._grow(self._into, name, roots)
            elif name in self._carriers:
                self._grow(self._holds, name, roots)
            for local in self._locals.get(name, ()):
                self._grow(self._holds, local, roots)

    # Expressions

    def _variable(self, name: str) -> _Value:
        if name in self._pointers:
            return _Value(0, self._into.get(name, 0), self._locals.get(name, frozenset()))
        if name in self._carriers:
            return _Value(self._holds.get(name, 0), 0, frozenset((name,)))
        return _NOTHING

    def _evaluate(self, node: Node) -> _Value:
        kind = node[0]
        if kind == "var":
            return self._variable(node[1])
        if kind == "call":
            return self._call(node[1], node[2])
        if kind == "pointer":
            value = self._evaluate(node[1])
            return _Value(0, value.into, value.locals) if value.locals else value
        if kind == "member":
            return self._member(node[1], node[2])
        values = [self._evaluate(part) for part in node[1]] if kind == "value" else []
        if kind == "cast":
            values = [self._evaluate(node[1])]
            self._escape(self._roots(values[0]))
        for value in values:
            self._reads |= value.into
        return self._together(values)

    def _together(self, values: Iterable[_Value]) -> _Value:
        roots = 0
        for value in values:
            roots |= self._roots(value)
        return _Value(roots)

    def _member(self, base: Node, field: str) -> _Value:
        value = self._evaluate(base)
        ctype = self._ctypes.get(base[1], "") if base[0] == "var" else ""
        ctype = ctype.rstrip("*")
        if ctype in self._types.structs:
            return value
        if field in ("data", "grad"):
            self._escape(self._roots(value))
        if field in ("shape", "strides", "ndim") and self._is_array(ctype) and not value.into:
            return _NOTHING
        return value

    def _call(self, name: str, arguments: tuple[Node, ...]) -> _Value:
        values = [self._evaluate(argument) for argument in arguments]
        if name in self._known:
            return self._call_function(name, arguments, values)
        if name in builtins.NO_ACCESS:
            self._read(values)
            return _NOTHING
        if name in builtins.POINTS_INTO and values:
            base = values[0]
            # The header of an array that is itself an element is read, unlike one in a variable.
            self._read(values if arguments[0][0] != "var" else values[1:])
            # The place may be an array, an array behind a pointer to a local, or within a local.
            return _Value(0, self._roots(base), base.locals)
        if name == "wp::load" and len(values) == 1:
            self._reads |= values[0].into
            return _Value(self._roots(values[0]))
        if name == "wp::assign" and len(values) == 2 and arguments[0][0] == "var":
            self._assign_variable(arguments[0][1], values[1])
            return _NOTHING
        if name == "wp::view" and values:
            self._read(values[1:])
            # A view of an indexed array looks its index up.
            ctype = self._ctypes.get(arguments[0][1], "") if arguments[0][0] == "var" else ""
            if not ctype.startswith(("wp::array_t<", "wp::fixedarray_t<")):
                self._reads |= self._roots(values[0])
            return _Value(self._roots(values[0]))
        if name in builtins.PASSES_ON or name in self._types.structs:
            self._read(values)
            return self._together(values)
        if name in builtins.READS:
            self._reads |= self._together(values).holds
            return _NOTHING
        if (name in builtins.WRITES_FIRST or builtins.is_atomic(name)) and values:
            self._write_first(name, values)
            return _NOTHING
        return self._call_unknown(name, arguments, values)

    @staticmethod
    def _is_array(ctype: str) -> bool:
        return re.match(r"wp::\w*array_t<", ctype) is not None

    def _read(self, values: Iterable[_Value]) -> None:
        for value in values:
            self._reads |= value.into

    def _write_first(self, name: str, values: list[_Value]) -> None:
        if name == "wp::store":
            self._store(values[0], self._together(values[1:]))
            return
        place = self._roots(values[0])
        self._read(values[:1])
        self._writes |= place
        if name not in builtins.WRITES_FIRST:
            self._reads |= place
        self._escape(self._together(values[1:]).holds)

    def _call_unknown(self, name: str, arguments: tuple[Node, ...], values: list[_Value]) -> _Value:
        together = self._together(values)
        self._reads |= together.holds
        self._writes |= together.holds
        if not name.startswith("wp::") or name.startswith("wp::adj_"):
            self._opaque |= together.holds
        for argument, value in zip(arguments, values, strict=True):
            names = [argument[1]] if argument[0] == "var" else []
            self._mix(together, [*names, *value.locals])
        return together

    def _call_function(
        self, name: str, arguments: tuple[Node, ...], values: list[_Value]
    ) -> _Value:
        overloads = [one for one in self._known[name] if len(one.parameters) == len(values)]
        if not overloads:
            return self._call_unknown(name, arguments, values)
        roots = [self._roots(value) for value in values]
        everything = 0
        for mask in roots:
            everything |= mask
        for value in values:
            # A callee may store what it was given through a pointer to a local of ours.
            if value.locals and not value.holds:
                for local in value.locals:
                    self._grow(self._holds, local, everything)
        result = 0
        for summary in overloads:
            for value, (_, ctype) in zip(values, summary.parameters, strict=True):
                if not self._types.is_pointer(ctype):
                    self._reads |= value.into
            self._reads |= pick(roots, summary.reads)
            self._writes |= pick(roots, summary.writes)
            self._opaque |= pick(roots, summary.opaque)
            result |= pick(roots, summary.returns.get(RETURN, 0))
            for index, (parameter, _) in enumerate(summary.parameters):
                if parameter in summary.returns:
                    held = _Value(pick(roots, summary.returns[parameter]))
                    if arguments[index][0] == "var":
                        self._assign_variable(arguments[index][1], held)
                    else:
                        self._store(values[index], held)
        return _Value(result)
