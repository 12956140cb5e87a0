"""What intercepting torch costs: one op untouched, disarmed and armed, its accesses, and a window.

pytest bench/micro/test_torch_interception.py --benchmark-only
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kscheduler.intercept.host_reads import HostReads
from kscheduler.intercept.torch_access import op_accesses
from kscheduler.intercept.torch_ops import TorchInterceptor

ROUNDS = {"rounds": 30, "iterations": 2000, "warmup_rounds": 2}
aten = torch.ops.aten


class Idle:
    """A sink with nothing in flight."""

    def torch_op(self, func, args, kwargs):
        return func(*args, **kwargs)

    def wants_ops(self) -> bool:
        return False

    def fence(self, reason: str) -> None:
        pass

    def host_read(self, access, what, exported=False) -> None:
        pass


class Busy(Idle):
    """A sink that looks at what each op touches, as a window does."""

    def torch_op(self, func, args, kwargs):
        op_accesses(func, args, kwargs)
        return func(*args, **kwargs)

    def wants_ops(self) -> bool:
        return True


class Empty(TorchDispatchMode):
    """The least that a dispatch mode can do."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def one_op(x=torch.ones(64)):  # noqa: B008
    return x + 1


def test_op_untouched(benchmark):
    benchmark.pedantic(one_op, **ROUNDS)


def test_op_in_an_empty_mode(benchmark):
    with Empty():
        benchmark.pedantic(one_op, **ROUNDS)


def test_op_disarmed(benchmark):
    with TorchInterceptor(Idle()) as interceptor:
        benchmark.pedantic(one_op, **ROUNDS)
        assert not interceptor.armed


@pytest.mark.parametrize("sink", ["bare", "accesses"])
def test_op_armed(benchmark, sink):
    receiver = Busy()
    if sink == "bare":
        receiver.torch_op = lambda func, args, kwargs: func(*args, **kwargs)
    with TorchInterceptor(receiver) as interceptor:
        interceptor.arm()
        benchmark.pedantic(one_op, **ROUNDS)
        assert interceptor.armed


def test_arm(benchmark):
    with TorchInterceptor(Busy()) as interceptor:
        benchmark.pedantic(interceptor.arm, **ROUNDS)


ARGUMENTS = {
    "view": (aten.view.default, (torch.ones(64), [8, 8])),
    "add_scalar": (aten.add.Tensor, (torch.ones(64), 1)),
    "add": (aten.add.Tensor, (torch.ones(64), torch.ones(64))),
    "add_columns": (aten.add.Tensor, (torch.ones(8, 8)[:, 1:3], 1)),
    "where": (aten.where.self, (torch.ones(64) > 0, torch.ones(64), torch.ones(64))),
    "cat": (aten.cat.default, ([torch.ones(64)] * 4, 0)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_op_accesses(benchmark, name):
    func, args = ARGUMENTS[name]
    benchmark.pedantic(op_accesses, (func, args, {}), **ROUNDS)


@pytest.mark.parametrize("parts", ["interceptor", "interceptor_and_host_reads"])
def test_enter_and_exit(benchmark, parts):
    sink = Idle()

    def enter_and_exit():
        with ExitStack() as stack:
            if parts != "interceptor":
                stack.enter_context(HostReads(sink))
            stack.enter_context(TorchInterceptor(sink))

    benchmark.pedantic(enter_and_exit, rounds=30, iterations=200, warmup_rounds=2)
