"""Scoring: which paths get past the guard, and what counts as taken, blocked or landed."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fighter_env import FighterEnv, anatomy, layout
from fighter_env.config import OpponentConfig, ScoringConfig
from fighter_env.counters import COUNTERS, TOTALS
from fighter_env.draws import Draws
from fighter_env.scene import read_scene
from fighter_env.scoring import BLOCKERS, PATHS, Scoring, path_pattern
from fighter_env.tasks import GUARDS, Tasks

BODIES = ("left_forearm", "right_forearm", "left_upper_arm", "right_upper_arm")
HEAD = torch.tensor([0.0, 0.0, 1.6])


def scorer(path_radius=0.05):
    return Scoring(1, torch.device("cpu"), ScoringConfig(path_radius=path_radius), 0.004, 5)


def sensors(places=None):
    """A sensor row with our head at `HEAD` and our arms far below, but for `places`."""
    row = torch.zeros(1, layout.NSENSOR)
    row[:, layout.SENSOR["head_centre_pos"]] = HEAD
    for name in BODIES:
        place, quat = (places or {}).get(name, ((0.0, 0.0, -50.0), (1.0, 0.0, 0.0, 0.0)))
        row[:, layout.SENSOR[f"{name}_pos"]] = torch.tensor(place)
        row[:, layout.SENSOR[f"{name}_quat"]] = torch.tensor(quat)
    return row


GLOVE = torch.tensor([[0.7, 0.0, 1.55]])
UPWARD = (0.0, 1.0, 0.0, 0.0)  # the forearm points up, its glove is at its upper end


def gloves_together(forward=0.25, height=1.58):
    """Forearms side by side and upright, gloves on the line of a straight punch."""
    root = height - anatomy.GLOVE_REACH
    return {
        "left_forearm": ((forward, 0.07, root), UPWARD),
        "right_forearm": ((forward, -0.07, root), UPWARD),
    }


def test_pattern_is_1_and_6_and_12():
    radii = sorted(round((x * x + y * y) ** 0.5, 3) for x, y in path_pattern())
    assert radii == [0.0] + [0.5] * 6 + [1.0] * 12
    assert len(radii) == PATHS == 19


def test_all_19_paths_pass_with_the_arms_down():
    assert scorer().open_paths(GLOVE, sensors()).item() == 19


def test_no_path_passes_gloves_together_on_the_line_of_a_straight_punch():
    assert scorer(0.05).open_paths(GLOVE, sensors(gloves_together())).item() == 0


def test_half_a_guard_lets_some_paths_through():
    place = {"left_forearm": gloves_together()["left_forearm"]}
    assert 0 < scorer(0.01).open_paths(GLOVE, sensors(place)).item() < 19


place = st.tuples(st.floats(-0.1, 0.7), st.floats(-0.3, 0.3), st.floats(1.2, 1.8))
quat = st.tuples(*[st.floats(-1.0, 1.0)] * 4).filter(lambda q: sum(v * v for v in q) > 0.1)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(BODIES), st.tuples(place, quat), max_size=3), place, quat)
def test_a_further_blocker_never_raises_the_count(places, where, turn):
    def normal(entry):
        length = sum(v * v for v in entry[1]) ** 0.5
        return entry[0], tuple(v / length for v in entry[1])

    score = scorer(0.03)
    places = {name: normal(entry) for name, entry in places.items()}
    missing = [name for name in BODIES if name not in places]
    fewer = score.open_paths(GLOVE, sensors(places)).item()
    more = score.open_paths(GLOVE, sensors(places | {missing[0]: normal((where, turn))})).item()
    assert 0 <= more <= fewer <= 19


def test_wider_paths_pass_less():
    row = sensors({"left_forearm": gloves_together()["left_forearm"]})
    counts = [scorer(radius).open_paths(GLOVE, row).item() for radius in (0.005, 0.02, 0.05, 0.1)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_blockers_are_gloves_forearms_and_upper_arms():
    assert len(BLOCKERS) == 6


def fight(single, clip, guard, steps=60):
    """Counters after one punch at a fighter who holds its arms in a named guard, or down."""
    opponent = OpponentConfig(
        clips=(clip,), weights=(1.0,), rest=(0.2, 0.2), speed=(1.0, 1.0), aim=0.0
    )
    config = single("opponent", opponent=opponent, evaluation=True)
    env = FighterEnv(1, "cpu", "mujoco", replace(config))
    env.reset(seed=0)
    action = torch.zeros(1, 25)
    if guard == "down":
        for side in ("left", "right"):
            action[0, layout.HINGE[f"{side}_shoulder_flex"]] = -1.0
            action[0, layout.HINGE[f"{side}_elbow"]] = -1.0
    for _ in range(steps):
        env.step(action)
        if env.counters.counts[0, 2:4].sum() > 0:
            break
    found = dict(zip(COUNTERS, env.counters.counts[0].tolist(), strict=True))
    retracting = float(env.opponent.rate[0])
    env.close()
    return found, retracting


@pytest.mark.parametrize("clip", ["jab", "cross", "left_hook", "uppercut"])
def test_every_punch_reaches_a_fighter_with_lowered_arms(single, clip):
    found, _ = fight(single, clip, "down")
    assert found["punches_taken"] + found["punches_blocked"] == 1
    assert found["punches_taken"] == 1
    assert found["punch_strength"] > 3.0  # 3 kg at more than 1 m/s


def test_clip_retracts_when_its_glove_touches(single):
    found, rate = fight(single, "jab", "down")
    assert found["punches_taken"] == 1
    assert rate < 0.0


def test_glove_on_the_bag_scores_its_closing_speed():
    score = scorer()
    history = torch.zeros(1, 6, layout.NSENSOR)
    history[..., layout.SENSOR["bag_pos"]] = torch.tensor([0.7, 0.0, 2.3])
    history[..., layout.SENSOR["bag_quat"]] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    for hand, x in (("left", 0.40), ("right", 0.30)):
        history[..., layout.SENSOR[f"{hand}_glove_pos"]] = torch.tensor([x, 0.0, 1.3])
    history[:, 3, layout.SENSOR["left_glove_pos"]] = torch.tensor([0.47, 0.0, 1.3])
    for hand in ("left", "right"):
        history[..., layout.SENSOR[f"{hand}_glove_linvel"]] = torch.tensor([4.0, 3.0, 0.0])
    path_pos, path_quat = torch.zeros(1, 6, layout.NMOCAP, 3), torch.zeros(1, 6, layout.NMOCAP, 4)
    false = torch.zeros(1, dtype=torch.bool)
    score.judge(history, path_pos, path_quat, torch.zeros(1, dtype=torch.int64), false, false)
    assert score.bag_speed[0].tolist() == pytest.approx([4.0, 0.0])
    assert not score.scored.any()


def test_guards_keep_the_gloves_apart():
    for left, right in GUARDS.values():
        gap = (torch.tensor(left) - torch.tensor(right)).norm()
        assert float(gap) >= 2 * anatomy.GLOVE_RADIUS


def true_contacts(env):
    """The bag's place and the pairs of geoms that touch, by MuJoCo C from positions alone."""
    model, physics = env.physics.model, env.physics
    data = mujoco.MjData(model)
    data.qpos[:] = physics.qpos[0].numpy()
    data.mocap_pos[:] = physics.mocap_pos[0].numpy()
    data.mocap_quat[:] = physics.mocap_quat[0].numpy()
    mujoco.mj_forward(model, data)
    pairs = [{model.geom(c.geom1).name, model.geom(c.geom2).name} for c in data.contact]
    return torch.tensor(data.geom("bag").xpos, dtype=torch.float32), pairs


