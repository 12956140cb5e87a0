"""Guards: the host values that a recorded function has read, checked before each replay.

A replay does not run Python, so a number or an array that the function took from an object's
attribute, a global or a closure is fixed in the recording, with a guard.

Guarantee: a guarded attribute that has another value, or another object, makes the replay stale.
Guarding too much costs a new recording, never a wrong result.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import attrgetter, is_, itemgetter, not_
from typing import Any

import numpy as np
import torch

from kscheduler import _core
from kscheduler.spaces import (
    MANY_ITEMS,
    MISSING,
    Attributes,
    Contents,
)

__all__ = ["PLAIN_TYPES", "Guard", "Guards", "is_scalar", "same_scalar"]

_SCALARS = (int, float, complex, bool, str, bytes, type(None), np.generic, enum.Enum)
PLAIN_TYPES = frozenset((int, float, complex, bool, str, bytes, type(None)))  # always scalars
_PLAIN = (*_SCALARS, torch.dtype, torch.device)


def is_scalar(value: Any) -> bool:
    """Whether a value is compared by value: a number, a string, None, or a tuple of those."""
    if type(value) in PLAIN_TYPES:
        return True
    if isinstance(value, (tuple, frozenset)):
        return len(value) <= MANY_ITEMS and all(map(is_scalar, value))
    return isinstance(value, _PLAIN)


def same_scalar(a: Any, b: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same_scalar(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (float, complex, np.generic)):
        return repr(a) == repr(b)
    return bool(a == b)


@dataclass(frozen=True, slots=True)
class Guard:
    """One value that must still be what it was."""

    space: Any  # a dict, a list, a class's or an object's attributes
    key: Any
    value: Any
    owner: str

    def describe(self) -> str:
        """The guarded name, as the user knows it."""
        return f"{self.owner}[{self.key!r}]" if self.owner == "dict" else f"{self.owner}.{self.key}"

    def stale(self) -> str | None:
        """What has changed, in words; None if nothing has."""
        try:
            now = self.space[self.key]
        except (KeyError, IndexError):
            now = MISSING
        if now is self.value:
            return None
        if not is_scalar(self.value):
            return f"{self.describe()} is another object"
        if same_scalar(now, self.value):
            return None
        return f"{self.describe()} was {self.value!r} and is {now!r}"


_Group = tuple[Any, Callable[[Any], Any], list[Any], list[Guard]]


@dataclass(slots=True)
class Guards:
    """All guards of one recording."""

    scalars: list[Guard] = field(default_factory=list)
    objects: list[Guard] = field(default_factory=list)
    lengths: list[tuple[Any, int]] = field(default_factory=list)
    contents: list[Contents] = field(default_factory=list)
    _groups: list[_Group] = field(default_factory=list)  # of dicts
    _unversioned: list[_Group] = field(default_factory=list)
    _versions: Any = None  # of the dicts

    def stale(self) -> str | None:
        """What has changed since the recording, in words; None if nothing has."""
        for container, length in self.lengths:
            if len(container) != length:
                return f"a {type(container).__name__} had {length} items and has {len(container)}"
        for held in self.contents:
            if held.has_changed():
                return f"a {type(held.holder).__name__} has other contents"
        if self._versions is None:
            self._arrange()
        changed = self._versions.changed()
        for index in changed:
            found = _stale_in(self._groups[index])
            if found is not None:
                return found
        for group in self._unversioned:
            found = _stale_in(group)
            if found is not None:
                return found
        if changed:
            self._versions.accept()
        return None

    def _arrange(self) -> None:
        groups = _grouped([*self.objects, *self.scalars])
        spaces = [guards[0].space for _, _, _, guards in groups]
        has_version = list(map(_core.has_version, spaces))
        self._groups = list(compress(groups, has_version))
        self._unversioned = list(compress(groups, map(not_, has_version)))
        self._versions = _core.DictVersions(list(compress(spaces, has_version)))

    def without(self, names: set[tuple[int, str]]) -> None:
        """Drops the guards of attributes that are rebound on each call."""
        self.objects = [g for g in self.objects if (id(g.space), g.key) not in names]
        self._versions = None


def _stale_in(group: _Group) -> str | None:
    """What has changed in one space, in words; None if nothing has."""
    space, get, values, guards = group
    try:
        if all(map(is_, get(space), values)):
            return None
    except (KeyError, IndexError, AttributeError, ValueError):
        pass
    for guard in guards:
        found = guard.stale()
        if found is not None:
            return found
    return None


def _grouped(guards: list[Guard]) -> list[_Group]:
    """Guards by space: thousands are looked up in the time that a kernel takes."""
    spaces: dict[tuple[int, bool], list[Guard]] = {}
    for guard in guards:
        owner = 0 if _is_cell(guard.space) else id(guard.space)
        spaces.setdefault((owner, guard.value is MISSING), []).append(guard)
    return [_group(group) for group in spaces.values()]


def _group(guards: list[Guard]) -> _Group:
    space = guards[0].space
    names = [guard.key for guard in guards]
    if _is_cell(space):
        cells = [guard.space.holder for guard in guards]
        contents = partial(map, attrgetter("cell_contents"))
        return cells, contents, [guard.value for guard in guards], guards
    if guards[0].value is MISSING:
        return names, partial(map, space.__contains__), [False] * len(names), guards
    names.append(names[0])  # getters of one name return no tuple
    if isinstance(space, Attributes):
        return space.holder, attrgetter(*names), [guard.value for guard in guards], guards
    return space, itemgetter(*names), [guard.value for guard in guards], guards


def _is_cell(space: Any) -> bool:
    return isinstance(space, Attributes) and isinstance(space.holder, types.CellType)
