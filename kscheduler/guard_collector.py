"""Collects guards: which host values the code that runs in a recording can have read.

While a function is recorded, every Python function of the user's that runs is noted. From it,
from the arguments and from the recorded function, objects are visited as far as names in that code
lead; what was there before and is still there after becomes a guard, and what has changed is
reported to whoever records.

Not seen: values kept inside foreign containers that are reached through no attribute, and the
contents of numpy arrays above 64 KiB.
"""

from __future__ import annotations

import collections
import gc
import itertools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kscheduler import _core
from kscheduler.arguments import given_attributes
from kscheduler.guards import PLAIN_TYPES, Guard, Guards, is_scalar, same_scalar
from kscheduler.host_state import HOST_GENERATORS, generator_state
from kscheduler.intercept.user_line import is_library
from kscheduler.spaces import (
    MISSING,
    Attributes,
    Contents,
    Members,
    class_values,
    code_names,
    contents_of,
    global_names,
    imported_modules,
    is_array,
    is_foreign,
    is_installed,
    is_iterator,
    is_namespace,
    is_torch_object,
    looked_up_names,
    parts_of,
    reads_by_computed_name,
    spaces_of,
)

__all__ = ["GuardCollector"]

_SKIPPED = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CONTAINERS = (dict, list, set, collections.deque)
_COUNTED = (*_CONTAINERS, np.ndarray)  # compared only where code names them
_SEQUENCES = (tuple, *_CONTAINERS)
_DEPTH = 60
_MAX_ITEMS = 65_536  # of a container that can be guarded
_ENVIRONMENT = {"environ", "getenv", "environb", "getenvb"}


@dataclass(slots=True)
class _Visit:
    owner: str
    space: Any
    before: Any  # a shallow copy
    keep: Any
    may_grow: bool = False  # a global container, which may be a cache that fills for the first time
    all_names: bool = False  # read by code whose names are not known
    codes: set[int] = field(default_factory=set)  # of the functions that hold this cell