def test_bag_of_an_environment_is_where_its_geom_is_and_scores_when_a_glove_meets_it(single):
    config = single("bag")
    config = replace(config, tasks=replace(config.tasks, bag_distance=(0.6, 0.6)))
    env = FighterEnv(1, "cpu", "mujoco", config)
    observations, _ = env.reset(seed=0)
    entry = layout.observation_slices("policy")["bag"]
    assert abs(float(observations["policy"][0, entry][2])) < 0.5
    action, contacts, judged = torch.zeros(1, 25), 0, 0
    for step in range(50):
        for side in ("left", "right"):
            action[:, layout.HINGE[f"{side}_elbow"]] = -float(step % 25 < 8)
            action[:, layout.HINGE[f"{side}_shoulder_flex"]] = 0.4 * float(step % 25 < 8)
        env.step(action)
        place, pairs = true_contacts(env)
        torch.testing.assert_close(read_scene(env.physics).bag[0], place, atol=1e-2, rtol=0.0)
        contacts += any("bag" in pair and pair & {"left_glove", "right_glove"} for pair in pairs)
        judged += int((env.scoring.bag_speed > 0).any())
    assert contacts > 0
    assert judged > 0
    assert env.counters.totals[TOTALS.index("bag_hits")] > 0
    env.close()


def test_punch_on_its_way_home_does_not_score(single):
    opponent = OpponentConfig(
        distance=(1.6, 1.6),
        rest=(0.0, 0.01),
        speed=(1.0, 1.0),
        clips=("jab",),
        weights=(1.0,),
        aim=0.0,
        follow=0.0,
        step_in=0.0,
    )
    env = FighterEnv(1, "cpu", "mujoco", single("opponent", opponent=opponent))
    env.reset(seed=0)
    impact, met = float(env.opponent.bank.impact[1]), 0
    for _ in range(30):
        if float(env.opponent.time[0]) > impact + 0.02 and not met:
            env.opponent.base[0, 0] -= 0.75
            env.opponent.base_next[0, 0] -= 0.75
            met = 1
        assert not env.opponent.throwing[0] or float(env.opponent.time[0]) <= impact
        env.step(torch.zeros(1, 25))
        assert not env.scoring.scored[0]
        assert not env.scoring.touched[0]
    assert met
    env.close()


@pytest.mark.parametrize("seconds", [0.1, 0.05, 0.03, 0.004, 0.25])
def test_impulse_of_a_push_is_what_was_asked_for(single, seconds):
    config = single("push")
    pushes = {"push_seconds": seconds, "push_impulse": (12.0, 12.0), "push_rest": (0.1, 0.1)}
    config = replace(config, tasks=replace(config.tasks, **pushes))
    tasks = Tasks(3, torch.device("cpu"), config, Draws(3, torch.device("cpu")))
    episode = torch.ones(3, dtype=torch.int32)
    tasks.restart(torch.ones(3, dtype=torch.bool), episode)
    impulse = torch.zeros(3)
    for _ in range(200):
        tasks.prepare(episode)
        impulse += tasks.force.norm(dim=1) * config.control_step
        tasks.timer.sub_(config.control_step)
    running = tasks.force.norm(dim=1) > 0
    assert (tasks.pushes > 5).all()
    each = impulse / tasks.pushes
    assert torch.allclose(each[~running], torch.full((3,), 12.0)[~running], rtol=1e-4)
    assert (impulse <= 12.0 * tasks.pushes + 1e-2).all()
    assert (impulse > 12.0 * (tasks.pushes - 1)).all()
