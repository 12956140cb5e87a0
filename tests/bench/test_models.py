"""The models: our own hand is physically sensible, and no model runs out of constraint room."""

import mujoco
import numpy as np
import pytest
import warp as wp

from bench.errors import UnknownNameError
from bench.models import ITERATIONS, MODELS, Simulation, load_model

PALM = slice(0, 3)
KNUCKLES = slice(3, None, 2)
TIPS = slice(4, None, 2)


def drive(model, data, steps, *, height, knuckle, tip):
    data.ctrl[PALM] = (0.0, 0.0, height)
    data.ctrl[KNUCKLES] = knuckle
    data.ctrl[TIPS] = tip
    for _ in range(steps):
        mujoco.mj_step(model, data)


@pytest.fixture
def hand():
    model = load_model("grasp")
    data = mujoco.MjData(model)
    drive(model, data, 200, height=-0.05, knuckle=-0.2, tip=0.0)
    return model, data


def test_hand_has_four_fingers_of_two_joints(hand):
    model, _ = hand
    hinges = np.count_nonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE)
    assert hinges == 8
    assert model.nu == 11


def test_closed_fingers_carry_the_ball_and_open_ones_drop_it(hand):
    model, data = hand
    assert data.body("ball").xpos[2] == pytest.approx(0.045, abs=0.002)

    drive(model, data, 200, height=-0.05, knuckle=0.5, tip=0.5)
    touching = {tuple(sorted(pair)) for pair in data.contact.geom}
    assert len(touching) >= 4
    drive(model, data, 400, height=0.2, knuckle=0.5, tip=0.5)
    held = data.body("ball").xpos[2]
    assert held > 0.25
    drive(model, data, 200, height=0.2, knuckle=0.5, tip=0.5)
    assert data.body("ball").xpos[2] == pytest.approx(held, abs=0.005)

    drive(model, data, 300, height=0.2, knuckle=-0.5, tip=0.0)
    assert data.body("ball").xpos[2] == pytest.approx(0.045, abs=0.005)


def test_resting_hand_comes_to_rest():
    model = load_model("grasp")
    data = mujoco.MjData(model)
    drive(model, data, 400, height=0.0, knuckle=0.0, tip=0.0)
    assert np.abs(data.qvel).max() < 1e-3
    assert data.ncon == 1


@pytest.mark.parametrize("name", MODELS)
def test_solver_settings_replace_those_of_the_file(name):
    option = load_model(name).opt
    assert option.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert option.iterations == ITERATIONS


def test_loading_a_deprecated_file_warns_nobody_and_leaves_no_log(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    load_model.cache_clear()
    load_model("half_cheetah")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_unknown_model_lists_what_exists():
    with pytest.raises(UnknownNameError, match=r"no model 'dog'; known: ant, half_cheetah"):
        load_model("dog")


def test_overflow_is_seen():
    simulation = Simulation("half_cheetah", 2)
    simulation.step()
    assert not simulation.overflowed()
    wp.copy(simulation.data.overflow, wp.array([0, 1], dtype=int, device="cpu"))
    assert simulation.overflowed()


def test_loop_mode_reaches_the_solver():
    assert Simulation("half_cheetah", 1).model.opt.graph_conditional
    assert not Simulation("half_cheetah", 1, conditional=False).model.opt.graph_conditional
