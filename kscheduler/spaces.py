"""Where host values live: the attributes of objects, classes and modules, cells and sets.

Each is seen as a mapping, so that guards can look a value up again. Guarantee: looking runs no code
of the user's but `__getattr__` of classes with slots.
"""

from __future__ import annotations

import array
import collections
import collections.abc
import ctypes
import dis
import functools
import opcode
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import numpy as np
import torch
import warp

from kscheduler.intercept.user_line import is_library

__all__ = [
    "MISSING",
    "Attributes",
    "Contents",
    "Members",
    "class_values",
    "code_names",
    "contents_of",
    "global_names",
    "imported_modules",
    "is_array",
    "is_foreign",
    "is_installed",
    "is_iterator",
    "is_namespace",
    "is_torch_object",
    "looked_up_names",
    "own_dict",
    "parts_of",
    "reads_by_computed_name",
    "spaces_of",
]

MISSING = object()
_FOREIGN_CLASSES = frozenset(
    ("builtins", "torch", "typing", "abc", "enum", "collections", "warp", "numpy", "kscheduler")
)


class Attributes:
    """The slots of an object, or the contents of a cell, as a mapping."""

    def __init__(self, holder: Any, names: tuple[str, ...]) -> None:
        self.holder = holder
        self._names = names

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.holder, name)
        except (AttributeError, ValueError):
            raise KeyError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if self.get(name, MISSING) is not MISSING)

    def keys(self) -> list[str]:
        """Names of the attributes that have a value."""
        return list(self)

    def values(self) -> list[Any]:
        """Their values."""
        return [self[name] for name in self]


class Members:
    """A set as a mapping with one entry: its members."""

    def __init__(self, holder: set[Any]) -> None:
        self._holder = holder

    def __getitem__(self, name: str) -> Any:
        return frozenset(self._holder)

    def get(self, name: str, default: Any = None) -> Any:
        """The members, whatever the name."""
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("members",))

    def keys(self) -> list[str]:
        """The one name."""
        return ["members"]


class Contents:
    """What a value without names holds: its bytes, or the objects of a large container."""

    def __init__(self, holder: Any, take: Callable[[Any], Any]) -> None:
        self.holder = holder
        self._take = take
        self._held = take(holder)

    def has_changed(self) -> bool:
        """Whether other bytes, or other objects, are there now."""
        now, held = self._take(self.holder), self._held
        if isinstance(now, bytes):
            return bool(now != held)
        return len(now) != len(held) or not all(map(is_, now, held))


MANY_ITEMS = 512  # containers with more are compared as a whole
_MAX_BYTES = 1 << 24  # of a NumPy array that is compared
_C_VALUES = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)


def own_dict(value: Any) -> dict[str, Any]:
    """The attributes of an object itself; empty if it has none. Runs no code of the user's."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def contents_of(value: Any) -> Callable[[Any], Any] | None:
    """What takes a snapshot of a value that is compared as a whole; None for other values."""
    if isinstance(value, np.ndarray):
        if value.nbytes > _MAX_BYTES:
            return None
        return (lambda v: tuple(v.flat)) if value.dtype.hasobject else np.ndarray.tobytes
    if isinstance(value, (*_C_VALUES, bytearray, array.array)):
        return bytes
    if isinstance(own_dict(value).get("_ctype"), ctypes.Structure):  # an instance of a wp.struct
        return lambda v: bytes(v._ctype)
    if isinstance(value, (list, dict, set, collections.deque)) and len(value) > MANY_ITEMS:
        return (lambda v: (*v, *v.values())) if isinstance(value, dict) else tuple
    return None


def parts_of(value: Any) -> list[Any] | None:
    """The objects that something callable, or a reference, holds; None for other values."""
    if isinstance(value, types.FunctionType):
        own = vars(value).values()
        return [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, *own]
    if isinstance(value, warp.Launch):  # exchanged by its `set_param_at_index` and `set_dim`
        return [value.params]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (classmethod, staticmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, types.CellType):
        return list(Attributes(value, ("cell_contents",)).values())
    if isinstance(value, functools._lru_cache_wrapper):
        return [value.__wrapped__]
    return None


def is_iterator(value: Any) -> bool:
    """Whether a value is advanced by `next` and keeps its place where no name leads."""
    return isinstance(value, collections.abc.Iterator) and not hasattr(value, "__dict__")


def is_torch_object(value: Any) -> bool:
    """Whether torch's own code reads a value's attributes, which no code of the user's names."""
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return isinstance(value, kinds)


def code_names(code: types.CodeType) -> set[str]:
    """Names of attributes that code can read: those it names, and strings among its constants."""
    names = set(code.co_names)
    stack = list(code.co_consts)
    while stack:
        held = stack.pop()
        if isinstance(held, str) and held.isidentifier():
            names.add(held)
        elif isinstance(held, (tuple, frozenset)):
            stack += held
    return names


