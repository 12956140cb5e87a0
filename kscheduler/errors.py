"""Typed errors: each says which task and argument is meant, which bytes, and what to do next."""

from __future__ import annotations

__all__ = [
    "Error",
    "InvalidOption",
    "MixedDevices",
    "NotReplayable",
    "StaleArgument",
    "UndeclaredAccess",
    "UnsupportedVersion",
    "WindowError",
]


class Error(Exception):
    """Base of every error that kscheduler raises by itself."""


class InvalidOption(Error, ValueError):
    """An option of `window`, `kernel`, `audit` or `verify` has a value that cannot be used."""


class WindowError(Error, RuntimeError):
    """A window was used against its rules: entered twice, from another thread, or across a fork."""


class UnsupportedVersion(Error, RuntimeError):
    """An installed package is of a version whose internals this release does not know."""


class MixedDevices(Error, RuntimeError):
    """One task touches memory of more than one device."""


class NotReplayable(Error, RuntimeError):
    """The recorded function does something that a replay could not repeat, such as a host read.

    It is raised while the function runs, or after: the call has run up to there and its effects
    stay. Run it again only if that is right, for example after putting the state back.
    """


class StaleArgument(Error, RuntimeError):
    """A replay was asked to run on a pointer or a host value that is no longer the recorded one."""


class UndeclaredAccess(Error, RuntimeError):
    """`audit` saw a task write bytes that its declaration does not contain."""
