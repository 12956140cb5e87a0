"""Builds the native core: C++17 through pybind11, without torch headers or a CUDA toolkit."""

import os
import platform
import shutil
import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

CORE = Path("kscheduler/csrc")


class BuildCore(build_ext):
    """Checks for a compiler first, so that a missing one is one clear sentence."""

    def build_extensions(self) -> None:
        compiler = os.environ.get("CXX", "").split()[:1] or ["g++", "clang++", "c++"]
        if not any(shutil.which(name) for name in compiler):
            sys.exit(
                "kscheduler builds a small C++17 core and found no C++ compiler "
                f"(looked for: {', '.join(compiler)}).\n"
                "Install one and run the same command again: 'apt-get install g++' on Debian or "
                "Ubuntu, 'dnf install gcc-c++' on Fedora; or set CXX to yours."
            )
        super().build_extensions()


if platform.system() == "Windows":
    sys.exit("kscheduler supports Linux and macOS; its native core does not build on Windows.")

ParallelCompile("KSCHEDULER_BUILD_JOBS").install()

setup(
    ext_modules=[
        Pybind11Extension(
            "kscheduler._core",
            sorted(str(path) for path in CORE.glob("*.cpp")),
            depends=sorted(str(path) for path in CORE.glob("*.h")),
            include_dirs=[str(CORE)],
            cxx_std=17,
            extra_compile_args=[
                "-O3",
                "-g1",
                "-Wall",
                "-Wextra",
                "-pthread",
                "-fvisibility=hidden",
            ],
            extra_link_args=["-pthread"],
        )
    ],
    cmdclass={"build_ext": BuildCore},
)
