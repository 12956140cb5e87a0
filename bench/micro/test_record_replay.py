"""Costs beside the kernels: a submission, a replay's call, and a recording in a fresh process.

`extra_info` holds what is compared with the targets: `us_per_submission` (2), `us_beside_kernels`
(100), and the seconds of a humanoid step's recording with nothing cached (2.5) and in the next
process (0.3).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warp as wp

import kscheduler as ks
from bench.micro.conftest import add_one
from kscheduler import _core
from kscheduler.backends.streams import label_of

SUBMISSIONS = 200
ROOT = Path(ks.__file__).parents[1]

_RECORD = """
import sys, time
import torch, warp as wp
wp.config.quiet = True
torch.set_num_threads(1)
import kscheduler as ks
from bench.cases import Program, find_case

program = Program(find_case("physics/humanoid"), 64)
program.load_action(0)
program.step()  # loads the kernels
program.restore()
step = ks.window(streams=2, strategy="graph")(program.step)
start = time.perf_counter()
step()
print(time.perf_counter() - start)
"""


def test_submission(benchmark):
    arrays = [wp.zeros(1, dtype=float, device="cpu") for _ in range(8)]
    held = wp.zeros(1, dtype=float, device="cpu")
    inputs = [[array] for array in arrays]

    def launch_all():
        for index in range(SUBMISSIONS):
            wp.launch(add_one, dim=1, inputs=inputs[index % 8], device="cpu")

    with ks.window(streams=2):
        launch_all()  # prepares the kernel

    def submit_behind_a_held_task():
        # Nothing else runs meanwhile: the worker stands before the first task.
        _core.latch_hold(label_of(add_one.key, "warp"), False)
        with ks.window(streams=2, size=1024):
            wp.launch(add_one, dim=1, inputs=[held], device="cpu")
            _core.latch_wait_held(20.0)
            start = time.perf_counter()
            launch_all()
            seconds = time.perf_counter() - start
            _core.latch_release()
        return seconds

    seconds = benchmark.pedantic(submit_behind_a_held_task, rounds=1, warmup_rounds=1)
    samples = sorted([seconds, *(submit_behind_a_held_task() for _ in range(30))])
    benchmark.extra_info["us_per_submission"] = 1e6 * samples[len(samples) // 2] / SUBMISSIONS


def test_replay_call(benchmark, half_cheetah):
    """The call of a replay beside its kernels: Python before and after the native part."""
    half_cheetah.restore()
    step = ks.window(strategy="graph", streams=2)(half_cheetah.step)
    for _ in range(3):
        step()
    recording = step._call.last
    native = []
    run = recording.program.run

    def timed_run(values):
        start = time.perf_counter()
        run(values)
        native.append(time.perf_counter() - start)

    recording.program.run = timed_run
    beside = []

    def call():
        start = time.perf_counter()
        step()
        beside.append(time.perf_counter() - start - native[-1])

    benchmark.pedantic(call, setup=half_cheetah.restore, rounds=50, warmup_rounds=5)
    benchmark.extra_info["us_beside_kernels"] = 1e6 * sorted(beside)[len(beside) // 2]


@pytest.mark.parametrize("process", ["first", "next"])
def test_recording_in_a_process(benchmark, tmp_path_factory, process):
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "KSCHEDULER_CACHE_DIR": str(cache)}

    def record():
        done = subprocess.run(
            [sys.executable, "-c", _RECORD],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return float(done.stdout.split()[-1])

    if process == "next":
        record()
    seconds = benchmark.pedantic(record, rounds=1)
    benchmark.extra_info["seconds_to_record"] = seconds
