"""Programs that once gave other results under `stream` than without a window."""

import kernels_runtime as kernels
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
    with held(kernels.fill, until_wait=False) as latch, ks.window(streams=2):
        doomed = torch.zeros(size)
        command.set_param_at_index(0, wp.from_torch(doomed))
        command.launch()
        latch.wait()
        command.set_param_at_index(0, zeros())
        address = doomed.data_ptr()
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
