"""Replaying recorded torch ops against calling them: the same values, and what each costs.

pytest bench/micro/test_torch_replay.py --benchmark-only
"""

from __future__ import annotations

import pytest
import torch

from kscheduler.intercept.torch_ops import TorchInterceptor
from kscheduler.intercept.torch_replay import TorchTape

WORLDS = 64


class Recorder:
    """A sink that puts every op on a tape."""

    def __init__(self, tape: TorchTape) -> None:
        self.torch_op = tape.op

    def wants_ops(self) -> bool:
        return True

    def fence(self, reason: str) -> None:
        pass


def reward(position, velocity, action):
    """About sixty small ops, as a locomotion reward has them."""
    up = position[:, 2]
    quaternion = position[:, 3:7]
    norm = quaternion.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
    w, x, y, z = (quaternion / norm).unbind(dim=1)
    upright = 1 - 2 * (x * x + y * y)
    heading = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    forward = velocity[:, 0] * torch.cos(heading) + velocity[:, 1] * torch.sin(heading)
    tracking = torch.exp(-(forward - 1).square() / 0.25)
    effort = action.square().sum(dim=1)
    smooth = (action[:, 1:] - action[:, :-1]).abs().mean(dim=1)
    limits = (position[:, 7:].abs() - 1).clamp(min=0).sum(dim=1)
    spin = velocity[:, 3:6].square().sum(dim=1)
    alive = (up > 0.3) & (upright > 0.2)
    total = 2 * tracking + 0.5 * upright - 0.01 * effort - 0.05 * smooth - limits - 0.01 * spin
    total = torch.where(alive, total, total.new_full((), -1.0))
    observation = torch.cat([position[:, 2:], velocity * 0.1, action], dim=1).clamp(-5, 5)
    return observation, total, ~alive


def arguments():
    torch.manual_seed(0)
    return torch.randn(WORLDS, 20), torch.randn(WORLDS, 19), torch.randn(WORLDS, 13)


def recorded():
    tape, inputs = TorchTape(), arguments()
    tape.bind_inputs(inputs)
    with TorchInterceptor(Recorder(tape)) as interceptor:
        interceptor.arm()
        result = reward(*inputs)

    def replay(*inputs):
        values = tape.begin_replay(inputs)
        run = tape.run
        for index in range(len(tape.nodes)):
            run(values, index)
        return tape.outputs(values, result)

    return replay


@pytest.mark.parametrize("how", ["eager", "replay"])
def test_reward(benchmark, how):
    function = reward if how == "eager" else recorded()
    inputs = arguments()
    for mine, theirs in zip(function(*inputs), reward(*inputs), strict=True):
        assert torch.equal(mine, theirs)
    benchmark.pedantic(function, inputs, rounds=50, iterations=20, warmup_rounds=3)
