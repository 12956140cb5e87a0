"""Prepared launches: the native way of `wp.launch` gives what Warp's own way gives.

Each test launches outside of a window, then inside often enough that the launch is prepared, and
compares bits. That the native way was taken is counted by the launcher.
"""

import enum

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp

import kscheduler as ks
from kscheduler.backends import streams

N = 6


def counted():
    launcher = streams._launcher(2)
    return launcher.prepared_launches, launcher.empty_launches


def same_inside(kernel, make_inputs, out, dim=1, is_prepared=True):
    """Launches outside and, prepared, inside; the output must be the same bits."""
    out.zero_()
    wp.launch(kernel, dim=dim, inputs=make_inputs(), device="cpu")
    expected = out.numpy().copy()
    with ks.window(streams=2):  # the first launch in a window prepares the kernel
        wp.launch(kernel, dim=dim, inputs=make_inputs(), device="cpu")
    out.zero_()
    before = counted()[0]
    with ks.window(streams=2):
        wp.launch(kernel, dim=dim, inputs=make_inputs(), device="cpu")
    assert counted()[0] - before == int(is_prepared)
    assert out.numpy().tobytes() == expected.tobytes()
    return expected


class Level(enum.IntFlag):
    ONE = 1
    FOUR = 4


FLOATS = [0.1, 1, -0.0, 1e-45, float("inf"), np.float32(0.1), np.float64(0.1), np.int32(3), True]


@pytest.mark.parametrize("value", FLOATS, ids=[f"{type(v).__name__}-{v}" for v in FLOATS])
def test_floats(value):
    y = wp.zeros(2, dtype=wp.float64, device="cpu")
    same_inside(kernels.floats, lambda: [value, value, y], y)


INTEGERS = [0, 1, -1, 127, np.int8(-5), np.uint8(200), np.int64(7), Level.FOUR, True]


@pytest.mark.parametrize("value", INTEGERS, ids=[f"{type(v).__name__}-{v}" for v in INTEGERS])
def test_integers(value):
    y = wp.zeros(5, dtype=wp.int64, device="cpu")
    small = value if -128 <= int(value) < 128 else 1
    same_inside(kernels.integers, lambda: [value, small, abs(value), value, abs(value), y], y)


def test_integers_wrap_as_warp_wraps_them():
    y = wp.zeros(5, dtype=wp.int64, device="cpu")
    given = [2**31 - 1, -128, 255, -(2**63), 2**64 - 1]
    same_inside(kernels.integers, lambda: [*given, y], y)


BOOLEANS = [True, False, 0, 1, 2, Level.ONE, Level.ONE | Level.FOUR, Level(0)]


@pytest.mark.parametrize("value", BOOLEANS, ids=[f"{type(v).__name__}-{v!r}" for v in BOOLEANS])
def test_booleans(value):
    y = wp.zeros(2, dtype=int, device="cpu")
    found = same_inside(kernels.booleans, lambda: [value, not value, y], y)
    assert found.tolist() == [int(bool(value)), int(not value)]


def test_a_numpy_boolean_takes_warps_way():
    y = wp.zeros(2, dtype=int, device="cpu")
    same_inside(kernels.booleans, lambda: [np.bool_(True), False, y], y, is_prepared=False)


def test_vectors_matrices_and_transforms():
    y = wp.zeros(3, dtype=float, device="cpu")

    def inputs():
        place = wp.transform(wp.vec3(7.0, 8.0, 9.0), wp.quat_identity())
        return [wp.vec3(1.0, 2.0, 3.0), wp.mat22(1.0, 2.0, 3.0, 4.0), place, y]

    found = same_inside(kernels.composites, inputs, y)
    assert found.tolist() == [321.0, 4321.0, 987.0]


def test_tuples_for_vectors_are_as_without_a_window():
    y = wp.zeros(3, dtype=float, device="cpu")

    def inputs():
        return [(1.0, 2.0, 3.0), wp.mat22(1.0, 2.0, 3.0, 4.0), wp.transform_identity(), y]

    same_inside(kernels.composites, inputs, y, is_prepared=False)


def test_none_for_an_array():
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    assert same_inside(kernels.optional, lambda: [x, y], y, dim=N).tolist() == [3.0] * N
    assert same_inside(kernels.optional, lambda: [None, y], y, dim=N).tolist() == [-1.0] * N


