"""The body: its size and weight, and that it stands."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from fighter_env import anatomy, body, layout
from fighter_env.posture import PostureController, muscle_gain

CONTROL_STEP, SUBSTEPS = 0.02, 5


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return body.build_model()


def test_body_has_25_hinges_and_an_antagonist_pair_of_muscles_on_each(model):
    assert len(anatomy.HINGES) == 25
    assert model.nu == model.na == 50
    for index, hinge in enumerate(anatomy.HINGES):
        joint = model.joint(hinge.name).id
        assert model.actuator_trnid[2 * index, 0] == model.actuator_trnid[2 * index + 1, 0] == joint
        assert model.actuator_gear[2 * index : 2 * index + 2, 0].tolist() == [1.0, -1.0]


def test_body_weighs_75_kg_and_two_gloves(model):
    own = model.body("pelvis").id
    assert model.body_mass[own:].sum() == pytest.approx(75.0 + 2 * 0.34, abs=0.1)


def test_body_stands_1_75_m_tall(model):
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    head = model.geom("head").id
    soles = data.site("left_sole").xpos[2]
    assert data.geom_xpos[head, 2] + model.geom_size[head, 0] - soles == pytest.approx(
        1.75, abs=0.02
    )


def test_guard_puts_both_feet_flat_on_the_floor(model):
    data = mujoco.MjData(model)
    data.qpos[:] = body.guard_pose()
    mujoco.mj_forward(model, data)
    for side in ("left", "right"):
        assert data.site(f"{side}_sole").xpos[2] == pytest.approx(0.0, abs=1e-3)
        assert data.body(f"{side}_foot").xmat[8] == pytest.approx(1.0, abs=1e-4)


def test_layout_agrees_with_the_model(model):
    for index, hinge in enumerate(anatomy.HINGES):
        joint = model.joint(hinge.name)
        assert joint.qposadr[0] == layout.HINGE_QPOS.start + index
        assert joint.dofadr[0] == layout.HINGE_QVEL.start + index
    assert model.joint("root").qposadr[0] == layout.ROOT_QPOS.start
    assert (model.nq, model.nv, model.nu) == (layout.NQ, layout.NV, layout.NU)
    for name, place in layout.SENSOR.items():
        sensor = model.sensor(name)
        assert (sensor.adr[0], sensor.dim[0]) == (place.start, place.stop - place.start)
    for index, name in enumerate(body.MOCAP):
        assert model.body(name).mocapid[0] == index


def test_muscle_gain_is_that_of_mujoco(model):
    lengths, speeds = np.meshgrid(np.linspace(0.4, 1.7, 40), np.linspace(-1.2, 1.2, 41))
    ours = muscle_gain(
        torch.tensor(lengths, dtype=torch.float32), torch.tensor(speeds, dtype=torch.float32)
    )
    prm = model.actuator_gainprm[0].copy()
    prm[0], prm[1], prm[2] = 0.0, 1.0, 1.0  # length and speed are given normalised
    theirs = [
        -mujoco.mju_muscleGain(length, speed * prm[6], np.array([0.0, 1.0]), 1.0, prm[:9])
        for length, speed in zip(lengths.ravel(), speeds.ravel(), strict=True)
    ]
    np.testing.assert_allclose(ours.numpy().ravel(), theirs, atol=2e-5)


def stand(model, *, noise=0.0, seed=0, push=(0.0, 0.0), seconds=5.0):
    """Seconds until the fighter falls under the posture controller, or `seconds`."""
    data = mujoco.MjData(model)
    data.qpos[:] = body.guard_pose()
    draw = np.random.default_rng(seed).uniform(-noise, noise, 25)
    data.qpos[layout.HINGE_QPOS] += draw
    mujoco.mj_forward(model, data)
    controller = PostureController("cpu")
    targets = torch.tensor(body.guard_pose()[layout.HINGE_QPOS])[None]
    torso = model.body("torso").id

    def batch(values):
        return torch.tensor(values, dtype=torch.float32)[None]

    for step in range(round(seconds / CONTROL_STEP)):
        data.ctrl[:] = controller.excite(
            targets, batch(data.qpos), batch(data.qvel), batch(data.sensordata)
        )[0].numpy()
        pushed = 50 <= step < 55
        data.xfrc_applied[torso, :2] = np.array(push) / 0.1 if pushed else 0.0
        for _ in range(SUBSTEPS):
            mujoco.mj_step2(model, data)
            mujoco.mj_step1(model, data)
        if data.site("head_centre").xpos[2] < 1.0:
            return step * CONTROL_STEP
    return seconds


@pytest.mark.parametrize("seed", range(4))
def test_stands_5_s_from_a_noisy_start(model, seed):
    assert stand(model, noise=0.05, seed=seed) == 5.0


@pytest.mark.parametrize("push", [(-20.0, 0.0), (20.0, 0.0), (0.0, 20.0), (0.0, -20.0)])
def test_stands_5_s_after_a_push_of_20_newton_seconds(model, push):
    assert stand(model, push=push) == 5.0


def test_falls_without_muscles(model):
    data = mujoco.MjData(model)
    data.qpos[:] = body.guard_pose()
    for _ in range(500):
        mujoco.mj_step(model, data)
    assert data.site("head_centre").xpos[2] < 1.0
