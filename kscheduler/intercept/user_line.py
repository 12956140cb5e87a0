"""Finds the line of the user's program that an intercepted launch came from."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

__all__ = ["is_library", "user_line"]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARIES = tuple(os.sep + name + os.sep for name in ("torch", "warp", "numpy"))


def is_library(filename: str) -> bool:
    """Whether code of this file is ours, torch's, Warp's or the interpreter's."""
    if filename.startswith((_HERE, "<frozen")):
        return True
    if "site-packages" in filename:
        return any(part in filename for part in _LIBRARIES)
    return filename.startswith(_STANDARD)


def user_line(frame: FrameType | None = None) -> str:
    """``"file.py:12 in name"`` of the innermost frame that is the user's, or ""."""
    frame = frame or sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
