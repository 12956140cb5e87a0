"""Compiled callables inside an interceptor: they run compiled, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch._dynamo
from torch._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode

from kscheduler.intercept.compiled import CompiledCalls
from kscheduler.intercept.host_reads import HostReads
from kscheduler.intercept.torch_ops import TorchInterceptor


class Recorder:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.busy = True

    def torch_op(self, func, args, kwargs):
        self.events.append(func.name())
        return func(*args, **kwargs)

    def wants_ops(self) -> bool:
        return self.busy

    def fence(self, reason: str) -> None:
        self.events.append(f"fence {reason}")

    def host_read(self, access, what, exported=False) -> None:
        self.events.append(f"read {what}")

    def compiled_call(self, name: str) -> None:
        self.events.append(f"compiled {name}")


graph_runs: list[int] = []


def counting_backend(graph, example_inputs):
    """A backend whose code tells that it ran."""

    def run(*args):
        graph_runs.append(len(args))
        return graph.forward(*args)

    return run


def torch_state() -> tuple:
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        eval_frame._is_skip_guard_eval_unsafe_stance,
        eval_frame._maybe_set_eval_frame,
        torch.compile,
        torch.Tensor.tolist,
    )


@pytest.fixture(autouse=True)
def untouched_torch():
    before = torch_state()
    graph_runs.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert torch_state() == before


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


def f(x):
    return x.sin() + 1


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_compiled_code_really_runs(sink, busy, warm):
    g = torch.compile(f, backend=counting_backend, dynamic=False)
    x = torch.ones(4)
    if warm:
        g(x)
        graph_runs.clear()
    sink.busy = busy
    interceptor = TorchInterceptor(sink)
    with HostReads(sink), CompiledCalls(sink, interceptor) as calls, interceptor:
        if busy:
            interceptor.arm()
        y = g(x)
        z = g(x)
        sink.busy = True
        interceptor.arm()
        x + 1
    assert graph_runs == [1, 1]
    assert torch.equal(y, f(x))
    assert torch.equal(z, y)
    assert sink.events == ["compiled f", "compiled f", "aten::add.Tensor"]
    assert calls.calls == {"f": 2}
    assert calls.compiled == {"f": 2}


def test_inductor_kernel_runs(sink):
    from torch._inductor.output_code import CompiledFxGraph

    g = torch.compile(f, dynamic=False)
    x = torch.arange(4.0)
    runs = []
    original = CompiledFxGraph.__call__

    def counted(self, inputs):
        runs.append(1)
        return original(self, inputs)

    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor) as calls, interceptor:
        interceptor.arm()
        CompiledFxGraph.__call__ = counted
        try:
            y = g(x)
        finally:
            CompiledFxGraph.__call__ = original
    assert runs == [1]
    assert calls.compiled == {"f": 1}
    torch.testing.assert_close(y, f(x))
    assert [event for event in sink.events if event.startswith("aten")] == []


def test_graph_breaks_run_unwatched_and_arm_says_no(sink):
    answers: list[bool] = []
    interceptor = TorchInterceptor(sink)

    @torch._dynamo.disable
    def launch():
        answers.append(interceptor.arm())

    def h(x):
        y = x + 1
        launch()
        return (y * 2).tolist()

    g = torch.compile(h, backend=counting_backend, dynamic=False)
    g(torch.ones(2))
    graphs_without_us = len(graph_runs)
    graph_runs.clear()
    answers.clear()
    with HostReads(sink), CompiledCalls(sink, interceptor) as calls, interceptor:
        interceptor.arm()
        assert g(torch.ones(2)) == [4, 4]
        torch.zeros(1)
    assert answers == [False]
    assert len(graph_runs) == graphs_without_us > 0
    assert calls.compiled == {h.__qualname__: 1}
    assert sink.events == ["aten::ones", f"compiled {h.__qualname__}", "aten::zeros"]


@pytest.mark.parametrize("arm", [False, True])
def test_an_exception_inside_puts_the_modes_back(sink, arm):
    def fail(x):
        raise KeyError("inside")

    g = torch.compile(fail, backend="eager", dynamic=False)
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor), interceptor:
        if arm:
            interceptor.arm()
        with pytest.raises(KeyError):
            g(torch.ones(1))
        interceptor.arm()
        sink.events.clear()
        torch.zeros(1)
    assert sink.events == ["aten::zeros"]


def test_a_refusing_sink_keeps_everything_in_place(sink):
    class RefusedError(Exception):
        pass

    def refuse(name):
        raise RefusedError

    sink.compiled_call = refuse
    g = torch.compile(f, backend="eager", dynamic=False)
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor), interceptor:
        interceptor.arm()
        with pytest.raises(RefusedError):
            g(torch.ones(1))
        sink.events.clear()
        torch.zeros(1)
    assert sink.events == ["aten::zeros"]


def test_forced_eager_is_reported_as_not_compiled(sink):
    g = torch.compile(f, backend=counting_backend, dynamic=False)
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor) as calls, interceptor:
        with torch.compiler.set_stance("force_eager"):
            g(torch.ones(3))
        g(torch.ones(3))
    assert calls.calls == {"f": 2}
    assert calls.compiled == {"f": 1}
    assert len(graph_runs) == 1


def test_fullgraph(sink):
    g = torch.compile(f, backend=counting_backend, dynamic=False, fullgraph=True)
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor) as calls, interceptor:
        g(torch.ones(3))
    assert calls.compiled == {"f": 1}


def test_nested_compiled_callables_count_as_one_region(sink):
    inner = torch.compile(f, backend=counting_backend, dynamic=False)

    @torch._dynamo.disable
    def call_inner(x):
        return inner(x)

    def outer(x):
        return call_inner(x * 2) + 1

    g = torch.compile(outer, backend=counting_backend, dynamic=False)
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor) as calls, interceptor:
        interceptor.arm()
        g(torch.ones(2))
        torch.zeros(1)
    assert [event for event in sink.events if "compiled" in event] == [
        f"compiled {outer.__qualname__}"
    ]
    assert set(calls.calls) == {outer.__qualname__, "f"}
    assert sink.events[-1] == "aten::zeros"


def test_modules_and_training_steps(sink):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    g = torch.compile(model, backend="aot_eager", dynamic=False)
    x = torch.ones(2, 3)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor) as calls, interceptor:
        interceptor.arm()
        g(x).sum().backward()
    assert sum(calls.compiled.values()) >= 1
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_a_users_mode_keeps_the_callable_eager_as_without_us(sink):
    class Mode(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.name())
            return func(*args, **(kwargs or {}))

    g = torch.compile(f, backend=counting_backend, dynamic=False)
    with Mode() as alone:
        g(torch.ones(2))
    interceptor = TorchInterceptor(sink)
    with CompiledCalls(sink, interceptor), interceptor:
        interceptor.arm()
        with Mode() as inside:
            g(torch.ones(2))
    assert inside.seen == alone.seen


def test_first_compile_inside_imports_dynamo_and_is_hooked():
    # A fresh process, for only there Dynamo is not imported yet.
    program = """
import sys, torch
from kscheduler.intercept.compiled import CompiledCalls
from kscheduler.intercept.torch_ops import TorchInterceptor
class Sink:
    def torch_op(self, func, args, kwargs): return func(*args, **kwargs)
    def wants_ops(self): return True
    def fence(self, reason): pass
    def compiled_call(self, name): print("called", name)
sink, before = Sink(), torch.compile
interceptor = TorchInterceptor(sink)
assert "torch._dynamo.eval_frame" not in sys.modules
with CompiledCalls(sink, interceptor) as calls, interceptor:
    interceptor.arm()
    g = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    g(torch.ones(2))
assert torch.compile is before
print(dict(calls.compiled))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["called <lambda>", "{'<lambda>': 1}"]
