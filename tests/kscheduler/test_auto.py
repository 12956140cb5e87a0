"""`auto`: every call is a real one, the fastest strategy stays, and the report says why."""

import kernels_runtime as kernels
import pytest
import torch
import warp as wp

import kscheduler as ks
from kscheduler import strategies

N = 16


def launch(kernel, inputs):
    wp.launch(kernel, dim=N, inputs=inputs, device="cpu")


def auto(function):
    return ks.window(streams=2, strategy="auto")(function)


def test_every_call_counts_once():
    x = wp.zeros(N, dtype=float, device="cpu")

    def function(value):
        for _ in range(3):
            launch(kernels.add, [x, value])

    step = auto(function)
    for count in range(1, 31):
        step(1.0)
        assert (x.numpy() == 3.0 * count).all()
    assert step._call.choice in ("serial", "stream", "graph")
    assert f"keeps {step._call.choice}" in str(step.report)


@pytest.mark.parametrize("fastest", ["serial", "stream", "graph"])
def test_the_fastest_is_kept(monkeypatch, fastest):
    """A clock that runs three times slower for two of the three."""
    now = [0.0]
    monkeypatch.setattr(strategies.time, "perf_counter", lambda: now[0])
    x = wp.zeros(N, dtype=float, device="cpu")
    step = auto(lambda: launch(kernels.add, [x, 1.0]))
    for name, candidate in list(step._call._candidates.items()):

        def timed(*args, _run=candidate, _name=name):
            now[0] += 1.0 if _name == fastest else 3.0
            return _run(*args)

        timed.refusal, timed.report = None, candidate.report
        step._call._candidates[name] = timed
    for _ in range(20):
        step()
    assert step._call.choice == fastest
    assert (x.numpy() == 20.0).all()


def test_a_function_that_cannot_be_recorded_leaves_graph_out():
    x = torch.zeros(3)

    def function():
        x.add_(1.0)
        return x.sum().item()

    step = auto(function)
    assert [step() for _ in range(20)] == [3.0 * count for count in range(1, 21)]
    assert step._call.choice in ("serial", "stream")
    assert "graph was left out" in str(step.report)


def test_changed_host_values_are_used_in_every_phase():
    class Holder:
        gain = 1.0

    holder = Holder()
    x = torch.ones(2)
    step = auto(lambda: x * holder.gain)
    for value in range(40):
        holder.gain = float(value // 4)
        assert step().tolist() == [holder.gain] * 2


def test_loops_are_run_in_every_phase():
    x, going = wp.zeros(1, dtype=float, device="cpu"), wp.zeros(1, dtype=int, device="cpu")

    def function():
        wp.launch(kernels.restart, dim=1, inputs=[x, 2.0, going], device="cpu")
        wp.capture_while(
            going,
            lambda: wp.launch(kernels.halve_until, dim=1, inputs=[x, 2.0, going], device="cpu"),
        )

    step = auto(function)
    for count in range(24):
        x.fill_(float(2 ** (count % 5)))
        step()
        assert x.numpy()[0] == min(2.0, float(2 ** (count % 5)))


def test_as_a_context_manager_it_is_a_stream():
    x = wp.zeros(N, dtype=float, device="cpu")
    with ks.window(streams=2, strategy="auto") as window:
        launch(kernels.add, [x, 1.0])
    assert window.report.tasks == 1
    with ks.window(streams=1, strategy="auto") as window:
        launch(kernels.add, [x, 1.0])
    assert window.report.strategy == "serial"
    assert (x.numpy() == 2.0).all()
