"""Faults that others shipped: memory reuse, views, overlap, empty arrays, scatter (rows A to D).

The held task is a Warp launch; torch ops run in place behind what they conflict with.
"""

from __future__ import annotations

import gc
import threading

import kernels_semantics as kernels
import mujoco
import pytest
import torch
import warp as wp
from hazard_rows import hazard, replaced
from latch import held, jittered

import kscheduler as ks
from kscheduler.intercept import warp_patches

N = 256
STEPS = 12


def launch(kernel, inputs, outputs=(), dim=N):
    wp.launch(kernel, dim=dim, inputs=list(inputs), outputs=list(outputs), device="cpu")


def start(kernel, inputs, outputs=(), dim=N, latch=None):
    """Launch a held kernel and wait until a worker stands before it."""
    launch(kernel, inputs, outputs, dim)
    latch.wait()


# --- A: memory reuse -----------------------------------------------------------------------------


@hazard()
def test_a1_freed_block_is_not_handed_out_under_a_task():
    for _ in range(20):
        with ks.window(streams=2):
            # Neighbours keep the allocator from joining the freed block with others.
            blocks = [wp.empty(N, dtype=float, device="cpu") for _ in range(3)]
            view = wp.array(ptr=blocks[1].ptr, dtype=float, shape=(N,), device="cpu")
            with held(kernels.fill) as latch:
                start(kernels.fill, [view, 7.0], latch=latch)
                blocks[1] = None  # nobody but the task in flight uses it now
                others = [wp.full(N, -1.0, dtype=float, device="cpu") for _ in range(4)]
                wp.synchronize()
        assert all((other.numpy() == -1.0).all() for other in others)


@hazard(
    switch=replaced(warp_patches, "_flat", lambda values: ()),
    why="storages in flight are held by reference, whatever the tracker says",
)
def test_a1_storage_of_an_offset_view_lives_until_its_task_ends():
    for _ in range(20):
        out = torch.zeros(65536 - 5)
        holder = kernels.Holder()
        with ks.window(streams=2):
            base = torch.zeros(65536)
            holder.data = wp.from_torch(base[5:])
            with held(kernels.fill_held) as latch:
                start(kernels.fill_held, [holder, 1.0], dim=65531, latch=latch)
                holder.data = wp.from_torch(out)
                del base
                other = torch.full((65536,), -1.0)
        assert (other == -1.0).all()
        assert (out == 0.0).all()


@hazard(
    switch=None,
    why="a recording runs its tasks at once; what is at stake is which thread frees the arrays",
)
def test_a2_garbage_of_another_thread_stays_out_of_a_recording():
    x = torch.zeros(N)
    array = wp.from_torch(x)

    def program():
        scratch = wp.zeros(N, dtype=float, device="cpu")
        for _ in range(25):
            launch(kernels.add, [array, 1.0])
            launch(kernels.scale_into, [array, 2.0], [scratch])
        return x.clone()

    plain = ks.window(strategy="graph", streams=2)(program)
    plain()
    stop = threading.Event()

    def litter():
        while not stop.is_set():
            for _ in range(10):
                cycle = [wp.zeros(N, dtype=float, device="cpu")]
                cycle.append(cycle)
            gc.collect()
            stop.wait(0.001)

    x.zero_()
    recorded = ks.window(strategy="graph", streams=2)(program)
    thread = threading.Thread(target=litter)
    thread.start()
    try:
        results = [recorded() for _ in range(11)]
    finally:
        stop.set()
        thread.join()
    assert recorded.report.tasks == plain.report.tasks
    for calls, result in enumerate(results, start=1):
        assert (result == 25.0 * calls).all()


# --- B: views ------------------------------------------------------------------------------------


@hazard()
def test_b1_overlap_inside_one_op_is_as_eager():
    def shift_columns(a):
        a[:, 1:] = a[:, :-1]
        return a

    x = torch.arange(9.0)
    a = torch.zeros(9)
    expected = shift_columns(2.0 * x.view(3, 3))
    with ks.window(streams=2), held(kernels.scale_into) as latch:
        start(kernels.scale_into, [wp.from_torch(x), 2.0], [wp.from_torch(a)], 9, latch)
        rows = a.view(3, 3)
        with pytest.raises(RuntimeError, match="single memory location"):
            rows[1:] = rows[:-1]
        shift_columns(rows)
    assert torch.equal(rows, expected)


@hazard()
def test_b2_view_of_a_storage_is_the_storage():
    base = torch.zeros(2, 6)
    view = wp.from_torch(base[:, 3:])
    with ks.window(streams=2) as window, held(kernels.add2d) as latch:
        start(kernels.add2d, [view, 1.0], dim=(2, 3), latch=latch)
        total = base.sum()
    assert total == 6.0
    (access,) = window.report.graph.tasks[0].accesses
    assert (access.start - base.data_ptr(), access.end - base.data_ptr()) == (12, 48)


