"""Semantics 1, 2, 10 and 11: what the host reads, writes, copies and decides inside a window."""

from __future__ import annotations

import array
import copy

import kernels_semantics as kernels
import numpy as np
import pytest
import torch
import warp as wp
from latch import held

import kscheduler as ks

N = 64


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def graph(function):
    return ks.window(strategy="graph", streams=2)(function)


# --- 1: values -----------------------------------------------------------------------------------


def test_reading_one_tensor_waits_for_its_writers_only():
    x, y = torch.zeros(N), torch.zeros(N)
    with ks.window(streams=2), held(kernels.fill, until_wait=False) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        launch(kernels.add, [wp.from_torch(y), 2.0])
        assert y[0].item() == 2.0
        assert y.tolist() == [2.0] * N
        assert bool((y == 2.0).all())
        assert latch.is_standing
        latch.release()
    assert (x == 1.0).all()


def test_branch_on_a_value_takes_the_side_of_program_order():
    def program():
        x = torch.zeros(N)
        taken = []
        for step in range(6):
            launch(kernels.add, [wp.from_torch(x), 1.0 if step % 2 else -2.0])
            if x[0] > -3:
                taken.append(step)
                x += float(x[1])
            else:
                taken.append(-step)
                launch(kernels.fill, [wp.from_torch(x), float(int(x[2]) + 5)])
        return taken, x.tolist()

    expected = program()
    with ks.window(streams=2):
        assert program() == expected


HOST_READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0]),
    "float": lambda x: float(x[0]),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "str": str,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "data_ptr": lambda x: x.data_ptr(),
    "dlpack": np.from_dlpack,
    "warp_numpy": lambda x: wp.from_torch(x).numpy(),
}


@pytest.mark.parametrize("read", HOST_READS.values(), ids=HOST_READS.keys())
def test_recording_refuses_a_host_read_and_says_where(read):
    step = graph(lambda x: read(x + 1.0))
    with pytest.raises(ks.NotReplayable, match=r"test_semantics_host\.py:\d+"):
        step(torch.ones(N))


# --- 2: exports ----------------------------------------------------------------------------------

EXPORTS = {
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "pointer": lambda t: np.ctypeslib.as_array(_floats_at(t.data_ptr()), (N,)),
    "warp_numpy": lambda t: wp.from_torch(t).numpy(),
    "data_numpy": lambda t: t.data.numpy(),
    "view_numpy": lambda t: t.view(8, 8)[2:].numpy().base,
}


def _floats_at(address):
    import ctypes

    return ctypes.cast(address, ctypes.POINTER(ctypes.c_float))


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
def test_exported_memory_is_never_behind_the_program(export):
    x, y = torch.zeros(N), torch.zeros(N)
    with ks.window(streams=2) as window:
        seen = export(x)
        for value in (1.0, 2.0, 3.0):
            launch(kernels.fill, [wp.from_torch(x), value])
            assert np.asarray(seen).flat[-1] == value
            seen[...] = 5.0  # the host writes, too
            launch(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(y)])
            seen[...] = -1.0
            assert y[N - 1] == 10.0
    assert window.report.fences["host_visible"] == 6


def test_other_memory_still_runs_beside_an_export():
    x, y = torch.zeros(N), torch.zeros(N)
    with ks.window(streams=2) as window, held(kernels.fill, until_wait=False) as latch:
        x.numpy()
        launch(kernels.fill, [wp.from_torch(y), 1.0])
        latch.wait()
        latch.release()
    assert "host_visible" not in window.report.fences
    assert (y == 1.0).all()


HOST_BACKED = {
    "from_numpy": lambda: torch.from_numpy(np.zeros(N, np.float32)),
    "frombuffer": lambda: torch.frombuffer(array.array("f", [0.0] * N), dtype=torch.float32),
    "as_tensor": lambda: torch.as_tensor(np.zeros(N, np.float32)),
    "view": lambda: torch.from_numpy(np.zeros((2, N), np.float32))[1],
    "shared": lambda: torch.zeros(N).share_memory_(),
    "warp": lambda: wp.array(np.zeros(N, np.float32), copy=False, device="cpu"),
    "warp_view": lambda: wp.array(np.zeros(2 * N, np.float32), copy=False, device="cpu")[N:],
}


@pytest.mark.parametrize("make", HOST_BACKED.values(), ids=HOST_BACKED.keys())
def test_memory_of_numpy_and_of_other_processes_is_visible_from_the_start(make):
    memory = make()  # before the window: nothing of it can be seen there
    target = memory if isinstance(memory, wp.array) else wp.from_torch(memory)
    if isinstance(memory, torch.Tensor) and not memory.is_shared():
        seen = memory.numpy() if memory.untyped_storage().resizable() else np.asarray(memory)
    else:
        seen = memory.numpy()
    other = wp.zeros(N, dtype=float, device="cpu")
    with ks.window(streams=2) as window:
        for _ in range(4):
            launch(kernels.fill, [other, 1.0])  # prepared by now
        wp.synchronize()
        with held(kernels.fill):
            launch(kernels.fill, [target, 1.0])
            value = seen[0]
    assert value == 1.0
    assert window.report.fences["host_visible"] == 1


