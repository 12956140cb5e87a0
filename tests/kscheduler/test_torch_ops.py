"""The dispatch mode: who is seen, when, and what is left behind."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.autograd.variable import Variable
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kscheduler.errors import WindowError
from kscheduler.intercept import torch_ops
from kscheduler.intercept.torch_ops import TorchInterceptor


class Recorder:
    """A sink that runs ops in place and remembers their names."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.fences: list[str] = []
        self.busy = True
        self.arm_inside: TorchInterceptor | None = None

    def torch_op(self, func, args, kwargs):
        self.seen.append(func.name())
        return func(*args, **kwargs)

    def wants_ops(self) -> bool:
        return self.busy

    def fence(self, reason: str) -> None:
        self.fences.append(reason)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def torch_state() -> tuple:
    """Everything that an interceptor changes."""
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        Variable._execution_engine,
        torch.inference_mode.__exit__,
        _python_dispatch._push_on_torch_dispatch_stack,
        _python_dispatch._pop_torch_dispatch_stack,
        torch._C._set_dispatch_mode,
        torch._C._unset_dispatch_mode,
    )


@pytest.fixture(autouse=True)
def untouched_torch():
    before = torch_state()
    yield
    assert torch_state() == before


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


def test_disarmed_ops_are_not_seen(sink):
    x = torch.ones(3)
    with TorchInterceptor(sink) as interceptor:
        assert not interceptor.armed
        x.add_(1)
        assert sink.seen == []
    assert x.tolist() == [2, 2, 2]


def test_armed_ops_are_seen_once_each(sink):
    x = torch.ones(3)
    with TorchInterceptor(sink) as interceptor:
        assert interceptor.arm()
        assert interceptor.armed
        y = (x + 1).reshape(3, 1).sum()
        torch.zeros(2)
    assert sink.seen == ["aten::add.Tensor", "aten::view", "aten::sum", "aten::zeros"]
    assert y == 6


def test_idle_sink_disarms_and_arm_arms_again(sink):
    x = torch.ones(3)
    with TorchInterceptor(sink) as interceptor:
        for _ in range(3):
            sink.busy, sink.seen = True, []
            interceptor.arm()
            x + 1
            x - 1
            assert len(sink.seen) == 2
            sink.busy = False
            x + 1
            assert not interceptor.armed
            x + 1
            assert len(sink.seen) == 2


def test_disarm_by_the_owner(sink):
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        interceptor.disarm()
        torch.ones(2)
        interceptor.arm()
        torch.zeros(2)
    assert sink.seen == ["aten::zeros"]


@pytest.mark.parametrize("arm", [False, True])
@pytest.mark.parametrize("place", ["program", "op", "sink"])
def test_everything_is_put_back_when_the_body_raises(sink, arm, place):
    before = torch_state()

    def fail(func, args, kwargs):
        raise KeyError("from the sink")

    if place == "sink":
        sink.torch_op = fail
    error = {"program": ZeroDivisionError, "op": RuntimeError, "sink": (KeyError, RuntimeError)}

    def body() -> None:
        with TorchInterceptor(sink) as interceptor:
            if arm:
                interceptor.arm()
            if place == "program":
                raise ZeroDivisionError
            torch.ones(2).matmul(torch.ones(3))

    with pytest.raises(error[place]):
        body()
    assert torch_state() == before


def test_an_op_that_raises_leaves_the_interceptor_working(sink):
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.ones(1).expand(4).add_(1)
        sink.seen.clear()
        torch.ones(2)
    assert sink.seen == ["aten::ones"]


def test_other_threads_are_neither_seen_nor_changed(sink):
    other: list = []

    def work() -> None:
        before = torch_state()[:3]
        other.append(torch.ones(3).add_(1).tolist())
        other.append(torch_state()[:3] == before and before[0] == 0)

    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert other == [[2, 2, 2], True]
    assert sink.seen == []


def test_two_threads_each_with_its_own(sink):
    # The first to open is the first to close: neither may restore what the other still needs.
    second_open, first_closed = threading.Event(), threading.Event()
    other = Recorder()

    def work() -> None:
        with TorchInterceptor(other) as interceptor:
            interceptor.arm()
            second_open.set()
            first_closed.wait(10)
            torch.ones(2).mul_(2)

    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        thread = threading.Thread(target=work)
        thread.start()
        assert second_open.wait(10)
        torch.zeros(1)
    first_closed.set()
    thread.join()
    assert sink.seen == ["aten::zeros"]
    assert other.seen == ["aten::ones", "aten::mul_.Tensor"]


