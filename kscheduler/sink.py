"""What all sinks share: how they are entered, and loops and branches that run as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kscheduler.intercept.current import entered
from kscheduler.intercept.torch_ops import TorchInterceptor
from kscheduler.intercept.warp_patches import condition_holds

__all__ = ["TaskSink"]


class TaskSink:
    """Base of the sinks; by itself it has nothing in flight.

    Attributes:
        owners: Objects that own the memory of the call being made; None if nobody is known to.
        torch: Sees the torch ops of the thread while the sink is active.
    """

    def __init__(self) -> None:
        self.owners: tuple[Any, ...] | None = None
        self.torch = TorchInterceptor(self)  # type: ignore[arg-type]

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Sends this thread's launches, ops and frees here within the block."""
        with entered(self), self.torch:  # type: ignore[arg-type]
            self.arm()
            try:
                yield
            finally:
                self.disarm()

    def arm(self) -> None:
        """Sees torch ops from now on."""
        self.torch.arm()

    def disarm(self) -> None:
        """Called when the sink is left."""

    def wants_ops(self) -> bool:
        """Whether torch ops are still of interest."""
        return True

    def allocated(self, pointer: int, size: int) -> None:
        """The program has got a block of so many bytes."""

    def fence(self, reason: str) -> None:
        """Finishes everything in flight."""

    def finish_errors(self, name: str = "") -> None:
        """Raises the error of a task that failed; a call that ran at once has raised already."""

    def loop(self, condition: Any, body: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        """Runs `wp.capture_while` as written."""
        while self.test(condition):
            body(**kwargs)

    def branch(
        self,
        condition: Any,
        on_true: Callable[..., Any] | None,
        on_false: Callable[..., Any] | None,
        kwargs: dict[str, Any],
    ) -> None:
        """Runs `wp.capture_if` as written."""
        side = on_true if self.test(condition) else on_false
        if side is not None:
            side(**kwargs)

    def test(self, condition: Any) -> bool:
        """The value of a loop's or branch's condition."""
        return condition_holds(condition)
