"""The registry of hazard tests: each says what must be switched off for it to fail.

A test of a race that passes without what prevents the race tests nothing. `hazard` registers a test
with its switch, by default the tracker; `test_hazards_fail_without_their_guard.py` runs each once
more with the switch thrown and expects it to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from latch import independent

__all__ = ["ROWS", "Row", "hazard", "replaced"]


@dataclass(frozen=True)
class Row:
    """One registered test.

    Attributes:
        name: The test's name, with its case.
        run: Runs it.
        switch: Takes away what the test is about; None where nothing can.
        why: Why nothing can, or why it is not the tracker.
        needs_gpu: Whether it runs on a CUDA device only.
    """

    name: str
    run: Callable[[], None]
    switch: Callable[[], AbstractContextManager[None]] | None
    why: str
    needs_gpu: bool


ROWS: list[Row] = []


def hazard(
    *,
    cases: dict[str, Any] | None = None,
    switch: Callable[[], AbstractContextManager[None]] | None = independent,
    why: str = "",
    needs_gpu: bool = False,
) -> Callable[[Callable[..., None]], Any]:
    """Register a test function.

    Args:
        cases: Values of the test's one argument, by name; None for a test without argument.
        switch: What makes the test fail.
        why: Why it is not the tracker, if it is not.
        needs_gpu: Whether it runs on a CUDA device only.
    """
    if (switch is None or switch is not independent) and not why:
        raise ValueError("say why switching the tracker off does not show this fault")

    def register(test: Callable[..., None]) -> Any:
        if cases is None:
            ROWS.append(Row(test.__name__, test, switch, why, needs_gpu))
            return pytest.mark.gpu(test) if needs_gpu else test
        for name, value in cases.items():
            run = _bound(test, value)
            ROWS.append(Row(f"{test.__name__}[{name}]", run, switch, why, needs_gpu))
        return pytest.mark.parametrize("case", list(cases.values()), ids=list(cases))(test)

    return register


def _bound(test: Callable[..., None], value: Any) -> Callable[[], None]:
    return lambda: test(value)


def replaced(holder: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[None]]:
    """A switch that replaces one attribute."""

    @contextmanager
    def switch() -> Iterator[None]:
        before = vars(holder)[name]
        setattr(holder, name, value)
        try:
            yield
        finally:
            setattr(holder, name, before)

    return switch
