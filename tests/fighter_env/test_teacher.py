"""The teacher gives leg targets; the baselines act; pictures are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fighter_env import FighterConfig, FighterEnv, anatomy, layout
from fighter_env.baselines import BASELINES, make_baseline
from fighter_env.errors import TeacherError
from fighter_env.teacher import LEG_COLUMNS, Teacher, gait


def test_shipped_teacher_gives_leg_actions_beside_the_policy(single):
    env = FighterEnv(3, "cpu", "mujoco", single("walk"))
    observations, _ = env.reset(seed=0)
    teacher = Teacher.load()
    legs = teacher(observations["teacher"])
    assert legs.shape == (3, 12)
    assert legs.dtype == torch.float32
    assert float(legs.abs().max()) <= 1.0
    action = torch.zeros(3, 25)
    action[:, LEG_COLUMNS] = legs
    env.step(action)
    env.close()


def test_shipped_teacher_is_close_to_the_gait_that_it_names():
    teacher = Teacher.load()
    assert "procedural" in teacher.source
    phase = torch.linspace(0.0, 2.0 * math.pi, 100)
    command = torch.tensor([[0.7, 0.0, 0.0]]).repeat(100, 1)
    observation = torch.zeros(100, layout.observation_size("teacher"))
    observation[:, :2] = torch.stack((torch.cos(phase), torch.sin(phase)), 1)
    observation[:, 2:5] = command
    reach = {hinge.name: hinge.reach for hinge in anatomy.HINGES}
    scale = torch.tensor([reach[name] for name in anatomy.LEG_HINGES])
    wanted = (gait(phase, command) / scale).clamp(-1.0, 1.0)
    assert float((teacher(observation) - wanted).abs().max()) < 0.15


def test_gait_swings_one_leg_at_a_time_and_stands_at_rest():
    phase = torch.linspace(0.0, 2.0 * math.pi, 60)
    legs = gait(phase, torch.tensor([[0.7, 0.0, 0.0]]).repeat(60, 1))
    knees = [anatomy.LEG_HINGES.index(f"{side}_knee") for side in ("left", "right")]
    assert float((legs[:, knees[0]] * legs[:, knees[1]]).abs().max()) < 1e-6
    assert float(legs[:, knees].max()) > 0.3
    assert torch.equal(gait(phase, torch.zeros(60, 3)), torch.zeros(60, 12))


def test_teacher_of_other_hinges_is_refused(tmp_path):
    path = tmp_path / "teacher.npz"
    Teacher().save(path)
    with np.load(path) as stored:
        parts = dict(stored)
    parts["hinges"] = np.array(["left_wing"])
    np.savez(path, **parts)
    with pytest.raises(TeacherError, match="left_wing"):
        Teacher.load(path)
    with pytest.raises(TeacherError, match="cannot be read"):
        Teacher.load(tmp_path / "none.npz")


@pytest.mark.parametrize("name", BASELINES)
def test_baseline_acts_within_the_space(name):
    env = FighterEnv(2, "cpu", "mujoco")
    observations, _ = env.reset(seed=0)
    action = make_baseline(name, env)(observations)
    assert env.action_space.contains(action.numpy())
    env.step(action)
    env.close()


def test_guard_baseline_meets_cues(single):
    env = FighterEnv(8, "cpu", "mujoco", single("block"))
    act = make_baseline("guard", env)
    observations, _ = env.reset(seed=0)
    for _ in range(150):
        observations, *_ = env.step(act(observations))
    cues, met = env.counters.counts[:, 7].sum(), env.counters.counts[:, 8].sum()
    assert float(cues) >= 8
    assert float(met) / float(cues) > 0.5
    env.close()


def test_render_gives_a_picture_of_each_world():
    env = FighterEnv(2, "cpu", "mujoco", FighterConfig(), render_mode="rgb_array")
    env.reset(seed=0)
    try:
        pictures = env.render()
    except Exception as error:
        if "OpenGL" not in str(error):
            raise
        pytest.skip(f"no OpenGL renderer: {error}")
    assert len(pictures) == 2
    assert pictures[0].shape == (540, 960, 3)
    assert pictures[0].std() > 5.0
    assert not np.array_equal(*pictures)
    env.close()
