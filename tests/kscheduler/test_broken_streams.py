"""Programs that once gave other results under `stream` than without a window."""

import ctypes

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks

N = 64


def zeros():
    return wp.zeros(N, dtype=float, device="cpu")


def launch(kernel, inputs):
    wp.launch(kernel, dim=N, inputs=inputs, device="cpu")


# --- recorded launches ---------------------------------------------------------------------------


def recorded_fill(array):
    return wp.launch(
        kernels.fill, dim=N, inputs=[array, 3.0], device="cpu", record_cmd=True, record_tape=False
    )


def test_a_recorded_launch_keeps_the_array_that_it_was_launched_with():
    command = recorded_fill(zeros())
    size = 1 << 18  # floats; large enough for PyTorch to get the same block again
    doomed = torch.zeros(size)
    address = doomed.data_ptr()  # before the window, in which this would wait for the launch
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        command.set_param_at_index(0, wp.from_torch(doomed))
        command.launch()
        latch.wait()
        command.set_param_at_index(0, zeros())
        del doomed
        others = [torch.full((size,), 7.0) for _ in range(4)]
        assert address not in [other.data_ptr() for other in others]
        latch.release()
    assert all((other == 7.0).all() for other in others)


def test_a_recorded_launch_with_a_bare_descriptor_is_waited_for():
    command = recorded_fill(zeros())
    array = zeros()
    with held(kernels.fill) as latch, ks.window(streams=2):
        command.set_param_at_index_from_ctype(0, array.__ctype__())
        command.launch()
        assert not latch.is_standing
        assert (wp.to_torch(array) == 3.0).all()


# --- custom ops ----------------------------------------------------------------------------------


hidden: dict[str, torch.Tensor] = {}  # what the ops below reach without being passed it


@torch.library.custom_op("kscheduler_streams::adds_hidden", mutates_args=())
def adds_hidden(x: torch.Tensor) -> torch.Tensor:
    return x + hidden["read"]