def test_memory_of_its_own_is_looked_at_once():
    x = torch.zeros(N)
    with ks.window(streams=2) as window:
        for value in range(5):
            launch(kernels.fill, [wp.from_torch(x), float(value)])
            launch(kernels.fill, [wp.zeros(N, dtype=float, device="cpu")[2:], 1.0], dim=N - 2)
    assert "host_visible" not in window.report.fences
    assert x[0] == 4.0


def test_data_assignment_waits_for_the_old_memory():
    x = torch.zeros(N)
    old = x.detach()
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 1.0])
        latch.wait()
        x.data = torch.full((N,), 7.0)
        y = x * 2.0
    assert (old == 1.0).all()
    assert (y == 14.0).all()


def test_deepcopy_and_clone_see_finished_values():
    module = torch.nn.Linear(2, 2, bias=False)
    weight = module.weight.detach()
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(weight.view(-1)), 3.0], dim=4)
        latch.wait()
        twin = copy.deepcopy(module)
    assert (twin.weight == 3.0).all()


# --- 10: copies ----------------------------------------------------------------------------------


def test_source_of_a_copy_may_be_changed_at_once():
    source = np.full(N, 2.0, np.float32)
    with ks.window(streams=2):
        made = wp.array(source, device="cpu")
        assigned = wp.zeros(N, dtype=float, device="cpu")
        assigned.assign(source)
        filled = torch.zeros(N)
        filled.copy_(torch.from_numpy(source))
        source[:] = -1.0
        launch(kernels.add, [made, 1.0])
    assert (made.numpy() == 3.0).all()
    assert (assigned.numpy() == 2.0).all()
    assert (filled == 2.0).all()


@pytest.mark.parametrize("kind", ["array_copy", "memcpy"])
def test_array_made_of_a_list_does_not_read_it_later(kind):
    with held(kind, "memory"), ks.window(streams=2):
        made = [wp.array([k, k + 1.0], dtype=float, device="cpu") for k in range(50)]
        strided = wp.array(np.arange(20.0, dtype=np.float32)[::2].copy()[::5], device="cpu")
        ballast = [np.full(2, -1.0, np.float32) for _ in range(100)]
    assert [a.numpy().tolist() for a in made] == [[k, k + 1.0] for k in range(50)]
    assert strided.numpy().tolist() == [0.0, 10.0]
    assert len(ballast) == 100


def test_copy_to_the_host_is_finished_even_if_it_need_not_be():
    x = torch.zeros(N)
    with ks.window(streams=2), held(kernels.fill) as latch:
        launch(kernels.fill, [wp.from_torch(x), 4.0])
        latch.wait()
        copied = x.to("cpu", torch.float64, non_blocking=True)
        seen = copied.tolist()
    assert seen == [4.0] * N


@pytest.mark.gpu
def test_copy_from_a_gpu_is_finished_when_it_is_read():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x = torch.zeros(1 << 20, device="cuda")
    with ks.window(streams=2):
        torch.cuda._sleep(10_000_000)
        x += 1.0
        seen = x.to("cpu", non_blocking=True).tolist()
    assert seen == [1.0] * (1 << 20)


# --- 11: shapes and control flow that depend on data ----------------------------------------------


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: torch.nonzero(x),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.unique(x),
        lambda x: x[x.bool()],
        lambda x: torch.where(x > 0)[0],
        lambda x: torch.repeat_interleave(x, (x + 1).long()),
    ],
    ids=["nonzero", "masked_select", "unique", "mask", "where", "repeat_interleave"],
)
def test_shapes_that_depend_on_data_are_those_of_program_order(pick):
    source = torch.tensor([0.0, 1.0, 0.0, 2.0])
    x = torch.zeros(4)
    with ks.window(streams=2), held(kernels.scale_into) as latch:
        launch(kernels.scale_into, [wp.from_torch(source), 1.0], [wp.from_torch(x)], 4)
        latch.wait()
        picked = pick(x)
    assert torch.equal(picked, pick(source))
    with pytest.raises(ks.NotReplayable, match=r"aten.*test_semantics_host\.py"):
        graph(pick)(source)


def _count_down(x, y, left):
    wp.capture_while(
        left, lambda: launch(kernels.step_down, [wp.from_torch(x)], [wp.from_torch(y), left])
    )
    return y.clone()


def test_loop_runs_as_often_as_its_condition_says():
    x, y = torch.ones(N), torch.zeros(N)
    left = wp.array([3], dtype=int, device="cpu")
    with ks.window(streams=2) as window:
        result = _count_down(x, y, left)
    assert (result == 3.0).all()
    assert window.report.fences["loop_condition"] == 4
    left = wp.array([2], dtype=int, device="cpu")
    recorded = graph(_count_down)
    for times in (2, 5, 1, 0):
        left.assign([times])
        recorded(x, y, left)
        assert left.numpy()[0] == 0


def test_branch_takes_the_side_of_its_condition():
    x = torch.zeros(N)
    array_of_x = wp.from_torch(x)
    condition = wp.zeros(1, dtype=int, device="cpu")

    def program():
        wp.capture_if(
            condition,
            lambda: launch(kernels.fill, [array_of_x, 1.0]),
            lambda: launch(kernels.fill, [array_of_x, 2.0]),
        )

    recorded = graph(program)
    for taken in (1, 0, 1, 1, 0):
        condition.assign([taken])
        with ks.window(streams=2):
            program()
            assert x[0] == (1.0 if taken else 2.0)
        x.zero_()
        recorded()
        assert x[0] == (1.0 if taken else 2.0)
