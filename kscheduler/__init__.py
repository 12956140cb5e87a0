"""Runs the independent kernels of an unchanged PyTorch and NVIDIA Warp program side by side.

    import kscheduler as ks

    with ks.window() as w:            # any code inside, unchanged
        env.step(action)
    print(w.report)

    step = ks.window(strategy="graph")(env.step)   # record once, then replay

A window changes timing only: values, aliasing, random states and exceptions are those of program
order. Importing this package patches nothing and starts no thread.
"""

from kscheduler.audit import audit
from kscheduler.errors import (
    Error,
    InvalidOption,
    MixedDevices,
    NotReplayable,
    StaleArgument,
    UndeclaredAccess,
    UnsupportedVersion,
    WindowError,
)
from kscheduler.opaque import kernel
from kscheduler.report import Report
from kscheduler.verify import verify
from kscheduler.window import window

__all__ = [
    "Error",
    "InvalidOption",
    "MixedDevices",
    "NotReplayable",
    "Report",
    "StaleArgument",
    "UndeclaredAccess",
    "UnsupportedVersion",
    "WindowError",
    "audit",
    "kernel",
    "verify",
    "window",
]
__version__ = "0.1.0"