def test_a_second_interceptor_of_the_same_thread_is_refused(sink):
    with TorchInterceptor(sink), pytest.raises(WindowError), TorchInterceptor(Recorder()):
        pass


@pytest.mark.parametrize("arm", [False, True])
def test_modes_pushed_inside_see_what_they_would_have_seen(sink, arm):
    x = torch.ones(3)
    sink.busy = arm
    with TorchInterceptor(sink) as interceptor:
        if arm:
            interceptor.arm()
        with Counting() as mode:
            x + 1
            x * 2
        x - 1
    assert mode.seen == ["aten::add.Tensor", "aten::mul.Tensor"]
    assert sink.seen == (["aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor"] * arm)


def test_modes_pushed_before_see_what_they_would_have_seen(sink):
    x = torch.ones(3)
    with Counting() as mode:
        keys = torch_state()[:3]
        with TorchInterceptor(sink) as interceptor:
            interceptor.arm()
            x + 1
            interceptor.disarm()
            x * 2
        assert torch_state()[:3] == keys
        x - 1
    assert mode.seen == ["aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor"]
    assert sink.seen == ["aten::add.Tensor", "aten::mul.Tensor"]


@pytest.mark.parametrize("arm", [False, True])
def test_fake_tensor_mode_inside(sink, arm):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    sink.busy = arm
    with TorchInterceptor(sink) as interceptor:
        if arm:
            interceptor.arm()
        with FakeTensorMode():
            fake = torch.ones(2, 3) @ torch.ones(3, 4)
        real = torch.ones(2)
    assert isinstance(fake, FakeTensor)
    assert fake.shape == (2, 4)
    assert type(real) is torch.Tensor


@pytest.mark.parametrize("arm", [False, True])
def test_printing_disables_modes_behind_a_fence(sink, arm):
    x = torch.ones(2)
    sink.busy = arm
    with TorchInterceptor(sink) as interceptor:
        if arm:
            interceptor.arm()
        assert str(x) == "tensor([1., 1.])"
        sink.busy = True
        interceptor.arm()
        x + 1
    assert sink.seen == ["aten::add.Tensor"]
    assert sink.fences == ["modes_disabled"] * arm


@pytest.mark.parametrize("missing", ["_set_included", "_is_included"])
def test_without_the_private_functions_it_stays_armed(sink, monkeypatch, missing):
    monkeypatch.setattr(torch_ops, missing, None)
    with TorchInterceptor(sink) as interceptor:
        interceptor.disarm()
        assert interceptor.armed
        torch.ones(2)
        sink.busy = False
        torch.zeros(2)
        sink.busy = True
        with Counting() as mode:
            torch.ones(3)
    assert sink.seen == ["aten::ones", "aten::ones"]
    assert mode.seen == ["aten::ones"]


# --- autograd ------------------------------------------------------------------------------------


def test_backward_is_a_fence_and_its_ops_are_seen(sink):
    x = torch.ones(3, requires_grad=True)
    with TorchInterceptor(sink) as interceptor:
        y = (x * x).sum()
        interceptor.arm()
        y.backward()
        assert sink.fences == ["autograd"]
        assert "aten::mul.Tensor" in sink.seen
        sink.seen.clear()
        x.detach() + 1
        assert sink.seen == ["aten::detach", "aten::add.Tensor"]
    assert x.grad.tolist() == [2, 2, 2]


def test_a_task_put_in_flight_by_a_backward_node_is_watched(sink):
    # The engine restores this thread's dispatch keys before every node.
    sink.busy = False

    class Launching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            sink.busy = True
            interceptor.arm()
            return grad * 3

    x = torch.ones(3, requires_grad=True)
    with TorchInterceptor(sink) as interceptor:
        y = Launching.apply((x * 5).exp()).sum()
        y.backward()
        assert "aten::mul.Tensor" in sink.seen[1:]  # the node of x * 5, after the launching one
        sink.seen.clear()
        torch.ones(2)
        assert sink.seen == ["aten::ones"]
    assert sink.fences == []


def test_grad_modes_inside_ops_are_those_of_the_program(sink):
    states: list[tuple] = []

    def note(func, args, kwargs):
        states.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return func(*args, **kwargs)

    sink.torch_op = note
    x = torch.ones(2, requires_grad=True)
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        assert (x * 2).requires_grad
        with torch.no_grad():
            assert not (x * 2).requires_grad
        with torch.inference_mode():
            assert (x * 2).is_inference()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    assert states[:3] == [(True, False), (False, False), (False, True)]


