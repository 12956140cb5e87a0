"""Tasks: one file each, the step of a batched environment written line by line in PyTorch.

Every tensor that the physics reads or writes shares memory with Warp. No line reads a value on the
host, so that a step may be recorded; worlds branch by masks alone.
"""

from __future__ import annotations

from bench.envs.ant import Ant
from bench.envs.grasp import Grasp
from bench.envs.half_cheetah import HalfCheetah
from bench.envs.humanoid import Humanoid
from bench.envs.task import Outputs, Task
from bench.envs.walker2d import Walker2d

__all__ = ["TASKS", "Outputs", "Task"]

TASKS: dict[str, type[Task]] = {
    "ant": Ant,
    "half_cheetah": HalfCheetah,
    "humanoid": Humanoid,
    "walker2d": Walker2d,
    "grasp": Grasp,
}
