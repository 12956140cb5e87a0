"""Arm kinematics: both gloves where they are asked to be."""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from fighter_env import anatomy, body
from fighter_env.arm_ik import ARM_HINGES, ArmSolver
from fighter_env.env import FighterEnv
from fighter_env.tasks import GUARDS

CPU = torch.device("cpu")


def glove_places(angles, torso):
    """Glove centres by MuJoCo, for arm angles (2, 4) and a torso pose that it then gives back."""
    model = body.build_model()
    data = mujoco.MjData(model)
    data.qpos[:] = torso
    for name, value in zip(ARM_HINGES, np.ravel(angles), strict=True):
        data.joint(name).qpos = value
    mujoco.mj_kinematics(model, data)
    places = np.stack([data.site(f"{side}_glove").xpos for side in ("left", "right")])
    return places, data.body("torso").xpos.copy(), data.body("torso").xquat.copy()


def test_fits_what_the_arms_can_reach_to_under_a_centimetre():
    rng = np.random.default_rng(0)
    limits = {hinge.name: (hinge.low, hinge.high) for hinge in anatomy.HINGES}
    poses, targets, positions, quats = [], [], [], []
    for _ in range(50):
        qpos = np.array(body.guard_pose())
        qpos[5:9] = rng.normal(size=4)
        qpos[5:9] /= np.linalg.norm(qpos[5:9])
        angles = [
            np.clip(body.GUARD[name] + rng.uniform(-0.6, 0.6), *limits[name]) for name in ARM_HINGES
        ]
        places, position, quat = glove_places(angles, qpos)
        poses.append(qpos)
        targets.append(places)
        positions.append(position)
        quats.append(quat)

    def batch(values):
        return torch.tensor(np.array(values), dtype=torch.float32)

    solver = ArmSolver(50, CPU)
    everyone = torch.ones(50, dtype=torch.bool)
    solver.fit(everyone, batch(positions), batch(quats), batch(targets))
    assert float(solver.error.max()) < 0.01
    for index in range(0, 50, 10):  # MuJoCo agrees about where the fitted angles put the gloves
        places, *_ = glove_places(solver.angles[index].numpy(), poses[index])
        assert np.abs(places - targets[index]).max() < 0.01
    low = torch.tensor([limits[name][0] for name in ARM_HINGES])
    high = torch.tensor([limits[name][1] for name in ARM_HINGES])
    flat = solver.angles.flatten(1)
    assert ((flat >= low - 1e-6) & (flat <= high + 1e-6)).all()


def test_worlds_outside_the_mask_keep_their_angles():
    solver = ArmSolver(2, CPU)
    before = solver.angles.clone()
    place = torch.tensor([[[0.3, 0.1, 1.5], [0.3, -0.1, 1.5]]]).repeat(2, 1, 1)
    pos, quat = torch.tensor([[0.0, 0.0, 0.96]]).repeat(2, 1), torch.tensor([[1.0, 0, 0, 0]])
    solver.fit(torch.tensor([False, True]), pos, quat.repeat(2, 1), place)
    assert torch.equal(solver.angles[0], before[0])
    assert not torch.equal(solver.angles[1], before[1])


def test_unreachable_target_gives_a_straight_arm_and_says_how_far_it_misses():
    solver = ArmSolver(1, CPU)
    place = torch.tensor([[[3.0, 0.2, 1.4], [3.0, -0.2, 1.4]]])
    solver.fit(
        torch.ones(1, dtype=torch.bool),
        torch.tensor([[0.0, 0.0, 0.96]]),
        torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        place,
    )
    assert torch.isfinite(solver.angles).all()
    assert 2.0 < float(solver.error.min()) < 3.0


def test_each_press_fits_each_named_guard_from_the_stance(single):
    config = single("block")
    env = FighterEnv(64, "cpu", "mujoco", config)
    env.reset(seed=0)
    env.tasks.timer.fill_(0.0)
    pressed = torch.zeros(64, dtype=torch.bool)
    for _ in range(2):
        env.step(torch.zeros(64, 25))
        pressed |= env.tasks.cue
    assert pressed.all()
    asked = {tuple(row.flatten().tolist()) for row in env.tasks.guard}
    assert len(asked) == len(GUARDS)
    assert float(env.tasks.solver.error.max()) < 0.01
    env.close()
