"""Long random programs through the tracker in C++, under the address and undefined sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ("-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_tracker_agrees_with_all_pairs_on_long_programs(tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs g++ or clang++")
    program = tmp_path / "stress"
    source = ROOT / "tests/native/stress_tracker.cpp"
    include = f"-I{ROOT / 'kscheduler/csrc'}"
    subprocess.run([compiler, *FLAGS, include, str(source), "-o", str(program)], check=True)
    done = subprocess.run([program, "20"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 programs" in done.stdout
