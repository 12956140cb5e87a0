"""Typed errors of the environment: each names the field and says what would be right."""

from __future__ import annotations

__all__ = [
    "ActionError",
    "CapacityError",
    "ClipError",
    "ConfigError",
    "FighterError",
    "FingerprintError",
    "TeacherError",
]


class FighterError(Exception):
    """Base of every error that fighter_env raises by itself."""


class ConfigError(FighterError, ValueError):
    """A setting has a value that cannot be used."""


class ActionError(FighterError, ValueError):
    """An action has the wrong shape, dtype or device."""


class ClipError(FighterError, ValueError):
    """A motion clip is unknown, broken, or misses joints."""


class TeacherError(FighterError, ValueError):
    """A teacher file does not fit this body."""


class FingerprintError(FighterError, RuntimeError):
    """A saved state belongs to another body, layout, clip set or configuration."""


class CapacityError(FighterError, RuntimeError):
    """Contacts or constraints did not fit (strict mode only)."""