def test_vmap_inside(sink):
    x = torch.arange(6.0).view(2, 3)
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        y = torch.func.vmap(lambda row: row.sin() + 1)(x)
        torch.zeros(1)
    assert torch.equal(y, x.sin() + 1)
    assert "aten::sin" in sink.seen
    assert sink.seen[-1] == "aten::zeros"


def test_ops_of_tensor_subclasses_are_fences(sink):
    class Doubled(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            inner = [arg.inner * 2 if isinstance(arg, cls) else arg for arg in args]
            return func(*inner, **(kwargs or {}))

    x = torch.ones(3)
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        assert Doubled(x).view(3).tolist() == [2, 2, 2]
        assert (Doubled(x) + 1).tolist() == [3, 3, 3]
        torch.zeros(1)
    assert set(sink.fences) == {"tensor_subclass"}
    assert sink.seen[-1] == "aten::zeros"


# --- ops that run Python -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launching_op():
    """An op whose kernel puts a task in flight and then runs another torch op."""
    calls: list = []
    with torch.library._scoped_library("kscheduler_test", "FRAGMENT") as library:
        library.define("launch(Tensor x) -> Tensor")

        def kernel(x):
            for call in calls:
                call()
            return x + 1

        library.impl("launch", kernel, "CPU")
        yield torch.ops.kscheduler_test.launch.default, calls


@pytest.mark.parametrize("busy", [False, True])
def test_ops_inside_an_op_that_arms_are_seen(sink, launching_op, busy):
    op, calls = launching_op
    sink.busy = busy

    def launch() -> None:
        sink.busy = True
        assert interceptor.arm()

    calls[:] = [launch]
    with TorchInterceptor(sink) as interceptor:
        if busy:
            interceptor.arm()
        y = op(torch.ones(2))
        torch.zeros(1)
    calls.clear()
    assert y.tolist() == [2, 2]
    expected = ["aten::add.Tensor", "aten::zeros"]
    assert sink.seen == ["aten::ones", "kscheduler_test::launch", *expected] if busy else expected


def test_nested_launching_ops(sink, launching_op):
    op, calls = launching_op
    depth = 0

    def launch() -> None:
        nonlocal depth
        interceptor.arm()
        if depth < 3:
            depth += 1
            op(torch.ones(2))

    calls[:] = [launch]
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        op(torch.ones(2))
        torch.zeros(1)
    calls.clear()
    assert sink.seen.count("kscheduler_test::launch") == 4
    assert sink.seen.count("aten::add.Tensor") == 4
    assert sink.seen[-1] == "aten::zeros"


def test_below_a_users_mode_arm_inside_an_op_says_no(sink, launching_op):
    op, calls = launching_op
    answers: list[bool] = []
    calls[:] = [lambda: answers.append(interceptor.arm())]
    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        with Counting():
            op(torch.ones(2))
    calls.clear()
    assert answers == [False]
    assert sink.fences == ["op_below_mode"]


def test_higher_order_ops_pass(sink):
    from torch._higher_order_ops.associative_scan import associative_scan

    with TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        y = associative_scan(lambda a, b: a + b, torch.ones(4), 0, combine_mode="generic")
        assert interceptor.armed
    assert y.tolist() == [1, 2, 3, 4]


def test_closed_it_neither_arms_nor_disarms(sink):
    interceptor = TorchInterceptor(sink)
    assert not interceptor.arm()
    interceptor.disarm()
    with interceptor:
        pass
    assert not interceptor.arm()
    assert not interceptor.armed


@pytest.mark.parametrize("how", ["block", "decorator", "nested"])
def test_a_task_put_in_flight_in_inference_mode_is_watched_after_it(sink, how):
    # Leaving inference mode puts back the dispatch keys that were there when it was entered.
    sink.busy = False

    def launch() -> None:
        sink.busy = True
        interceptor.arm()

    with TorchInterceptor(sink) as interceptor:
        if how == "decorator":
            torch.inference_mode()(launch)()
        else:
            with torch.inference_mode(), torch.inference_mode(how != "nested"):
                launch()
        torch.zeros(1)
    assert sink.seen == ["aten::zeros"]


def test_inside_a_transform_arm_says_no(sink):
    answers: list[bool] = []

    def row(x):
        answers.append(interceptor.arm())
        return x + 1

    with TorchInterceptor(sink) as interceptor:
        torch.func.vmap(row)(torch.ones(2, 2))
        assert interceptor.arm()
    assert answers == [False]
