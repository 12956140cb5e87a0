"""Errors of the benchmark's command line: each says what was asked for and what exists."""

from __future__ import annotations

__all__ = ["Error", "UnknownNameError", "UnusableOptionError"]


class Error(Exception):
    """Base of every error that `bench` raises by itself; the command line exits with 2."""


class UnknownNameError(Error):
    """A case, strategy or task that does not exist."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"there is no {kind} '{name}'; known: {', '.join(known)}")


class UnusableOptionError(Error):
    """An option has a value that cannot be used."""