class GuardCollector:
    """Notes the Python functions that run inside the block and the objects they were given.

    `finish` turns them into guards and says which attributes the function itself has changed.

    Attributes:
        outside: After `finish`, ids of the objects that others can reach, too.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._contents: dict[int, Contents] = {}
        self._looked_up: set[str] = set()
        self._is_computing = False
        self._random: dict[int, tuple[Any, str]] = {}  # generators of the host, and their states
        self._iterators: dict[int, Any] = {}
        self._generators: dict[int, torch.Generator] = {}
        self._environment = Contents(os.environ, _environment)
        self._unwatched: dict[int, Any] = {}  # what lies too deep or is too large
        self._modules: dict[int, types.ModuleType] = {}
        self._importers: list[tuple[types.CodeType, dict[str, Any]]] = []
        self._codes: dict[int, types.CodeType] = {}
        self._visits: dict[Any, _Visit] = {}
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._global_names: dict[int, set[str]] = {}
        self._closures: dict[int, types.FunctionType] = {}
        self._young: set[int] = set()
        self._unknown_closures: set[types.CodeType] = set()  # the interpreter does not tell whose
        self.outside: set[int] = set()
        self._called: dict[int, set[str]] = {}  # container -> names of attributes
        self._followed: set[tuple[Any, types.CodeType]] = set()
        self._in_globals = False
        self._roots: list[Any] = []
        self._previous: Any = None

    def __enter__(self) -> GuardCollector:
        gc.collect(0)  # collection is off from here: what is young later, was made inside
        self._previous = sys.getprofile()
        _core.set_call_hook(self._on_call)
        return self

    def __exit__(self, *exc: Any) -> None:
        _core.set_call_hook(None)
        if self._closures or self._unknown_closures:
            self._young = set(map(id, gc.get_objects(generation=0)))
        if self._previous is not None:
            sys.setprofile(self._previous)

    def add_root(self, value: Any) -> None:
        """Visits an object from outside, such as an argument of the recorded function."""
        self._roots.append(value)
        self._visit(value, 0)

    def _on_call(self, frame: types.FrameType) -> bool:
        """Looks at a call; False: not at this code again."""
        code = frame.f_code
        if is_library(code.co_filename) or _is_named_tuple(frame):
            return False
        if id(code) not in self._codes:  # the hash of a code object takes long
            self._codes[id(code)] = code
            self._names.update(code_names(code))
            self._looked_up.update(looked_up_names(code))
            self._is_computing = self._is_computing or reads_by_computed_name(code)
            space = frame.f_globals
            self._importers.append((code, space))
            for module in imported_modules(code, space):
                self.add_root(module)
            names = self._global_names.setdefault(id(space), set())
            names.update(global_names(code))
            if id(space) not in self._globals:
                self._globals[id(space)] = (space, dict(space))
            self._visit_globals(global_names(code), space, code)
        values = frame.f_locals
        if any(is_scalar(values.get(name)) for name in code.co_freevars):
            function = _core.frame_function(frame)
            if function is None:
                self._unknown_closures.add(code)
            else:
                self._closures[id(function)] = function
        for value in values.values():
            self._visit(value, 0)
        return True

    def _visit(self, value: Any, depth: int, name: str = "") -> None:
        if type(value) in PLAIN_TYPES:
            return
        if isinstance(value, _COUNTED):
            self._called.setdefault(id(value), set()).add(name)
        if id(value) in self._visits or is_scalar(value):
            return
        if isinstance(value, HOST_GENERATORS):
            self._random.setdefault(id(value), (value, generator_state(value)))
            return
        if isinstance(value, torch.Generator):
            self._generators[id(value)] = value
            return
        if is_iterator(value):
            self._iterators[id(value)] = value
            self._called.setdefault(id(value), set()).add(name)
            return
        if depth > _DEPTH:
            self._unwatched[id(value)] = value
            return
        take = contents_of(value)
        if take is not None and id(value) not in self._contents:
            self._contents[id(value)] = Contents(value, take)
        if isinstance(value, _SEQUENCES):
            self._visit_container(value, depth)
            if type(value) not in _SEQUENCES:
                self._visit_attributes(value, depth)
        elif take is not None:
            return
        elif isinstance(value, np.ndarray):
            self._unwatched[id(value)] = value  # too large
        elif is_array(value):
            self._visit_array(value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, depth)
        elif isinstance(value, types.CellType):
            for item in parts_of(value) or ():
                self._visit(item, depth + 1)
        elif (parts := parts_of(value)) is not None:
            self._visits[id(value)] = _Visit("", {}, {}, value)
            if isinstance(value, types.FunctionType):
                self._visit_cells(value)
                own = vars(value)
                self._visits[id(value), dict] = _Visit(value.__name__, own, dict(own), value)
            for item in parts:
                self._visit(item, depth + 1)
        elif is_namespace(value) or not (isinstance(value, _SKIPPED) or is_foreign(value)):
            self._visit_object(value, depth)
        else:
            self._visits[id(value)] = _Visit("", {}, {}, value)

    def _visit_object(self, value: Any, depth: int) -> None:
        self._visits[id(value)] = _Visit("", {}, {}, value)
        self._visit_attributes(value, depth)

    def _visit_attributes(self, value: Any, depth: int) -> None:
        is_torch = is_torch_object(value)
        for holder, space in spaces_of(value):
            key = (id(holder), type(space))
            if key in self._visits:
                continue
            owner = holder.__name__ if isinstance(holder, type) else type(value).__name__
            visit = _Visit(owner, space, dict(space), holder)
            visit.all_names = is_torch and not isinstance(holder, type)
            self._visits[key] = visit
            for name, item in list(dict(space).items()):
                if not name.startswith("__"):
                    self._visit(item, depth + 1, "" if visit.all_names else name)

    def _visit_array(self, value: Any) -> None:
        """What hangs on a tensor or array: its gradient, and attributes that the user gave it."""
        self._visits[id(value)] = _Visit("", {}, {}, value)
        if given_attributes(value):
            own = vars(value)
            self._visits[id(value), dict] = _Visit(type(value).__name__, own, dict(own), value)
            for name, item in list(own.items()):
                self._visit(item, 0, name)
        if getattr(value, "requires_grad", False) or getattr(value, "_grad", None) is not None:
            space = Attributes(value, ("_grad",))  # `grad` warns about tensors that are no leaves
            visit = _Visit(type(value).__name__, space, dict(space), value, all_names=True)
            self._visits[id(value), Attributes] = visit

    def _visit_module(self, value: types.ModuleType, depth: int = 0) -> None:
        if not is_namespace(value):
            return
        self._modules[id(value)] = value
        space = vars(value)
        key = (id(value), dict)
        if key not in self._visits:
            self._visits[key] = _Visit(value.__name__, space, dict(space), value)
        for name in self._names & space.keys():
            if not isinstance(space[name], types.ModuleType):
                self._in_globals = True
                self._visit(space[name], depth + 1, name)
                self._in_globals = False

    def _visit_container(self, value: Any, depth: int) -> None:
        if len(value) > _MAX_ITEMS:
            self._unwatched[id(value)] = value
            return
        if id(value) in self._contents:
            self._visits[id(value)] = _Visit("", {}, {}, value)
        elif isinstance(value, set):
            space = Members(value)
            self._visits[id(value)] = _Visit("set", space, dict(space), value, self._in_globals)
        elif not isinstance(value, tuple):
            owner = type(value).__name__
            self._visits[id(value)] = _Visit(owner, value, value.copy(), value, self._in_globals)
        for item in list(value.values() if isinstance(value, dict) else value):
            self._visit(item, depth + 1)

    def _visit_globals(self, names: Iterable[str], space: Any, code: types.CodeType) -> None:
        """Visits what code can have read from its module, and from others that it names."""
        for name in names:
            value = space.get(name)
            if not is_namespace(value):
                self._in_globals = True
                self._visit(value, 0)
                self._in_globals = False
                continue
            for holder, inner in spaces_of(value):
                key = (id(holder), type(inner))
                if key not in self._visits:
                    self._visits[key] = _Visit(holder.__name__, inner, dict(inner), holder)
                further = [n for n in code.co_names if n in inner and inner[n] is not value]
                if (key, code) not in self._followed:
                    self._followed.add((key, code))
                    self._visit_globals(further, inner, code)

    def add_function(self, function: Any) -> None:
        """Visits what a function, or another callable, holds."""
        function = getattr(function, "__func__", function)
        self._roots.append(function)
        self._visit(function, 0)

    def _visit_cells(self, function: types.FunctionType) -> None:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=False):
            visit = self._visits.get(id(cell))
            if visit is None:
                space = Attributes(cell, ("cell_contents",))
                visit = _Visit(f"closure variable {name}", space, dict(space), cell)
                self._visits[id(cell)] = visit
                self._names.add("cell_contents")
                self._visit(space.get("cell_contents"), 0, name)
            visit.codes.add(id(function.__code__))

    def _find_closures(self) -> None:
        """Functions with numbers in their closure that were reached through no known object."""
        found: list[Any] = list(self._closures.values())
        if self._unknown_closures:
            found += gc.get_referrers(*self._unknown_closures)
        for function in found:
            if isinstance(function, types.FunctionType) and id(function) not in self._young:
                self.add_function(function)

    def finish(self) -> tuple[Guards, list[tuple[Any, str, Any, Any]]]:
        """Returns the guards, and (object, name, before, after) of changed attributes."""
        self._find_closures()
        for code, space in self._importers:
            for module in imported_modules(code, space):
                self.add_root(module)
        for module in list(self._modules.values()):
            self._visit_module(module)  # with the names of what ran since
        guards = Guards()
        changed: list[tuple[Any, str, Any, Any]] = []
        outside = self.outside = self._reachable()
        for visit in self._visits.values():
            if not visit.owner or id(visit.keep) not in outside:
                continue  # made by the function itself; nobody else can change it
            if visit.codes and not self._is_used_cell(visit):
                continue
            for key, before, after in self._entries(visit):
                self._add(guards, changed, visit.owner, visit, key, before, after)
            if isinstance(visit.keep, _CONTAINERS) and self._is_named(visit.keep):
                guards.lengths.append((visit.keep, len(visit.keep)))
                if isinstance(visit.keep, dict) and visit.space is visit.keep:
                    guards.contents.append(Contents(visit.keep, tuple))  # the order of its keys
        if not self._names.isdisjoint(_ENVIRONMENT):
            self._contents[id(os.environ)] = self._environment
            outside.add(id(os.environ))
        self._add_contents(guards, changed, outside)
        for space, before in self._globals.values():
            visit = _Visit("global", space, before, space)
            for name in self._global_names[id(space)]:
                then, after = before.get(name, MISSING), space.get(name, MISSING)
                self._add(guards, changed, "global", visit, name, then, after)
        return guards, changed

    def generators(self) -> list[torch.Generator]:
        """The torch generators that others can reach, too."""
        return [value for key, value in self._generators.items() if key in self.outside]

    def advanced_generators(self) -> list[str]:
        """Kinds of the host's random generators that were drawn from, for others to see."""
        return [
            type(value).__name__
            for value, before in self._random.values()
            if id(value) in self.outside and generator_state(value) != before
        ]

    def iterators(self) -> list[str]:
        """Kinds of the iterators that the function can have advanced for others to see."""
        return [
            type(value).__name__
            for value in self._iterators.values()
            if id(value) in self.outside and self._is_named(value)
        ]

    def _is_used_cell(self, visit: _Visit) -> bool:
        """Whether a function that holds the cell ran, and so did the function in it, if any."""
        held = visit.space.get("cell_contents")
        if isinstance(held, types.FunctionType) and held.__code__.co_filename != "<string>":
            code = held.__code__
            if id(code) not in self._codes and not is_library(code.co_filename):
                return False
        return not visit.codes.isdisjoint(self._codes)

    def _add_contents(
        self, guards: Guards, changed: list[tuple[Any, str, Any, Any]], outside: set[int]
    ) -> None:
        for held in self._contents.values():
            holder = held.holder
            if id(holder) not in outside:
                continue
            if isinstance(holder, np.ndarray) and not self._is_named(holder):
                continue
            if held.has_changed():  # filled by a first call, perhaps: the next one tells
                changed.append((holder, "contents", MISSING, "others"))
            else:
                guards.contents.append(held)
        for holder in self._unwatched.values():
            is_read = not isinstance(holder, np.ndarray) or self._is_named(holder)
            if id(holder) in outside and is_read:
                changed.append((holder, "contents", "what is too large to watch", "anything"))

    def _is_named(self, container: Any) -> bool:
        names = self._called.get(id(container), set())
        return self._is_computing or "" in names or not names.isdisjoint(self._names)

    def _reachable(self) -> set[int]:
        """Ids of the objects that the outside can reach: through arguments, globals, closures."""
        stack = list(self._roots)
        for space, _ in self._globals.values():
            names = self._global_names[id(space)]
            stack += [space[name] for name in names if name in space]
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if id(value) in seen or is_scalar(value):
                continue
            seen.add(id(value))
            if is_array(value):
                stack += vars(value).values() if isinstance(value, torch.Tensor) else ()
            elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
                stack += value
                stack += _own_of_subclass(value, seen)
            elif isinstance(value, dict):
                stack += value.values()
                stack += _own_of_subclass(value, seen)
            elif (parts := parts_of(value)) is not None:
                stack += parts
            elif is_namespace(value):
                for holder, space in spaces_of(value):
                    seen.add(id(holder))
                    stack += [space[name] for name in self._names & space.keys()]
            elif not isinstance(value, _SKIPPED) and not is_foreign(value):
                for holder, space in spaces_of(value):
                    seen.add(id(holder))
                    stack += [space[name] for name in space]
        return seen

    def _entries(self, visit: _Visit) -> Iterator[tuple[Any, Any, Any]]:
        space, before = visit.space, visit.before
        if isinstance(space, (list, collections.deque)):
            yield from ((i, b, a) for i, (b, a) in enumerate(zip(before, space, strict=False)))
            if len(space) != len(before):
                has_grown = visit.may_grow and len(space) > len(before)
                yield "length", MISSING if has_grown else len(before), len(space)
            return
        if isinstance(space, Members):
            members = space["members"]
            has_grown = visit.may_grow and before["members"] < members
            yield "members", MISSING if has_grown else before["members"], members
            return
        is_object = space is not visit.keep
        for key in {**before, **space}:
            if is_object and key not in self._names and not self._is_read(visit, key):
                continue
            yield key, before.get(key, MISSING), space.get(key, MISSING)
        if is_object and isinstance(space, dict) and not isinstance(visit.keep, type):
            # An attribute of the class may be hidden by one of the object's later.
            hidden = class_values(visit.keep) & self._names
            if isinstance(visit.keep, torch.nn.Module):
                hidden.add("forward")
            for key in (hidden | self._looked_up) - {*before, *space}:
                yield key, MISSING, MISSING

    def _is_read(self, visit: _Visit, key: str) -> bool:
        """Whether a value may be read by a name that no code holds."""
        if visit.all_names:
            return True
        return self._is_computing and not isinstance(visit.keep, (type, types.ModuleType))

    def _add(
        self,
        guards: Guards,
        changed: list[tuple[Any, str, Any, Any]],
        owner: str,
        visit: _Visit,
        key: Any,
        before: Any,
        after: Any,
    ) -> None:
        if before is not after and not (
            is_scalar(before) and is_scalar(after) and same_scalar(before, after)
        ):
            changed.append((visit.keep, key, before, after))
            return
        guard = Guard(visit.space, key, after, owner)
        if is_scalar(after):
            guards.scalars.append(guard)
        elif (
            isinstance(visit.keep, type)
            and (callable(after) or hasattr(after, "__get__"))
            and is_installed(visit.keep)
        ):
            return  # a method or property of a library, which nobody exchanges
        elif not isinstance(after, types.ModuleType) and not _is_installed_code(visit, after):
            guards.objects.append(guard)


def _is_named_tuple(frame: types.FrameType) -> bool:
    """Whether a call is of code that `collections.namedtuple` made."""
    if frame.f_code.co_filename != "<string>":
        return False
    return str(frame.f_globals.get("__name__", "")).startswith("namedtuple_")


def _own_of_subclass(container: Any, seen: set[int]) -> list[Any]:
    """What attributes of a container and its classes hold, where it is of a class of the user's."""
    if type(container) in (tuple, frozenset, *_CONTAINERS):
        return []
    held = []
    for holder, space in spaces_of(container):
        seen.add(id(holder))
        held += [space[name] for name in space]
    return held


def _environment(environment: Any) -> tuple[bytes, ...]:
    return tuple(itertools.chain.from_iterable(environment._data.items()))


def _is_installed_code(visit: _Visit, value: Any) -> bool:
    """Whether a value is a function or class of an installed package, found in its module."""
    if not callable(value) and not is_foreign(value):
        return False
    space = visit.space
    is_module = isinstance(space, dict) and "__file__" in space and "__name__" in space
    return is_module and "site-packages" in (space["__file__"] or "")