@torch.library.custom_op("kscheduler_streams::launches", mutates_args=())
def launches(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(N)
    launch(kernels.scale, [wp.from_torch(hidden["read"]), 2.0, wp.from_torch(y)])
    launch(kernels.scale, [wp.from_torch(y), 1.0, wp.from_torch(hidden["written"])])
    return x + y


def test_a_custom_op_sees_tensors_that_it_is_not_passed():
    hidden["read"] = torch.zeros(N)
    with held(kernels.fill) as latch, ks.window(streams=2) as window:
        launch(kernels.fill, [wp.from_torch(hidden["read"]), 3.0])
        latch.wait()
        result = torch.ops.kscheduler_streams.adds_hidden(torch.ones(N))
    assert (result == 4.0).all()
    assert window.report.fences["unknown_access"] == 1


def test_launches_of_a_custom_op_are_finished_with_it():
    hidden.update(read=torch.zeros(N), written=torch.zeros(N))
    with ks.window(streams=2), held(kernels.scale) as latch:
        for value in (3.0, 4.0):
            launch(kernels.fill, [wp.from_torch(hidden["read"]), value])
            result = torch.ops.kscheduler_streams.launches(torch.ones(N))
            assert (result == 1.0 + 2.0 * value).all()
            assert (hidden["written"] == 2.0 * value).all()
            assert not latch.is_standing


def test_ops_after_a_custom_op_are_seen():
    hidden["read"] = torch.zeros(N)
    x = torch.zeros(N)
    with ks.window(streams=2):
        launch(kernels.add, [wp.from_torch(x), 1.0])
        torch.ops.kscheduler_streams.adds_hidden(x)
        with held(kernels.fill) as latch:
            launch(kernels.fill, [wp.from_torch(x), 5.0])
            latch.wait()
            result = x * 2.0
    assert (result == 10.0).all()


def test_a_custom_op_launches_while_nothing_is_in_flight():
    hidden.update(read=torch.ones(N), written=torch.zeros(N))
    with ks.window(streams=2), held(kernels.scale):
        result = torch.ops.kscheduler_streams.launches(torch.ones(N))
        assert (result == 3.0).all()
        assert (hidden["written"] * 1.0 == 2.0).all()


# --- NumPy ---------------------------------------------------------------------------------------


def test_a_launch_on_numpy_arrays_has_run_when_it_returns():
    x, y = np.ones(N, np.float32), np.zeros(N, np.float32)
    with held(kernels.scale) as latch, ks.window(streams=2) as window:
        for factor in (3.0, 4.0):
            launch(kernels.scale, [x, factor, y])
            assert not latch.is_standing
            assert (y == factor).all()
    assert window.report.fences["host_visible"] == 2


class Lazy:
    """Makes its array when it is asked."""

    def __init__(self, array):
        self.array = array

    def __array__(self):
        return self.array


def test_a_launch_on_an_object_that_makes_an_array_has_run_when_it_returns():
    y = np.zeros(N, np.float32)
    with held(kernels.fill) as latch, ks.window(streams=2):
        launch(kernels.fill, [Lazy(y), 3.0])
        assert not latch.is_standing
        assert (y == 3.0).all()


def test_a_vector_of_numpy_numbers_is_copied_and_not_waited_for():
    y = zeros()
    vector = np.array([1.0, 2.0, 3.0], np.float32)
    with held(kernels.composites, until_wait=False) as latch, ks.window(streams=2):
        matrix, transform = wp.mat22(1.0, 2.0, 3.0, 4.0), wp.transform_identity()
        launch(kernels.composites, [vector, matrix, transform, y])
        latch.wait()
        vector[:] = 0.0
        latch.release()
    assert y.numpy()[0] == 321.0


# --- declared callables --------------------------------------------------------------------------


def ndarray_over(array):
    return np.ctypeslib.as_array(ctypes.cast(array.ptr, ctypes.POINTER(ctypes.c_float)), (N,))


class Box:
    def __init__(self, array):
        self.array = array


def as_struct(array):
    pair = kernels.Pair()
    pair.x = array
    return pair


def as_indexed(array):
    return wp.indexedarray(array, [wp.array([0, 2], dtype=int, device="cpu")])


@pytest.mark.parametrize(
    "wrapped", [ndarray_over, lambda array: ndarray_over(array)[::-2], as_struct, as_indexed, Box]
)
def test_a_declared_callable_waits_for_what_its_arguments_hold(wrapped):
    x = zeros()
    argument, values = wrapped(x), ndarray_over(x)
    seen = []

    @ks.kernel(reads=("held",))
    def look(held):
        seen.append(values.copy())

    with held(kernels.fill) as latch, ks.window(streams=2):
        launch(kernels.fill, [x, 3.0])
        latch.wait()
        look(argument)
    assert (seen[0] == 3.0).all()


def test_a_declared_callable_leaves_memory_beside_its_ndarray_alone():
    x = zeros()

    @ks.kernel(writes=("y",))
    def clear(y, factor, name, dtype):
        y[:] = 0.0

    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        launch(kernels.fill, [x, 3.0])
        latch.wait()
        clear(np.ones((4, 4), np.float32)[:, 1:3], np.float32(2.0), "name", torch.float32)
        assert latch.is_standing
        latch.release()
    assert (x.numpy() == 3.0).all()


@pytest.mark.parametrize("wrapped", [ndarray_over, Box])
def test_a_recording_refuses_objects_that_may_be_new_in_each_call(wrapped):
    x = zeros()

    @ks.kernel(reads=("held",))
    def look(held):
        pass

    with pytest.raises(ks.NotReplayable, match="whether it is a new one in each call"):
        ks.window(strategy="graph")(lambda: look(wrapped(x)))()


# --- arrays made from a bare pointer -------------------------------------------------------------


def test_memory_under_a_bare_array_may_be_freed_after_the_launch():
    owner = torch.zeros(N)
    bare = wp.array(ptr=owner.data_ptr(), shape=N, dtype=float, device="cpu")
    with held(kernels.fill) as latch, ks.window(streams=2):
        for value in (3.0, 4.0):  # prepared the second time
            launch(kernels.fill, [bare[:], value])
            assert not latch.is_standing
            assert floats_of(bare) == [value] * N


def test_a_bare_array_on_memory_of_warp_is_not_waited_for():
    owner = zeros()
    bare = wp.array(ptr=owner.ptr + 16, shape=N - 4, dtype=float, device="cpu")
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        wp.launch(kernels.fill, dim=N - 4, inputs=[bare, 3.0], device="cpu")
        latch.wait()
        latch.release()
    assert owner.numpy().tolist() == [0.0] * 4 + [3.0] * (N - 4)


def floats_of(array):
    return list((ctypes.c_float * N).from_address(array.ptr))
