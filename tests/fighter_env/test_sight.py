"""Sight: what the rays meet, when it arrives, what is remembered."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from fighter_env import FighterConfig, FighterEnv, layout
from fighter_env.config import EpisodeConfig, OpponentConfig, SightConfig
from fighter_env.sight import KEYPOINTS, Sight

BLOCKERS = ("left_glove", "right_glove", "left_forearm", "right_forearm")
NAMES = list(KEYPOINTS)


@pytest.fixture
def env(single):
    """Two worlds with a calm opponent, and eyes that look all round."""
    config = single(
        "opponent",
        opponent=OpponentConfig(rest=(9.0, 9.0)),
        sight=SightConfig(field_of_view=360.0),
        evaluation=True,
    )
    made = FighterEnv(2, "cpu", "mujoco", config)
    made.reset(seed=0)
    yield made
    made.close()


def look(env, sensors=None):
    """Visible shares for given sensor values, shape (N, keypoints)."""
    physics = env.physics
    sensors = physics.sensors if sensors is None else sensors
    env.sight.look(sensors, physics.mocap_pos, physics.mocap_quat)
    return env.sight.share.clone()


def hide_arms(sensors):
    """Sensor values with our forearms far below the floor."""
    moved = sensors.clone()
    for side in ("left", "right"):
        moved[:, layout.SENSOR[f"{side}_forearm_pos"]] = torch.tensor([0.0, 0.0, -50.0])
    return moved


def test_there_are_at_least_15_keypoints():
    assert len(NAMES) >= 15


def test_shares_are_those_of_mujoco_rays(env):
    """Every ray of every keypoint, cast again by mj_ray against gloves and forearms alone."""
    model, data = env.physics.model, mujoco.MjData(env.physics.model)
    data.qpos[:] = env.physics.qpos[0].double().numpy()
    data.mocap_pos[:] = env.physics.mocap_pos[0].numpy()
    data.mocap_quat[:] = env.physics.mocap_quat[0].numpy()
    mujoco.mj_forward(model, data)
    model = model.__copy__()
    model.geom_group[:] = 0
    for name in BLOCKERS:
        model.geom_group[model.geom(name).id] = 5
    groups = np.array([0, 0, 0, 0, 0, 1], np.uint8)
    eye, shares = data.site("eye").xpos, []
    for target in look_targets(env):
        line = (target - eye) / np.linalg.norm(target - eye)
        side = np.cross(line, [0.0, 0.0, 1.0])
        side /= np.linalg.norm(side)
        above = np.cross(side, line)
        rays, golden = env.config.sight.rays, np.pi * (3.0 - np.sqrt(5.0))
        radius = env.config.sight.disc * np.sqrt((np.arange(rays) + 0.5) / rays)
        open_rays = 0
        for r, angle in zip(radius, golden * np.arange(rays), strict=True):
            end = target + r * (np.cos(angle) * side + np.sin(angle) * above)
            hit = mujoco.mj_ray(
                model, data, eye, end - eye, groups, 1, -1, np.zeros(1, np.int32), np.zeros(3)
            )
            open_rays += not 0.0 <= hit <= 1.0
        shares.append(open_rays / rays)
    found = look(env)[0].numpy()
    assert 0.0 < np.mean(shares) < 1.0
    np.testing.assert_allclose(found, shares, atol=1e-6)


def look_targets(env):
    look(env)
    return env.sight.place[0].double().numpy()


def test_glove_before_the_eye_hides_exactly_the_points_behind_it(env):
    sensors = hide_arms(env.physics.sensors)
    sensors[:, layout.SENSOR["head_quat"]] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    clear = look(env, sensors)
    assert (clear == 1.0).all()
    eye = layout.sensor(sensors, "eye_pos")[0]
    for hidden, name in enumerate(NAMES):
        target = env.sight.place[0, hidden]
        before = sensors.clone()
        line = (target - eye) / (target - eye).norm()
        # The forearm lies along the line of sight, so that the glove is the whole obstacle.
        before[:, layout.SENSOR["left_forearm_pos"]] = eye + 0.16 * line
        before[:, layout.SENSOR["left_forearm_quat"]] = turn_down_to(-line)
        shares = look(env, before)[0]
        assert shares[hidden] == 0.0, name
        for other, share in enumerate(shares.tolist()):
            angle = torch.rad2deg(
                torch.acos(torch.dot(line, unit(env.sight.place[0, other] - eye)).clamp(-1, 1))
            )
            if angle > 80.0:
                assert share == 1.0, (name, NAMES[other])


def unit(vector):
    return vector / vector.norm()


def turn_down_to(direction):
    """A quaternion that turns (0, 0, -1) to `direction`."""
    down = torch.tensor([0.0, 0.0, -1.0])
    axis = torch.linalg.cross(down, direction)
    quat = torch.cat(((1.0 + torch.dot(down, direction))[None], axis))
    return quat / quat.norm()


def test_points_outside_the_view_cone_are_hidden(env):
    sensors = hide_arms(env.physics.sensors)
    sensors[:, layout.SENSOR["head_quat"]] = torch.tensor([0.0, 0.0, 0.0, 1.0])  # looks back
    assert (look(env, sensors) == 1.0).all()
    narrow = Sight(2, torch.device("cpu"), SightConfig(), 0.02)
    narrow.look(sensors, env.physics.mocap_pos, env.physics.mocap_quat)
    assert (narrow.share == 0.0).all()


def test_a_point_is_seen_a_tenth_of_a_second_late_to_the_step(env):
    seen = []
    for _ in range(8):
        observations, *_ = env.step(torch.zeros(2, 25))
        seen.append(observations["policy"][0, layout.observation_slices("policy")["sight_share"]])
    steps = env.sight.delay_steps
    assert steps == 5
    assert all((share == 0.0).all() for share in seen[:steps])
    assert (seen[steps] > 0.0).any()


def test_what_arrives_is_what_was_true_then(env):
    truth, found = [], []
    for _ in range(12):
        env.step(torch.zeros(2, 25))
        truth.append((env.sight.place.clone(), env.sight.share.clone()))
        found.append((env.sight.known.clone(), env.sight.known_share.clone()))
    for step in range(5, 12):
        place, share = truth[step - 5]
        assert torch.equal(found[step][1], share)
        seen = share >= env.config.sight.seen_share
        assert torch.equal(found[step][0][seen], place[seen])


def test_hidden_point_keeps_its_place_and_ages():
    sight = Sight(1, torch.device("cpu"), SightConfig(), 0.02)
    sight.place.fill_(1.0)
    sight.share.fill_(1.0)
    for _ in range(6):
        sight.remember()
    assert (sight.known == 1.0).all()
    assert torch.allclose(sight.age, torch.tensor(0.1))
    sight.place.fill_(2.0)
    sight.share.fill_(0.0)
    for _ in range(10):
        sight.remember()
    assert (sight.known == 1.0).all()
    assert torch.allclose(sight.age, torch.tensor(0.2), atol=1e-6)
    for _ in range(200):
        sight.remember()
    assert (sight.age == sight.config.longest_age).all()


def test_reset_clears_the_ring_of_that_world_only():
    sight = Sight(2, torch.device("cpu"), SightConfig(), 0.02)
    sight.place.fill_(1.0)
    sight.share.fill_(1.0)
    for _ in range(7):
        sight.remember()
    sight.clear(torch.tensor([True, False]))
    assert (sight.ring[0] == 0.0).all()
    assert (sight.ring[1] != 0.0).any()
    sight.remember()
    assert (sight.known_share[0] == 0.0).all()
    assert (sight.known_share[1] == 1.0).all()


def test_rays_are_a_setting():
    config = FighterConfig(sight=SightConfig(rays=8))
    env = FighterEnv(1, "cpu", "mujoco", config)
    env.reset(seed=0)
    env.step(torch.zeros(1, 25))
    assert ((env.sight.share * 8).frac() == 0.0).all()
    env.close()


def true_places(env, observations):
    """The entry `true_place`, and where the keypoints are from the head in the heading frame."""
    scene = env._read()
    expected = scene.local(env.sight.place - scene.head[:, None]).flatten(1)
    return observations["critic"][:, layout.observation_slices("critic")["true_place"]], expected


def test_first_observation_of_an_episode_has_the_true_places(single):
    config = single("opponent", episode=EpisodeConfig(seconds=0.04))
    env = FighterEnv(2, "cpu", "mujoco", config)
    observations, _ = env.reset(seed=0)
    for _ in range(4):
        found, _ = true_places(env, observations)
        look(env)
        _, expected = true_places(env, observations)
        torch.testing.assert_close(found, expected)
        observations, *_ = env.step(torch.zeros(2, 25))
    assert env.episode.tolist() == [3, 3]
    env.close()


def test_look_after_a_restart_leaves_the_other_worlds_as_they_are(env):
    for _ in range(7):
        env.step(torch.zeros(2, 25))
    names = env.sight.STATE
    before = {name: getattr(env.sight, name)[1].clone() for name in names}
    env.reset(options={"reset_mask": torch.tensor([True, False])})
    assert all(torch.equal(getattr(env.sight, name)[1], before[name]) for name in names)
    assert (env.sight.ring[0] == 0.0).all()
