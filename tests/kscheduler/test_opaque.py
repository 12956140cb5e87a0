"""Declared callables: what they wait for, and what becomes of their values and errors."""

import ctypes

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks
from kscheduler.errors import InvalidOption

N = 16


def zeros():
    return wp.zeros(N, dtype=float, device="cpu")


def launch(kernel, inputs):
    wp.launch(kernel, dim=N, inputs=inputs, device="cpu")


def floats_at(array):
    """The array's memory as NumPy sees it, behind the back of any interception."""
    pointer = array.ptr if isinstance(array, wp.array) else array.data_ptr()
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (N,))


@ks.kernel(reads=("x",), writes=("y",))
def double_into(x, y):
    """Doubles."""
    floats_at(y)[:] = 2.0 * floats_at(x)
    return 7


def test_outside_of_windows_it_is_the_function():
    x, y = torch.ones(N), torch.zeros(N)
    assert double_into(x, y) == 7
    assert (y == 2.0).all()
    assert double_into.__name__ == "double_into"
    assert double_into.__doc__ == "Doubles."


def test_it_waits_for_what_it_reads():
    x, y = zeros(), zeros()
    with held(kernels.fill) as latch, ks.window(streams=2) as window:
        launch(kernels.fill, [x, 3.0])
        latch.wait()
        assert double_into(x, y) == 7
    assert (y.numpy() == 6.0).all()
    assert window.report.tasks == 2


def test_it_does_not_wait_for_what_it_leaves_alone():
    x, y, other = zeros(), zeros(), zeros()
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        launch(kernels.fill, [other, 3.0])
        latch.wait()
        double_into(x, y)
        assert latch.is_standing
        latch.release()
    assert (other.numpy() == 3.0).all()


def test_a_read_does_not_wait_for_a_reader_and_a_write_does():
    x, y, z = zeros(), zeros(), zeros()
    x.fill_(1.0)
    with held(kernels.scale, until_wait=False) as latch, ks.window(streams=2):
        launch(kernels.scale, [x, 2.0, y])
        latch.wait()
        double_into(x, z)
        assert latch.is_standing
        latch.release()
    with held(kernels.scale) as latch, ks.window(streams=2):
        launch(kernels.scale, [x, 2.0, y])
        latch.wait()
        double_into(z, x)  # overwrites what the held task has still to read
        assert not latch.is_standing
    assert (y.numpy() == 2.0).all()
    assert (x.numpy() == 4.0).all()


def test_undeclared_array_parameters_are_read_and_written():
    x, y = zeros(), zeros()

    @ks.kernel()
    def touch(anything):
        floats_at(anything["y"])[:] += floats_at(anything["x"])

    with held(kernels.fill) as latch, ks.window(streams=2):
        launch(kernels.fill, [x, 3.0])
        latch.wait()
        touch({"x": x, "y": y})
    assert (y.numpy() == 3.0).all()


def test_its_own_launches_and_reads_are_its_own_business():
    x, y = zeros(), zeros()
    seen = []

    @ks.kernel(reads=("x",), writes=("y",))
    def inner(x, y):
        launch(kernels.scale, [x, 2.0, y])
        seen.append(float(y.numpy()[0]))

    with ks.window(streams=2):
        for value in (1.0, 2.0, 3.0):
            launch(kernels.scale, [x, 1.0, y])  # so that the kernel is prepared
            launch(kernels.fill, [x, value])
            inner(x, y)
    assert seen == [2.0, 4.0, 6.0]


def test_exceptions_reach_the_caller_and_the_window_goes_on():
    x = zeros()

    @ks.kernel(writes=("x",))
    def fails(x):
        raise ValueError("mine")

    with ks.window(streams=2):
        launch(kernels.add, [x, 1.0])
        with pytest.raises(ValueError, match="mine"):
            fails(x)
        launch(kernels.add, [x, 1.0])
    assert (x.numpy() == 2.0).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reads": ("z",)}, "has no parameter z; it has x, y"),
        ({"writes": ("x", "w")}, "has no parameter w"),
        ({"reads": "x"}, r"give names as a tuple: \('x',\)"),
    ],
)
def test_wrong_declarations_are_refused(options, text):
    with pytest.raises(InvalidOption, match=text):
        ks.kernel(**options)(lambda x, y: None)


@pytest.mark.parametrize("misplaced", [lambda x, y: None, ("x",)])
def test_a_declaration_without_names_says_how_to_write_it(misplaced):
    with pytest.raises(InvalidOption, match=r"write @ks\.kernel\(reads="):
        ks.kernel(misplaced)


def test_wrong_arguments_raise_as_python_does():
    with ks.window(streams=2), pytest.raises(TypeError):
        double_into(torch.ones(N))


def test_a_recording_calls_it_again():
    x, y, z = zeros(), zeros(), zeros()

    @ks.kernel(reads=("x",), writes=("y",))
    def double(x, y):
        floats_at(y)[:] = 2.0 * floats_at(x)

    def function():
        launch(kernels.add, [x, 1.0])
        double(x, y)
        launch(kernels.scale, [y, 10.0, z])

    step = ks.window(streams=2, strategy="graph")(function)
    for count in range(1, 5):
        step()
        assert (z.numpy() == 20.0 * count).all()
    assert [task.kind for task in step.report.graph.tasks] == ["warp", "opaque", "warp"]
    assert step.report.graph.edges == [(0, 1), (1, 2)]


def test_a_recording_refuses_arrays_whose_address_changes():
    x = zeros()
    step = ks.window(strategy="graph")(lambda y: double_into(x, y))
    with pytest.raises(ks.NotReplayable, match="argument or result of the recorded function"):
        step(torch.zeros(N))


def test_a_recording_refuses_results_that_are_no_numbers():
    @ks.kernel(reads=("x",))
    def listing(x):
        return [1, 2]

    x = zeros()
    with pytest.raises(ks.NotReplayable, match="returns a list"):
        ks.window(strategy="graph")(lambda: listing(x))()


def test_an_error_in_a_replay_is_its_own_and_the_next_replay_works():
    x, y = zeros(), zeros()
    fails = []

    @ks.kernel(reads=("x",), writes=("y",))
    def sometimes(x, y):
        if fails.count(True):
            raise ValueError("mine")
        floats_at(y)[:] = floats_at(x)

    def function():
        launch(kernels.add, [x, 1.0])
        sometimes(x, y)

    step = ks.window(streams=2, strategy="graph")(function)
    step()
    step()
    fails.append(True)
    with pytest.raises(ValueError, match="mine"):
        step()
    fails.clear()
    step()
    assert (y.numpy() == 4.0).all()
