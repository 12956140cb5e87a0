"""Attributes replaced while somebody needs it, and put back by the last one who did.

Windows of several threads may open and close in any order, so each cannot restore what it found: a
`PatchSet` counts its users. The replacements themselves have to ask whose thread they run on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["ABSENT", "PatchSet"]

#: As a value: take the attribute away.
ABSENT = object()


class PatchSet:
    """A set of attribute replacements with a count of users.

    Args:
        replacements: Called when the first user comes; gives (holder, attribute, value) of each.
    """

    def __init__(self, replacements: Callable[[], Iterable[tuple[Any, str, Any]]]) -> None:
        self._replacements = replacements
        self._lock = threading.Lock()
        self._users = 0
        self._planned: list[tuple[Any, str, Any, Any]] = []  # holder, name, value, value before
        self._done = 0

    def install(self) -> None:
        """Replace the attributes, or count one more user."""
        with self._lock:
            if self._users == 0:
                try:
                    self._replace()
                except BaseException:
                    self._put_back()
                    raise
            self._users += 1

    def uninstall(self) -> None:
        """Count one user less; the last one puts everything back."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._put_back()

    def _replace(self) -> None:
        # Making replacements is most of the work; the last ones serve while what they replace is
        # what is there.
        if not all(vars(h).get(n, ABSENT) is before for h, n, _, before in self._planned):
            self._planned = []
        if not self._planned:
            self._planned = [
                (holder, name, value, vars(holder).get(name, ABSENT))
                for holder, name, value in self._replacements()
            ]
        for holder, name, value, _ in self._planned:
            _assign(holder, name, value)
            self._done += 1

    def _put_back(self) -> None:
        while self._done:
            self._done -= 1
            holder, name, _, before = self._planned[self._done]
            _assign(holder, name, before)


def _assign(holder: Any, name: str, value: Any) -> None:
    if value is not ABSENT:
        setattr(holder, name, value)
    elif name in vars(holder):
        delattr(holder, name)
