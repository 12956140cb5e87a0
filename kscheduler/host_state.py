"""Host randomness and clocks in a recorded function: a replay would not draw or look again.

torch's generators advance in a replay as they would eagerly, but nobody seeds them again: a
function that does is refused. Those of Python and NumPy do not advance, since no Python runs: a
function that draws from one while it is recorded is refused, and so is one that reads a clock.
Generators of the program's own are found by the collector of guards.
"""

from __future__ import annotations

import datetime
import inspect
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kscheduler import _core

__all__ = ["DRAWS", "HOST_GENERATORS", "HostState", "generator_state"]

DRAWS = (
    "the function draws from a random generator of Python or NumPy, which a replay would not "
    "advance; draw with torch (torch.rand, torch.Generator), or use strategy='stream'"
)

_CLOCKS = [
    time.time,
    time.time_ns,
    time.perf_counter,
    time.perf_counter_ns,
    time.monotonic,
    time.monotonic_ns,
    time.process_time,
    os.urandom,
    random.random,
    random.getrandbits,
]
_SEEDING_METHODS = ["manual_seed", "seed", "set_state", "set_offset", "graphsafe_set_state"]
_DATE_METHODS = ["now", "utcnow", "today"]
_SEEDING_FUNCTIONS = (
    torch.manual_seed,
    torch.seed,
    torch.set_rng_state,
    torch.random.fork_rng,
)
_SEEDING_CODES = {inspect.unwrap(f).__code__: f"torch.{f.__name__}" for f in _SEEDING_FUNCTIONS}
HOST_GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
)


class HostState:
    """Within the block, what the host draws or reads from a clock is told to `refuse`.

    Args:
        refuse: Takes one sentence; may raise.
    """

    def __init__(self, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._before: list[str] = []

    def __enter__(self) -> HostState:
        self._before = self._states()
        _core.set_watched_calls(
            _CLOCKS,
            self._on_call,
            list(_SEEDING_CODES),
            torch.Generator,
            [*_SEEDING_METHODS, *_DATE_METHODS],
            [datetime.datetime, datetime.date],
        )
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _core.set_watched_calls([], None)
        if error is None and self._states() != self._before:
            self._refuse(DRAWS)

    def _on_call(self, function: Any) -> None:
        if function in _SEEDING_CODES or isinstance(
            getattr(function, "__self__", None), torch.Generator
        ):
            name = _SEEDING_CODES.get(function) or f"torch.Generator.{function.__name__}"
            self._refuse(
                f"the function calls {name}(), which a replay would not call again; seed outside "
                "of it, or use strategy='stream'"
            )
            return
        name = f"{getattr(function, '__module__', None) or 'random'}.{function.__name__}"
        self._refuse(
            f"the function calls {name}(), which a replay would not call again; pass the value as "
            "a tensor, or use strategy='stream'"
        )

    def _states(self) -> list[str]:
        return [repr(random.getstate()), _numpy_state(np.random.get_state(legacy=False))]


def generator_state(generator: Any) -> str:
    """The state of a random generator of Python or NumPy, as text that can be compared."""
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if isinstance(generator, np.random.Generator):
        return _numpy_state(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _numpy_state(generator.get_state(legacy=False))
    return _numpy_state(generator.state)


def _numpy_state(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"{key}:{_numpy_state(item)};" for key, item in value.items())
    return value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)
