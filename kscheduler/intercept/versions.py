"""Versions of packages whose internals kscheduler relies on.

A package is checked where its internals are first needed, so that importing kscheduler needs none.
"""

from __future__ import annotations

import re

import warp

from kscheduler.errors import UnsupportedVersion

__all__ = ["WARP_RELEASE", "require_warp"]

WARP_RELEASE = (1, 19)


def require_warp() -> str:
    """The installed Warp's version.

    Returns:
        The version, such as ``"1.19.0"``.

    Raises:
        UnsupportedVersion: Warp is not a 1.19 release; the message says what to install.
    """
    version = str(warp.__version__)
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) != WARP_RELEASE:
        raise UnsupportedVersion(
            f"Warp {version} is installed, but this release of kscheduler knows the internals of "
            'Warp 1.19 only. Install it with: pip install "warp-lang~=1.19.0"'
        )
    return version
