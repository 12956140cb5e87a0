"""Counts and times of a step: launches, ops and host reads by part; steps per second."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mujoco.rollout
import numpy as np
import torch
import warp as wp
from torch.utils._python_dispatch import TorchDispatchMode

from fighter_env import body
from fighter_env.env import FighterEnv

__all__ = ["PARTS", "count_step", "rollout_speed", "speed"]

# Part of the table, and the method of FighterEnv that it is.
PARTS = {
    "control": "_excite",
    "opponent, pushes": "_plan",
    "physics": "_simulate",
    "sight, scoring, tasks": "_judge",
    "ends": "_ends",
    "reward": "_reward",
    "counters": "_count",
    "restart": "_restart",
    "observation": "_observe",
}
_HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
_VIEWS = ("view", "slice", "select", "expand", "unsqueeze", "squeeze", "unbind", "alias", "permute")


class _OpCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.part = ["other"]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not any(name == view or name == f"_{view}" for view in _VIEWS):
            self.ops[self.part[-1]] += 1
        if name in _HOST_READS:
            self.reads[self.part[-1]] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _counted(env: FighterEnv, counter: _OpCounter, launches: Counter[str]) -> Iterator[None]:
    """Counts while inside; everything it replaces is put back."""
    launch, to_numpy = wp.launch, wp.array.numpy
    wrapped = {}

    def count_launch(*args: Any, **kwargs: Any) -> Any:
        launches[counter.part[-1]] += 1
        return launch(*args, **kwargs)

    def count_numpy(self: Any) -> Any:
        counter.reads[counter.part[-1]] += 1
        return to_numpy(self)

    def wrap(part: str, method: Any) -> Any:
        def call(*args: Any) -> Any:
            counter.part.append(part)
            try:
                return method(*args)
            finally:
                counter.part.pop()

        return call

    for part, name in PARTS.items():
        wrapped[name] = getattr(env, name)
        setattr(env, name, wrap(part, wrapped[name]))
    wp.launch, wp.array.numpy = count_launch, count_numpy
    try:
        with counter:
            yield
    finally:
        wp.launch, wp.array.numpy = launch, to_numpy
        for name in wrapped:
            delattr(env, name)


def count_step(env: FighterEnv) -> dict[str, dict[str, int]]:
    """Warp launches, torch ops (without views) and host reads of one step, by part.

    Args:
        env: An environment; one step is made before, to load what loads lazily.
    """
    action = torch.zeros(env.action_space.shape, device=env.device)
    env.reset()
    env.step(action)
    counter, launches = _OpCounter(), Counter()
    with _counted(env, counter, launches):
        env.step(action)
    return {
        part: {
            "launches": launches[part],
            "torch_ops": counter.ops[part],
            "host_reads": counter.reads[part],
        }
        for part in (*PARTS, "other")
    }


def speed(env: FighterEnv, steps: int, warmup: int = 5) -> float:
    """Environment steps per second (worlds times steps) under the posture controller."""
    action = torch.zeros(env.action_space.shape, device=env.device)
    env.reset(seed=0)
    for _ in range(warmup):
        env.step(action)
    _finish(env)
    start = time.perf_counter()
    for _ in range(steps):
        env.step(action)
    _finish(env)
    return env.num_envs * steps / (time.perf_counter() - start)


def rollout_speed(num_envs: int, substeps: int, steps: int, threads: int) -> float:
    """Control steps per second of a bare `mujoco.rollout` of the same model, without control."""
    model = body.build_model()
    start_state = np.zeros((num_envs, 1 + model.nq + model.nv + model.na))
    start_state[:, 1 : 1 + model.nq] = body.guard_pose()
    datas = [mujoco.MjData(model) for _ in range(threads)]
    control = np.zeros((num_envs, substeps, model.nu))
    with mujoco.rollout.Rollout(nthread=threads) as pool:
        pool.rollout(model, datas, start_state, control)
        start = time.perf_counter()
        state = start_state
        for _ in range(steps):
            out, _ = pool.rollout(model, datas, state, control)
            state = np.ascontiguousarray(out[:, -1])
        return num_envs * steps / (time.perf_counter() - start)


def _finish(env: FighterEnv) -> None:
    if env.device.type == "cuda":
        torch.cuda.synchronize(env.device)
