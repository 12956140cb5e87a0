"""Models: the five simulated bodies, and a batch of worlds of one of them on the CPU.

The four walkers are gymnasium's MJCF files, unchanged; `grasp` is our own. All use the Newton
solver with 5 iterations and 10 line-search iterations, in place of what the file says (MuJoCo Warp
refuses PGS). `Simulation.save` and `restore` cover every array of `Data`, warm start included, so
that two runs from one saved state differ only by the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from bench.errors import UnknownNameError

__all__ = [
    "ITERATIONS",
    "LS_ITERATIONS",
    "MODELS",
    "ModelSpec",
    "Simulation",
    "load_model",
    "named_arrays",
]

ITERATIONS = 5
LS_ITERATIONS = 10
# Reaching a number of iterations that was chosen here is neither an overflow nor worth a line.
_CHOSEN_LIMITS = int(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)

_GYMNASIUM = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
_OWN = Path(__file__).parent / "models"


@dataclass(frozen=True)
class ModelSpec:
    """One MJCF file and the room that its constraints need.

    Attributes:
        path: The MJCF file.
        nconmax: Contacts per world that fit (the batch shares nworld times as many).
        njmax: Constraint rows per world that fit.
    """

    path: Path
    nconmax: int
    njmax: int


MODELS: dict[str, ModelSpec] = {
    "ant": ModelSpec(_GYMNASIUM / "ant.xml", nconmax=24, njmax=64),
    "half_cheetah": ModelSpec(_GYMNASIUM / "half_cheetah.xml", nconmax=24, njmax=64),
    "humanoid": ModelSpec(_GYMNASIUM / "humanoid.xml", nconmax=24, njmax=64),
    "walker2d": ModelSpec(_GYMNASIUM / "walker2d_v5.xml", nconmax=24, njmax=64),
    "grasp": ModelSpec(_OWN / "grasp.xml", nconmax=32, njmax=160),
}


@cache
def load_model(name: str) -> mujoco.MjModel:
    """Loads a model with the solver settings of this benchmark.

    Args:
        name: A key of `MODELS`.

    Raises:
        UnknownNameError: There is no such model.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, tuple(MODELS))
    with _no_warnings():
        model = mujoco.MjModel.from_xml_path(str(MODELS[name].path))
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model.opt.iterations = ITERATIONS
    model.opt.ls_iterations = LS_ITERATIONS
    return model


@contextmanager
def _no_warnings() -> Iterator[None]:
    # gymnasium's files use attributes that MuJoCo deprecates; its warning also leaves a log file.
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


class Simulation:
    """A batch of worlds of one model on Warp's CPU device.

    Args:
        name: A key of `MODELS`.
        worlds: Number of worlds.
        conditional: Whether the solver loop is a `wp.capture_while` that stops when all worlds
            have converged (MuJoCo Warp's default), or is unrolled to `ITERATIONS` iterations.

    Attributes:
        host: The `mujoco.MjModel`.
        model: The `mujoco_warp.Model`.
        data: The `mujoco_warp.Data`.
        worlds: Number of worlds.
    """

    def __init__(self, name: str, worlds: int, *, conditional: bool = True) -> None:
        self.host = load_model(name)
        spec = MODELS[name]
        self.worlds = worlds
        with wp.ScopedDevice("cpu"):
            self.model = mjw.put_model(self.host)
            self.model.opt.graph_conditional = conditional
            self.model.opt.warn_overflow &= ~_CHOSEN_LIMITS
            self.data = mjw.put_data(
                self.host,
                mujoco.MjData(self.host),
                nworld=worlds,
                nconmax=spec.nconmax,
                njmax=spec.njmax,
            )

    def step(self) -> None:
        """Advances every world by one time step of the model."""
        mjw.step(self.model, self.data)

    def overflowed(self) -> bool:
        """Whether a world ran out of contacts or constraint rows since its last reset."""
        return bool((self.data.overflow.numpy() & ~_CHOSEN_LIMITS).any())

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array of `Data` by name, as NumPy views of the live memory."""
        return dict(named_arrays(self.data))


def named_arrays(owner: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a dataclass and of those in it, as NumPy views of the live memory.

    Args:
        owner: A `mujoco_warp.Data`, or a dataclass like it.
        prefix: What goes before each name.

    Yields:
        Dotted name and array, without empty arrays.
    """
    for field in fields(owner):
        value = getattr(owner, field.name)
        if isinstance(value, wp.array):
            if value.size and value.ptr:
                yield prefix + field.name, value.numpy()
        elif is_dataclass(value):
            yield from named_arrays(value, f"{prefix}{field.name}.")