@hazard(switch=None, why="a false dependency costs time, never a value")
def test_b2_columns_of_one_array_do_not_wait_for_each_other():
    base = torch.zeros(4, 6)
    with ks.window(streams=2), held(kernels.add2d, until_wait=False) as latch:
        start(kernels.add2d, [wp.from_torch(base[:, :3]), 1.0], dim=(4, 3), latch=latch)
        right = base[:, 3:].sum()  # returns although the left half is being written
        assert latch.is_standing
        latch.release()
    assert right == 0.0
    assert base[:, :3].sum() == 12.0


# --- C: stride 0, empty --------------------------------------------------------------------------


@hazard()
def test_c1_write_through_an_expanded_tensor_is_as_eager():
    base = torch.zeros(1)
    b = base.expand(4)
    with ks.window(streams=2) as window, held(kernels.fill) as latch:
        start(kernels.fill, [wp.from_torch(base), 1.0], dim=1, latch=latch)
        for write in (
            lambda: b.add_(1.0),
            lambda: b.copy_(torch.ones(4)),
            lambda: b.scatter_(0, torch.tensor([0]), 1.0),
        ):
            with pytest.raises(RuntimeError, match="single memory location"):
                write()
        tasks = len(window._scope.sink.core.records())
        b.masked_fill_(torch.tensor([True, False, True, False]), 0.0)
        read = base.clone()
    assert tasks == 1
    assert read == 0.0
    assert b.tolist() == [0.0] * 4


@hazard(switch=None, why="an empty array has no byte that a task could wait for")
def test_c2_empty_operands_add_no_edges_and_no_errors():
    empty = torch.empty(0)
    x = torch.arange(3.0)
    nothing, something = (wp.zeros(size, dtype=float, device="cpu") for size in (0, 3))
    with ks.window(streams=2) as window:
        launch(kernels.add, [wp.from_torch(x), 1.0], dim=3)
        empty.add_(1)
        x[3:3].copy_(torch.empty(0))
        product = torch.empty(3, 0) @ torch.empty(0, 4)
        launch(kernels.add, [nothing, 1.0], dim=0)
        launch(kernels.fill, [wp.from_torch(x[3:3]), 1.0], dim=0)
        launch(kernels.fill, [something, 1.0], dim=3)
    assert torch.equal(product, torch.zeros(3, 4))
    assert torch.equal(x, torch.tensor([1.0, 2.0, 3.0]))
    assert window.report.edges == 0


# --- D: scatter, atomics -------------------------------------------------------------------------


@hazard()
def test_d1_scatter_with_repeated_indices_keeps_program_order():
    for _ in range(20):
        t = torch.zeros(3)
        twice = wp.array([0, 0], dtype=int, device="cpu")
        values = wp.array([1.0, 2.0], dtype=float, device="cpu")
        with ks.window(streams=2), held(kernels.store_at) as latch:
            start(kernels.store_at, [twice, values], [wp.from_torch(t)], 2, latch)
            t.index_put_((torch.tensor([0]),), torch.tensor([7.0]))
        assert t.tolist() == [7.0, 0.0, 0.0]
    with ks.window(streams=2):
        t = torch.zeros(3)
        t.index_put_((torch.tensor([0, 0]),), torch.tensor([1.0, 2.0]))
    assert t.tolist() == [2.0, 0.0, 0.0]


@hazard()
def test_d2_two_kernels_that_add_atomically_never_overlap():
    count = 100_000
    total = wp.zeros(1, dtype=float, device="cpu")
    copy = wp.zeros(1, dtype=float, device="cpu")
    with held(kernels.count_up) as latch, ks.window(streams=2):
        start(kernels.count_up, [total], dim=count, latch=latch)
        launch(kernels.count_up, [total], dim=count)
        launch(kernels.scale_into, [total, 1.0], [copy], dim=1)
    assert copy.numpy()[0] == 2.0 * count


FALLING = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="4 4 1"/>
    <body pos="0 0 0.3">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.1"/>
      <body pos="0.2 0 0">
        <joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.2 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


@hazard()
def test_d2_physics_is_bitwise_the_same_on_off_and_on():
    import mujoco_warp as mjw

    model = mujoco.MjModel.from_xml_string(FALLING)
    start_state = mujoco.MjData(model)
    start_state.qvel[:] = [0.3, -0.2, 0.1, 1.0, 2.0, 3.0, -1.0]
    mujoco.mj_forward(model, start_state)

    def simulate(strategy):
        m = mjw.put_model(model)
        d = mjw.put_data(model, start_state, nworld=4, nconmax=16, njmax=64)
        for _ in range(STEPS):
            with jittered(), ks.window(streams=2, strategy=strategy):
                mjw.step(m, d)
        return d.qpos.numpy().copy()

    on, off, again = simulate("stream"), simulate("serial"), simulate("stream")
    assert (on == off).all()
    assert (again == off).all()


@hazard(needs_gpu=True)
def test_d2_atomics_on_a_gpu_are_close():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = "cuda:0"
    total = torch.zeros(1, device=device)
    with ks.window(streams=2):
        for _ in range(2):
            wp.launch(kernels.count_up, dim=100_000, inputs=[wp.from_torch(total)], device=device)
        copy = total.clone()
    assert torch.allclose(copy, torch.tensor([200_000.0], device=device), rtol=1e-4)
