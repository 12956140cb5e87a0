"""The tasks: they step, start again bit for bit, read nothing on the host, and reset by mask."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.cases import CASES, Program, find_case
from bench.envs import TASKS, Outputs
from bench.errors import UnknownNameError, UnusableOptionError
from bench.measure import unequal_arrays

WORLDS = 4
NEEDS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@pytest.fixture(scope="module")
def programs():
    """One program per case, built when first asked for."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = Program(find_case(name), WORLDS, steps=20)
        built[name].restore()
        return built[name]

    return get


def run(program, steps):
    outputs = None
    for index in range(steps):
        program.load_action(index)
        outputs = program.step()
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_every_case_steps_and_starts_again_bit_for_bit(programs, name):
    program = programs(name)
    start = program.snapshot()
    first = program.snapshot(run(program, 8))
    assert unequal_arrays(start, first)
    program.restore()
    assert unequal_arrays(start, program.snapshot()) == []
    assert unequal_arrays(first, program.snapshot(run(program, 8))) == []
    assert np.isfinite(first["qpos"]).all()
    assert not program.simulation.overflowed()


class HostReads(TorchDispatchMode):
    """Remembers the ops that make the host wait for a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if NEEDS_VALUES & set(func.tags):
            self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_the_host_read_detector_sees_a_read():
    with HostReads() as reads:
        torch.ones(3).sum().item()
        torch.ones(3)[torch.ones(3) > 0]
    assert reads.seen == ["aten::_local_scalar_dense", "aten::index"]


@pytest.mark.parametrize("task", TASKS)
def test_environment_step_reads_nothing_on_the_host(programs, task):
    program = programs(f"env/{task}")
    program.load_action(0)
    with HostReads() as reads:
        program.step()
    assert reads.seen == []


@pytest.mark.parametrize("task", TASKS)
def test_outputs_have_the_documented_shapes(programs, task):
    outputs = run(programs(f"env/{task}"), 1)
    assert isinstance(outputs, Outputs)
    assert outputs.observation.shape == outputs.final_observation.shape
    assert outputs.observation.shape[0] == WORLDS
    assert outputs.observation.dtype == outputs.reward.dtype == torch.float32
    assert outputs.reward.shape == (WORLDS,)
    assert outputs.terminated.dtype == outputs.truncated.dtype == torch.bool


@pytest.mark.parametrize(
    ("task", "size"), [("ant", 105), ("half_cheetah", 17), ("humanoid", 348), ("walker2d", 17)]
)
def test_observation_has_the_size_of_gymnasium(programs, task, size):
    assert run(programs(f"env/{task}"), 1).observation.shape == (WORLDS, size)


@pytest.mark.parametrize("task", TASKS)
def test_masked_reset_never_changes_neighbours(programs, task):
    program = programs(f"env/{task}")
    run(program, 3)
    before = program.snapshot()
    mask = torch.tensor([False, True, False, False])
    program.task.reset_worlds(mask)
    after = program.snapshot()
    changed = unequal_arrays(before, after)
    assert {"qpos", "qvel", "time"} <= set(changed)
    for name in changed:
        rows = [i for i in range(WORLDS) if not np.array_equal(before[name][i], after[name][i])]
        assert rows == [1], name


@pytest.mark.parametrize("task", TASKS)
def test_time_limit_truncates_and_restarts_the_oldest_world(programs, task):
    program = programs(f"env/{task}")
    world = WORLDS - 1
    for index in range(program.task.first_end_steps):
        assert int(program.task.episode[world]) == 0
        program.load_action(index)
        outputs = program.step()
    assert outputs.truncated.tolist() == [False, False, False, True]
    assert not outputs.terminated[world]
    assert int(program.task.episode[world]) == 1
    assert int(program.task.age[world]) == 0
    assert float(program.task.time[world]) == 0.0
    same = (outputs.observation == outputs.final_observation).all(dim=1)
    assert same.tolist() == [True, True, True, False]


def test_noise_depends_on_seed_world_episode_and_draw():
    def draws(seed):
        task = Program(find_case("env/half_cheetah"), 8, seed=seed).task
        episodes = []
        for _ in range(5):
            episodes.append(task.uniform(4, 0))
            task.episode.add_(1)
        return torch.cat(episodes)

    noise = draws(0)
    assert torch.equal(noise, draws(0))
    assert len({tuple(row) for row in noise.tolist()}) == 40
    assert not torch.equal(noise, draws(1))
    assert 0.0 <= float(noise.min()) < float(noise.max()) < 1.0


def test_noise_is_spread_evenly():
    task = Program(find_case("env/half_cheetah"), 2).task
    uniform, normal = task.uniform(20_000, 0), task.normal(20_000, 1)
    counts = torch.histc(uniform, bins=10, min=0.0, max=1.0) / uniform.numel()
    assert torch.allclose(counts, torch.full((10,), 0.1), atol=0.01)
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1.0) < 0.02


def test_humanoid_that_fell_is_terminated_and_stands_again(programs):
    program = programs("env/humanoid")
    program.task.qpos[2, 2] = 0.5
    outputs = run(program, 1)
    assert outputs.terminated.tolist() == [False, False, True, False]
    assert float(program.task.qpos[2, 2]) == pytest.approx(1.4, abs=0.02)
    assert float(outputs.final_observation[2, 0]) < 1.0
    assert float(outputs.observation[2, 0]) > 1.0


def test_world_with_nan_is_terminated_and_leaves_the_others_alone(programs):
    program = programs("env/ant")
    healthy = program.snapshot(run(program, 2))
    program.restore()
    program.load_action(0)
    program.step()
    program.task.qvel[1] = float("nan")
    program.load_action(1)
    outputs = program.step()
    assert bool(outputs.terminated[1])
    others = [0, 2, 3]
    after = program.snapshot(outputs)
    assert np.array_equal(healthy["qpos"][others], after["qpos"][others])
    program.load_action(2)
    program.step()
    assert np.isfinite(program.snapshot()["qpos"]).all()


def test_ball_that_reached_its_target_scores_and_gets_another(programs):
    program = programs("env/grasp")
    task = program.task
    task.target[0].copy_(task.qpos[0, 0:3])
    target = task.target.clone()
    reward = run(program, 1).reward
    assert task.hits.tolist() == [1, 0, 0, 0]
    assert float(reward[0]) > task.hit_reward / 2 > float(reward[1:].max())
    moved = (task.target != target).any(dim=1)
    assert moved.tolist() == [True, False, False, False]


def test_unknown_case_lists_what_exists():
    with pytest.raises(UnknownNameError, match=r"no case 'physics/dog'; known: physics/ant"):
        find_case("physics/dog")


def test_zero_worlds_are_refused():
    with pytest.raises(UnusableOptionError, match="worlds must be at least 1, not 0"):
        Program(find_case("physics/ant"), 0)
