"""Host randomness and clocks: refused in recordings, left alone elsewhere."""

import dataclasses
import random
import time

import numpy as np
import pytest
import torch

import kscheduler as ks

X = torch.arange(4.0)
GENERATOR = np.random.default_rng(0)


class Noisy:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    def step(self, x):
        return x * float(self.rng.normal())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * random.random(),
        lambda x: x * random.gauss(0.0, 1.0),
        lambda x: x * float(np.random.rand()),
        lambda x: x * float(GENERATOR.normal()),
        lambda x: x * time.perf_counter(),
        Noisy().step,
    ],
    ids=["random", "gauss", "numpy", "global_generator", "clock", "attribute_generator"],
)
def test_recording_refuses_host_randomness_and_clocks(function):
    with pytest.raises(ks.NotReplayable, match="which a replay would not"):
        ks.window(strategy="graph", streams=2)(function)(X)


def test_torch_randomness_is_replayed():
    draw = ks.window(strategy="graph", streams=2)(lambda x: x + torch.rand(4))
    torch.manual_seed(0)
    got = [draw(X) for _ in range(4)]
    torch.manual_seed(0)
    assert all(torch.equal(value, X + torch.rand(4)) for value in got)
    assert not torch.equal(got[2], got[3])


MINE = torch.Generator()
STATE = torch.get_rng_state()


def _forked(x):
    with torch.random.fork_rng():
        return x + torch.rand(4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.manual_seed(3), x + torch.rand(4))[1],
        lambda x: (torch.default_generator.manual_seed(3), x + torch.rand(4))[1],
        lambda x: (torch.set_rng_state(STATE), x + torch.rand(4))[1],
        lambda x: (MINE.manual_seed(3), x + torch.rand(4, generator=MINE))[1],
        lambda x: x + torch.rand(4, generator=MINE.set_state(STATE)),
        lambda x: x + torch.rand(4, generator=torch.Generator().manual_seed(3)),
        lambda x: x + torch.rand(4, generator=torch.Generator()),
        _forked,
    ],
    ids=["seed", "default", "state", "own_seed", "own_state", "new_seeded", "new", "fork"],
)
def test_recording_refuses_to_seed(function):
    with pytest.raises(ks.NotReplayable, match="which a replay would not"):
        ks.window(strategy="graph", streams=2)(function)(X)


@pytest.mark.parametrize("as_argument", [True, False])
def test_a_generator_from_outside_is_drawn_from_again(as_argument):
    def function(x, generator=MINE):
        return x + torch.rand(4, generator=generator) + torch.rand(4, generator=generator)

    draw = ks.window(strategy="graph", streams=2)(function)
    arguments = (X, MINE) if as_argument else (X,)
    MINE.manual_seed(1)
    got = [draw(*arguments) for _ in range(5)]
    MINE.manual_seed(1)
    assert all(torch.equal(value, function(*arguments)) for value in got)


def test_auto_keeps_host_randomness_in_program_order():
    draw = ks.window(strategy="auto", streams=2)(lambda x: x * random.random())
    random.seed(3)
    got = [draw(X) for _ in range(20)]
    random.seed(3)
    assert all(torch.equal(value, X * random.random()) for value in got)
    assert any("graph was left out" in note for note in draw.report.notes)


def test_scalar_that_changes_on_every_call_ends_as_a_stream():
    scale = ks.window(strategy="graph", streams=2)(lambda x, factor: x * factor)
    for step in range(120):
        assert torch.equal(scale(X, float(step)), X * step)
    assert any("runs as strategy='stream'" in note for note in scale.report.notes)


def test_verify_says_that_a_function_depends_on_the_host():
    report = ks.verify(lambda x: x * random.random(), X)
    assert not report.equal
    assert "depends on the host" in report.notes[0]


@dataclasses.dataclass
class Doubled:
    value: torch.Tensor

    def __post_init__(self):
        self.value = self.value * 2


def test_dataclass_results_are_initialised_once():
    step = ks.window(strategy="graph", streams=2)(lambda x: Doubled(x + 1))
    for count in range(3):
        assert torch.equal(step(X + count).value, (X + count + 1) * 2)
