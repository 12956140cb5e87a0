"""Operations with operations inside: loops, branches, nested windows, and errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import warp as wp

from bench.fuzz import kernels
from bench.fuzz.machine import Machine, Op, execute, operation

__all__ = ["Planned"]


class Planned(ValueError):
    """An error that a program raises on purpose."""


@operation(weight=2, bodies=1)
def nested_window(m: Machine, bodies: Sequence[Sequence[Op]], size: int, streams: int) -> None:
    """A window inside the window."""
    with m.window(1 + size % 16, 1 + streams % 4):
        execute(m, bodies[0])


@operation(weight=2, bodies=1)
def caught_error(m: Machine, bodies: Sequence[Sequence[Op]], kind: int) -> None:
    """An error raised and caught inside the window."""
    try:
        execute(m, bodies[0])
        _fail(m, kind)
    except (RuntimeError, Planned) as error:
        m.log.append(type(error).__name__ + str(error)[:40])


@operation(weight=1, bodies=1)
def error_in_nested_window(m: Machine, bodies: Sequence[Sequence[Op]], size: int) -> None:
    """An error that leaves a nested window and is caught outside of it."""
    try:
        with m.window(1 + size % 16, 2):
            execute(m, bodies[0])
            raise Planned("inside")
    except Planned as error:
        m.log.append(str(error))


@operation(weight=1)
def uncaught_error(m: Machine, kind: int) -> None:
    """An error that ends the program; rare."""
    if kind % 3 == 0:
        _fail(m, kind // 3)


@operation(weight=2, bodies=1)
def native_loop(
    m: Machine, bodies: Sequence[Sequence[Op]], counter: int, a: int, most: int
) -> None:
    """wp.capture_while, running a number of times that depends on data."""
    condition = m.counter(counter)
    start = [condition, m.array(a), most % 4]
    wp.launch(kernels.start_counter, dim=1, inputs=start, device="cpu")

    def body() -> None:
        execute(m, bodies[0])
        wp.launch(kernels.countdown, dim=1, inputs=[condition], device="cpu")

    wp.capture_while(condition, body)


@operation(weight=2, bodies=2)
def native_branch(m: Machine, bodies: Sequence[Sequence[Op]], counter: int, a: int) -> None:
    """wp.capture_if on data."""
    condition = m.counter(counter)
    start = [condition, m.array(a), 1]
    wp.launch(kernels.start_counter, dim=1, inputs=start, device="cpu")

    def on_true() -> None:
        execute(m, bodies[0])

    def on_false() -> None:
        execute(m, bodies[1])

    wp.capture_if(condition, on_true, on_false)


@operation(weight=2, bodies=2, replay="no")
def host_branch(m: Machine, bodies: Sequence[Sequence[Op]], a: int) -> None:
    """A Python branch on a value that the host reads."""
    execute(m, bodies[0] if m.vector(a).sum() > 0 else bodies[1])


@operation(weight=1, replay="maybe")
def flush_denormals(m: Machine, flag: int) -> None:
    """Changes how the processor treats very small numbers."""
    torch.set_flush_denormal(bool(flag % 2))


@operation(weight=1)
def fence(m: Machine) -> None:
    """Waits for everything."""
    wp.synchronize()


@operation(weight=1, replay="no")
def backward(m: Machine, target: int, a: int) -> None:
    """Gradients."""
    x = m.vector(a).detach().clone().requires_grad_(True)
    with torch.enable_grad():
        (x * x).sum().backward()
    m.set_vector(target, x.grad * 0.25)


def _fail(m: Machine, kind: int) -> None:
    if kind % 3 == 0:
        raise Planned("planned")
    if kind % 3 == 1:
        torch.ones(3).add_(torch.ones(4))
    torch.ones(1).expand(4).add_(1.0)
