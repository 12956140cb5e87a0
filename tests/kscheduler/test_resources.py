"""What idle windows cost, and what closed ones leave: CPU time, memory, threads, patches."""

import gc
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import kernels_runtime as kernels
import torch
import warp as wp
from test_window import patched_attributes

import kscheduler as ks

N = 16


def launch(kernel, inputs):
    wp.launch(kernel, dim=N, inputs=inputs, device="cpu")


def cpu_share(seconds=1.0):
    """Share of one core that this process uses while its main thread sleeps."""
    wall, cpu = time.monotonic(), time.process_time()  # of all threads
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - wall)


def native_threads():
    return len(os.listdir("/proc/self/task"))


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_an_idle_window_uses_no_core():
    x = wp.zeros(N, dtype=float, device="cpu")
    with ks.window(streams=4):
        for _ in range(20):
            launch(kernels.add, [x, 1.0])
        x.numpy()
        assert cpu_share() < 0.01
    assert cpu_share(0.3) < 0.01  # nor do the workers that wait for the next window


def test_a_recording_that_waits_for_its_next_call_uses_no_core():
    x = wp.zeros(N, dtype=float, device="cpu")
    step = ks.window(streams=4, strategy="graph")(lambda: launch(kernels.add, [x, 1.0]))
    for _ in range(5):
        step()
    assert cpu_share() < 0.01


def test_a_thousand_windows_leave_nothing():
    x, t = wp.zeros(N, dtype=float, device="cpu"), torch.zeros(N)

    def use():
        with ks.window(streams=2):
            launch(kernels.add, [x, 1.0])
            launch(kernels.scale, [x, 2.0, wp.from_torch(t)])
            t.add_(1.0)

    for _ in range(200):
        use()
    gc.collect()
    threads, python_threads = native_threads(), threading.active_count()
    patched, before = patched_attributes(), resident_kib()
    for _ in range(1000):
        use()
    gc.collect()
    assert native_threads() == threads
    assert threading.active_count() == python_threads
    assert patched_attributes() == patched
    assert resident_kib() - before < 4 * 1024  # 4 KiB a window would be as much
    assert x.numpy()[0] == 1200.0


def test_threads_are_shared_by_all_windows():
    x = wp.zeros(N, dtype=float, device="cpu")
    with ks.window(streams=4):
        launch(kernels.add, [x, 1.0])
    threads = native_threads()
    for streams in (1, 2, 3, 4):
        with ks.window(streams=streams):
            launch(kernels.add, [x, 1.0])
            assert native_threads() <= threads
    assert native_threads() == threads


def test_replays_finish_beside_a_busy_process():
    xs = [wp.zeros(N, dtype=float, device="cpu") for _ in range(4)]

    def function():
        for _ in range(20):
            for x in xs:
                launch(kernels.add, [x, 1.0])

    step = ks.window(streams=2, strategy="graph")(function)
    step()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(200):
            step()
        with ks.window(streams=2):
            function()
    finally:
        busy.kill()
        busy.wait()
    assert all((x.numpy() == 20.0 * 202).all() for x in xs)


PROBE = """
import threading
before = threading.active_count()
import kscheduler, os
assert threading.active_count() == before
from kscheduler import _core
assert _core.pool_size() == 0, "importing starts threads"
import warp as wp
wp.config.quiet = True
with kscheduler.window(streams=3):
    pass
print("left", flush=True)
"""


def test_importing_starts_nothing_and_the_process_ends():
    command = [sys.executable, "-c", PROBE]
    root = Path(ks.__file__).parents[1]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "left" in done.stdout
