"""Summaries of generated functions: effects on parameters, and what needs no following to find.

A summary holds masks with one bit per parameter. Native snippets and functions in reverse mode are
not followed: they read and write everything that their parameters reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from kscheduler.intercept import warp_builtins as builtins
from kscheduler.intercept.warp_source import Function, Node, Types

__all__ = ["RETURN", "Flags", "Summary", "pick", "summarise_flags", "summarise_unseen"]

RETURN = "return"

# Code that is not Warp's: a builtin that a user registered.
_FOREIGN = re.compile(r"\b(?!wp\b)\w+::\w")
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r'//.*|^ *#.*|"(?:\\.|[^"\\])*"', re.M)


class Summary(NamedTuple):
    """Effects of a function on what its parameters reach; masks have one bit per parameter.

    Args:
        name: Name in C++; of a kernel, its mangled name.
        is_kernel: Whether it is a launchable kernel.
        parameters: (name, type) in order.
        reads: Parameters whose memory is read.
        writes: Parameters whose memory is written.
        opaque: Parameters through which unseen memory may be touched.
        returns: Parameters that a result may reach, by output name ("return", "ret_0", ...).
        handles: An id or raw address of 64 bits may be followed.
        hidden: Memory that no parameter reaches may be touched.
        atomics: Atomics are used.
    """

    name: str
    is_kernel: bool
    parameters: tuple[tuple[str, str], ...]
    reads: int = 0
    writes: int = 0
    opaque: int = 0
    returns: Mapping[str, int] = {}
    handles: bool = False
    hidden: bool = False
    atomics: bool = False


class Flags(NamedTuple):
    """The part of a summary that depends on which names a function uses, see `Summary`."""

    handles: bool
    hidden: bool
    atomics: bool


def summarise_flags(types: Types, function: Function, known: Mapping[str, list[Summary]]) -> Flags:
    """Flags of a generated function.

    Args:
        types: Types of its module.
        function: The function.
        known: Summaries of the functions before it, by name.
    """
    code = _COMMENT.sub("", function.body)
    called = set(_WORD.findall(code)) & known.keys()
    callees = [summary for name in called for summary in known[name]]
    foreign = "det_ctx" in code or _FOREIGN.search(code) is not None
    return Flags(
        handles=any(callee.handles for callee in callees)
        or _follows_handles(types, function, known),
        hidden=foreign or any(callee.hidden for callee in callees),
        atomics="atomic_" in code or any(callee.atomics for callee in callees),
    )


def _follows_handles(types: Types, function: Function, known: Mapping[str, list[Summary]]) -> bool:
    ctypes = dict(function.parameters) | function.locals
    handles = frozenset(
        name
        for name, ctype in ctypes.items()
        if types.holds_handle(ctype) and not types.is_pointer(ctype)
    )
    if not handles:
        return False
    harmless = known.keys() | types.structs.keys()
    return any(
        statement.value is None or _may_follow(statement.value, handles, harmless)
        for statement in function.statements(handles)
    )


def _may_follow(node: Node, handles: frozenset[str], harmless: Set[str]) -> bool:
    """Whether a handle is an argument of a call that may follow it."""
    kind = node[0]
    children = node[2] if kind == "call" else node[1:2]
    if kind == "value":
        children = node[1]
    if kind == "var":
        return False
    if kind == "call" and node[1] not in harmless and not builtins.is_arithmetic(node[1]):
        for child in children:
            if child[0] == "var" and child[1] in handles:
                return True
    return any(_may_follow(child, handles, harmless) for child in children)


def summarise_unseen(types: Types, function: Function) -> Summary:
    """Free C++ or reverse mode, which reads and writes all that its parameters reach."""
    everything = sum(
        1 << index
        for index, (_, ctype) in enumerate(function.parameters)
        if types.is_carrier(ctype)
    )
    words = set(_WORD.findall(_COMMENT.sub("", function.body)))
    plain = all(
        types.is_plain_array(ctype) or types.is_pointer(ctype) or not types.is_carrier(ctype)
        for _, ctype in function.parameters
    )
    outputs = [name for name, _ in function.parameters if name.startswith("ret_")]
    return Summary(
        function.name,
        False,
        function.parameters,
        everything,
        everything,
        0 if plain and function.kind == "native" and "grad" not in words else everything,
        dict.fromkeys([RETURN, *outputs], everything),
        handles=any(types.holds_handle(ctype) for _, ctype in function.parameters),
        hidden=bool(words & {"static", "extern", "asm", "thread_local"}),
        atomics=any(word.startswith("atomic") for word in words),
    )


def pick(roots: list[int], parameters: int) -> int:
    """The union of the masks of the parameters in a mask.

    Args:
        roots: A mask per parameter.
        parameters: Mask of parameters.
    """
    picked = 0
    for index in _bits(parameters):
        picked |= roots[index]
    return picked


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