def test_arrays_of_vectors():
    x = wp.array(np.arange(3.0 * N).reshape(N, 3), dtype=wp.vec3, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    same_inside(kernels.norms, lambda: [x, y], y, dim=N)


@pytest.mark.parametrize(
    "view", [np.s_[:], np.s_[2:], np.s_[::2], np.s_[1:5:3], np.s_[3:3]], ids=str
)
def test_sliced_and_strided_arrays(view):
    whole = wp.array(np.arange(N, dtype=np.float32), device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    part = whole[view]
    count = part.shape[0]
    same_inside(kernels.scale, lambda: [part, 2.0, y], y, dim=count, is_prepared=count > 0)


def test_columns_and_transposed_arrays():
    grid = wp.array(np.arange(12, dtype=np.float32).reshape(3, 4), device="cpu")
    y = wp.zeros((4, 3), dtype=float, device="cpu")
    same_inside(kernels.double_2d, lambda: [grid.transpose(), y], y, dim=(4, 3))
    same_inside(kernels.double_2d, lambda: [grid[:, 1:3], y], y, dim=(3, 2))


DIMS = [4, (4,), [4], np.int32(4), np.int64(4), (np.int64(2), 2), (2, 2), (1, 4, 1), (2, 1, 1, 2)]


@pytest.mark.parametrize("dim", DIMS, ids=repr)
def test_dims(dim):
    y = wp.zeros(8, dtype=int, device="cpu")
    found = same_inside(kernels.count_threads, lambda: [y], y, dim=dim)
    assert found.sum() == np.prod(dim)


def test_fewer_dims_than_the_kernel_uses():
    y = wp.zeros((2, 3, 4), dtype=int, device="cpu")
    for dim in ((2, 3, 4), (2, 3), 2):
        same_inside(kernels.tag_with_thread, lambda: [y], y, dim=dim)


@pytest.mark.parametrize("dim", [0, (0,), (3, 0), (0, 3), np.int64(0)], ids=repr)
def test_no_threads_at_all(dim):
    y = wp.zeros(8, dtype=int, device="cpu")
    before = counted()
    with ks.window(streams=2) as window:
        wp.launch(kernels.count_threads, dim=dim, inputs=[y], device="cpu")
    assert counted() == (before[0], before[1] + 1)
    assert window.report.tasks == 0
    assert not y.numpy().any()


@pytest.mark.parametrize("dim", [-1, (2, -1), 1.5, "4", None, (1, 1, 1, 1, 1)], ids=repr)
def test_wrong_dims_are_as_without_a_window(dim):
    y = wp.zeros(8, dtype=int, device="cpu")

    def outcome():
        y.zero_()
        try:
            wp.launch(kernels.count_threads, dim=dim, inputs=[y], device="cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            return type(error), str(error)
        return y.numpy().tolist()

    plain = outcome()
    with ks.window(streams=2):
        wp.launch(kernels.count_threads, dim=1, inputs=[y], device="cpu")
        inside = outcome()
    assert inside == plain


def test_generic_kernels_run_for_each_type():
    for dtype in (wp.float32, wp.int32):
        x = wp.full(N, 3, dtype=dtype, device="cpu")
        y = wp.zeros(N, dtype=dtype, device="cpu")
        with ks.window(streams=2):
            for _ in range(3):
                wp.launch(kernels.generic_scale, dim=N, inputs=[x, dtype(2), y], device="cpu")
        assert (y.numpy() == 6).all()


def test_an_overload_of_a_generic_kernel_is_prepared():
    kernel = wp.overload(
        kernels.generic_scale, [wp.array(dtype=float), float, wp.array(dtype=float)]
    )
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    same_inside(kernel, lambda: [x, 2.0, y], y, dim=N)


def test_struct_arguments_are_taken_by_value():
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    first, second = (wp.zeros(N, dtype=float, device="cpu") for _ in range(2))
    settings = kernels.Settings()
    with ks.window(streams=2):
        for y, scale in ((first, 2.0), (second, 5.0)):
            settings.scale, settings.offset = scale, 1.0
            wp.launch(kernels.with_settings, dim=N, inputs=[settings, x, y], device="cpu")
    assert (first.numpy() == 7.0).all()
    assert (second.numpy() == 16.0).all()


def test_tensors_passed_to_a_launch():
    x = torch.full((N,), 3.0)
    y = wp.zeros(N, dtype=float, device="cpu")
    same_inside(kernels.scale, lambda: [x, 2.0, y], y, dim=N, is_prepared=False)
    wrapped = wp.from_torch(torch.full((N,), 3.0))
    same_inside(kernels.scale, lambda: [wrapped, 2.0, y], y, dim=N)


@pytest.mark.parametrize("style", ["positional", "outputs", "tuples", "no device"])
def test_ways_to_pass_arguments(style):
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")

    def call():
        if style == "positional":
            wp.launch(kernels.scale, N, [x, 2.0, y], device="cpu")
        elif style == "outputs":
            wp.launch(kernels.scale, dim=N, inputs=[x, 2.0], outputs=[y], device="cpu")
        elif style == "tuples":
            wp.launch(kernel=kernels.scale, dim=(N,), inputs=(x, 2.0), outputs=(y,), device="cpu")
        else:
            wp.launch(kernels.scale, dim=N, inputs=[x, 2.0, y])

    with wp.ScopedDevice("cpu"):
        before = counted()[0]
        with ks.window(streams=2):
            for _ in range(3):
                call()
        assert counted()[0] - before >= 2
    assert (y.numpy() == 6.0).all()


def test_a_changed_module_is_not_launched_from_old_code():
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    same_inside(kernels.scale, lambda: [x, 2.0, y], y, dim=N)
    kernels.scale.module.mark_modified()
    before = counted()[0]
    with ks.window(streams=2):
        y.zero_()
        wp.launch(kernels.scale, dim=N, inputs=[x, 4.0, y], device="cpu")
        assert counted()[0] == before  # Warp's way, which loads the module again
        assert (y.numpy() == 12.0).all()
        wp.launch(kernels.scale, dim=N, inputs=[x, 5.0, y], device="cpu")
    assert (y.numpy() == 15.0).all()


def test_arguments_may_change_right_after_the_launch():
    x = wp.full(N, 3.0, dtype=float, device="cpu")
    y = wp.zeros(N, dtype=float, device="cpu")
    v = wp.vec3(1.0, 2.0, 3.0)
    out = wp.zeros(3, dtype=float, device="cpu")
    given = [x, 2.0, y]
    with ks.window(streams=2):
        for _ in range(3):
            wp.launch(kernels.scale, dim=N, inputs=given, device="cpu")
            inputs = [v, wp.mat22(), wp.transform_identity(), out]
            wp.launch(kernels.composites, dim=1, inputs=inputs, device="cpu")
        v[0] = 100.0
        given[1] = 9.0
        del x
    assert (y.numpy() == 6.0).all()
    assert out.numpy()[0] == 321.0