_LOAD_GLOBAL = opcode.opmap["LOAD_GLOBAL"]
_LOAD_NAME = opcode.opmap["LOAD_NAME"]
_IMPORT_NAME = opcode.opmap["IMPORT_NAME"]
_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]


def global_names(code: types.CodeType) -> set[str]:
    """Names that a function loads from its module (`co_names` holds attributes, too)."""
    names = set()
    extended = 0
    for op, arg in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == _EXTENDED_ARG else 0
        if op == _LOAD_GLOBAL:
            names.add(code.co_names[arg >> 1])  # the lowest bit is not part of the index
        elif op == _LOAD_NAME:
            names.add(code.co_names[arg])
    return names


_LOOKUPS = frozenset(("getattr", "hasattr"))
_READERS = frozenset(
    ("vars", "__dict__", "attrgetter", "__getattribute__", "asdict", "astuple", "fields")
)
_COMPUTING = frozenset(("FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING", "BINARY_OP"))


def reads_by_computed_name(code: types.CodeType) -> bool:
    """Whether code may read attributes whose names do not stand in it."""
    if not _READERS.isdisjoint(code.co_names):
        return True
    if _LOOKUPS.isdisjoint(code.co_names):
        return False
    instructions = list(dis.get_instructions(code))
    return any(
        instruction.argval in _LOOKUPS and not _is_constant_lookup(instructions[index + 1 :])
        for index, instruction in enumerate(instructions)
        if instruction.opname.startswith("LOAD_")
    )


def _is_constant_lookup(following: list[dis.Instruction]) -> bool:
    """Whether the arguments of a call that begins here are an object and a name."""
    has_name = False
    previous = None
    for instruction in following:
        is_of_text = previous is not None and instruction.opname in ("LOAD_METHOD", "LOAD_ATTR")
        if instruction.opname in _COMPUTING or is_of_text:
            return False
        if instruction.opname.startswith("CALL"):
            return has_name
        is_text = instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
        previous = instruction if is_text else None
        has_name = has_name or is_text
    return False


def looked_up_names(code: types.CodeType) -> set[str]:
    """Names that code asks for with `getattr` or `hasattr`, and that need not be there."""
    if _LOOKUPS.isdisjoint(code.co_names):
        return set()
    return {held for held in code.co_consts if isinstance(held, str) and held.isidentifier()}


def imported_modules(code: types.CodeType, space: dict[str, Any]) -> list[types.ModuleType]:
    """The user's modules that code imports itself, as far as they are loaded."""
    if _IMPORT_NAME not in code.co_code[::2]:
        return []
    package = space.get("__package__") or ""
    found = []
    for name in code.co_names:
        for full in (name, f"{package}.{name}", package):
            module = sys.modules.get(full)
            if module is not None and is_namespace(module):
                found.append(module)
    return found


def spaces_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, mapping) of an object's attributes: its dict, its classes, its slots."""
    own = own_dict(value)
    if own or not isinstance(value, type):
        yield value, own
    if isinstance(value, types.ModuleType):
        return
    slots: list[str] = []
    for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        declared = cls.__dict__.get("__slots__", ())
        declared = (declared,) if isinstance(declared, str) else declared
        slots += [_mangled(name, cls) for name in declared]
        root = (cls.__module__ or "").partition(".")[0]
        if root not in _FOREIGN_CLASSES:
            yield cls, cls.__dict__
    if slots and not isinstance(value, type):
        yield value, Attributes(value, tuple(slots))


def _mangled(name: str, cls: type) -> str:
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if is_private else name


def class_values(value: Any) -> set[str]:
    """Names of the attributes of an object's classes, which one of its own would hide."""
    return {
        name
        for holder, space in spaces_of(value)
        if isinstance(holder, type)
        for name in space
        if not name.startswith("__")
    }


def is_namespace(value: Any) -> bool:
    """Whether a value is a module or a class of the user's, whose attributes may be settings."""
    if isinstance(value, types.ModuleType):
        is_standard = value.__name__.partition(".")[0] in sys.stdlib_module_names
        return not is_standard and not is_library(getattr(value, "__file__", None) or "")
    if not isinstance(value, type):
        return False
    root = (value.__module__ or "").partition(".")[0]
    return root not in sys.stdlib_module_names and root not in _FOREIGN_CLASSES


def is_installed(value: type) -> bool:
    """Whether a class is of a package that is installed, and not of the user's own code."""
    module = sys.modules.get(value.__module__ or "")
    return "site-packages" in (getattr(module, "__file__", None) or "")


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or array, whose contents are no setting."""
    return isinstance(value, (torch.Tensor, np.ndarray)) or hasattr(type(value), "__ctype__")


def is_foreign(value: Any) -> bool:
    """Objects of libraries whose insides are not the user's settings."""
    module = type(value).__module__ or ""
    root = module.partition(".")[0]
    if root in ("warp", "numpy", "kscheduler", "threading", "logging", "inspect", "dataclasses"):
        return True
    return root == "torch" and not is_torch_object(value)
