"""`audit` names undeclared writes; `verify` shrinks a missing edge to its pair of tasks."""

import ctypes

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp

import kscheduler as ks
from bench.cases import Program, find_case
from kscheduler.errors import UndeclaredAccess
from kscheduler.intercept import warp_launch

N = 16


def array(value=0.0):
    return wp.full(N, value, dtype=float, device="cpu")


def launch(kernel, inputs):
    wp.launch(kernel, dim=N, inputs=inputs, device="cpu")


def floats_at(x):
    return np.ctypeslib.as_array(ctypes.cast(x.ptr, ctypes.POINTER(ctypes.c_float)), (N,))


@ks.kernel(reads=("x",), writes=())
def says_it_reads(x, y):
    floats_at(x)[4:6] = 9.0  # bytes 16 to 24 of what it declares to read


@pytest.fixture
def false_declaration(monkeypatch):
    """Lets the launcher believe that `scale` does not write its last argument."""
    honest = warp_launch.launch_accesses

    def lie(kernel, access, params, adjoint):
        found = honest(kernel, access, params, adjoint)
        if kernel.key != "scale":
            return found
        target = params[3].data
        return tuple(a for a in found if a.start != target)

    monkeypatch.setattr(warp_launch, "launch_accesses", lie)


# --- audit ---------------------------------------------------------------------------------------


def test_audit_finds_nothing_in_a_clean_program():
    x, y, t = array(), array(), torch.zeros(N)

    def program():
        launch(kernels.fill, [x, 2.0])
        launch(kernels.scale, [x, 3.0, y])
        t.add_(wp.to_torch(y))
        y.zero_()
        return t.sum()

    report = ks.audit(program)
    assert report.undeclared == []
    assert report.unknown == []
    assert report.tasks >= 5
    assert report.result == 6.0 * N
    report.raise_if_any()


def test_audit_names_task_range_and_line_of_a_false_declaration():
    x, y = array(), array()

    def program():
        launch(kernels.fill, [x, 1.0])
        says_it_reads(x, y)

    report = ks.audit(program)
    (found,) = report.undeclared
    assert found.task == "says_it_reads"
    assert x.ptr + 16 <= found.start < found.end == x.ptr + 24
    line = program.__code__.co_firstlineno + 2
    assert f"test_audit_verify.py:{line} in program" in found.line
    assert f"..{x.ptr + 24:#x}" in str(report)
    with pytest.raises(UndeclaredAccess, match="says_it_reads"):
        report.raise_if_any()


def test_audit_finds_a_kernel_whose_write_is_not_declared(false_declaration):
    x, y, z = array(1.0), array(), array()

    def program():
        launch(kernels.add, [z, 1.0])
        launch(kernels.scale, [x, 2.0, y])

    (found,) = ks.audit(program).undeclared
    assert found.task == "scale"
    assert y.ptr <= found.start < found.end == y.ptr + 4 * N


def test_audit_runs_loops_and_frees_as_written():
    x, going = array(64.0), wp.ones(1, dtype=int, device="cpu")

    def program():
        wp.capture_while(
            going,
            lambda: wp.launch(kernels.halve_until, dim=1, inputs=[x, 2.0, going], device="cpu"),
        )
        temporary = array(1.0)
        launch(kernels.add, [temporary, 1.0])
        del temporary

    report = ks.audit(program)
    assert report.undeclared == []
    assert x.numpy()[0] == 2.0


# --- verify --------------------------------------------------------------------------------------


def test_verify_agrees_on_a_clean_program_and_leaves_one_run_behind():
    x, y, t = array(1.0), array(), torch.zeros(N)

    def program():
        launch(kernels.add, [x, 1.0])
        launch(kernels.scale, [x, 3.0, y])
        t.add_(wp.to_torch(y))
        return t * 2.0

    report = ks.verify(program)
    assert report.ok
    assert report.missing == []
    assert set(report.equal) == {
        f"{strategy}, {n} stream{'s' if n > 1 else ''}"
        for strategy in ("stream", "graph")
        for n in (1, 2, 4)
    }
    assert (x.numpy() == 2.0).all()
    assert (t == 6.0).all()
    assert "equal" in str(report)


def test_verify_restores_the_random_state():
    t = torch.zeros(4)

    def program():
        t.copy_(torch.rand(4))

    torch.manual_seed(5)
    program()
    expected, after = t.clone(), torch.rand(1)
    torch.manual_seed(5)
    assert ks.verify(program).ok
    assert torch.equal(t, expected)
    assert torch.equal(torch.rand(1), after)


def test_verify_shrinks_a_missing_edge_to_the_right_pair(false_declaration):
    x, y, z, w = array(), array(), array(), array()

    def program():
        launch(kernels.fill, [x, 2.0])
        launch(kernels.fill, [w, 5.0])
        launch(kernels.scale, [x, 3.0, y])  # task 2 hides that it writes y
        launch(kernels.add, [w, 1.0])
        launch(kernels.sum_of_two, [y, w, z])  # task 4 reads it
        launch(kernels.add, [x, 1.0])

    report = ks.verify(program)
    assert not report.ok
    (edge,) = report.missing
    assert edge.first.startswith("scale (task 2, ")
    assert edge.second.startswith("sum_of_two (task 4, ")
    assert z.ptr <= edge.start < edge.end <= z.ptr + 4 * N
    assert "must come after" in str(edge)


def test_verify_says_what_it_could_not_try():
    t = torch.ones(3)
    report = ks.verify(lambda: t.add_(t.sum().item()))
    (note,) = report.notes
    assert note.startswith(
        "left out: graph, 1 stream; graph, 2 streams; graph, 4 streams; other orders. "
    )
    assert report.equal["stream, 2 streams"]


def test_verify_refuses_what_is_decorated_already():
    class Program:
        @ks.window(strategy="graph")
        def step(self):
            pass

    for decorated in (ks.window()(lambda: None), Program().step):
        with pytest.raises(ks.InvalidOption, match="pass the undecorated function"):
            ks.verify(decorated)


# --- a real step ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half_cheetah():
    program = Program(find_case("physics/half_cheetah"), 2)
    program.load_action(0)
    program.step()
    return program


def test_a_physics_step_writes_only_what_is_known_of_it(half_cheetah):
    half_cheetah.restore()
    report = ks.audit(half_cheetah.step)
    assert report.tasks > 50
    assert report.undeclared == []


def test_strategies_agree_on_a_physics_step(half_cheetah):
    half_cheetah.restore()
    report = ks.verify(half_cheetah.step, streams=(2,), orders=12)
    assert report.ok, str(report)
    assert report.orders == 12
