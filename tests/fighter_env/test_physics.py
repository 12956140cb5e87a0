"""The two physics agree; worlds do not touch each other; what breaks is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import warp as wp

from fighter_env import FighterConfig, FighterEnv, layout
from fighter_env.config import RandomConfig
from fighter_env.counters import COUNTERS, TOTALS
from fighter_env.errors import CapacityError, ConfigError
from fighter_env.physics import PhysicsConfig

EVENTS = [COUNTERS.index(name) for name in COUNTERS if name not in ("return", "punch_strength")]


def same(a, b, worlds=slice(None)):
    return all(torch.equal(a[group][worlds], b[group][worlds]) for group in a)


def test_physics_agree_over_50_steps(warp_env, actions, capsys):
    other = FighterEnv(4, "cpu", "mujoco", warp_env.config)
    ours, _ = warp_env.reset(seed=7)
    theirs, _ = other.reset(seed=7)
    slices = layout.observation_slices("critic")
    early = late = 0.0
    shares, equal = [], []
    for step, action in enumerate(actions(50, 4)):
        ours, reward, *_, mine = warp_env.step(action)
        theirs, their_reward, *_, yours = other.step(action)
        gap = (ours["critic"] - theirs["critic"]).abs()
        share = gap[:, slices["sight_share"]].clone()
        gap[:, slices["sight_share"]] = 0.0
        shares.append(share)
        worst = max(float(gap.max()), float((reward - their_reward).abs().max()))
        early, late = (max(early, worst), late) if step < 10 else (early, max(late, worst))
        ended = mine["_episode"]
        for name in ("punches_taken", "punches_blocked", "cues", "falls"):
            equal.append((mine["episode"][name] == yours["episode"][name])[ended])
    other.close()
    shares, equal = torch.cat(shares), torch.cat(equal).to(torch.float32)
    with capsys.disabled():
        print(
            f"\nparity of warp and mujoco: largest gap {early:.1e} in 10 steps, {late:.1e} in 50; "
            f"shares that differ {float((shares > 1e-6).float().mean()):.2%}; "
            f"equal event counts {float(equal.mean()):.0%} of {len(equal)}"
        )
    assert early < 1e-3
    assert float((shares > 1e-6).float().mean()) < 0.01
    assert float(shares.max()) <= 1.0 / 32 + 1e-6
    assert len(equal) >= 12
    assert float(equal.mean()) >= 0.95


@pytest.mark.parametrize("kind", ["warp", "mujoco"])
def test_broken_world_ends_without_reward_and_comes_back(
    kind, warp_env, busy, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    env = warp_env if kind == "warp" else FighterEnv(4, "cpu", kind, busy)
    still = torch.zeros(4, 25)
    env.reset(seed=1)
    env.step(still)
    saved = env.state_dict()
    expected, *_ = env.step(still)
    env.load_state_dict(saved)
    env.physics.qvel[1, 12] = float("nan")
    found, reward, terminated, truncated, infos = env.step(still)
    assert same(found, expected, [0, 2, 3])
    assert terminated.tolist() == [False, True, False, False]
    assert not truncated.any()
    assert reward[1] == 0.0
    assert all(torch.isfinite(values).all() for values in infos["final_obs"].values())
    assert env.counters.totals[TOTALS.index("broken_worlds")] == 1
    found, _, terminated, *_ = env.step(still)
    assert torch.isfinite(found["critic"]).all()
    assert torch.isfinite(env.physics.qpos).all()
    assert not terminated.any()
    assert list(tmp_path.iterdir()) == []  # MuJoCo C writes a log unless it is told not to


def test_end_of_a_world_changes_no_other(warp_env):
    still = torch.zeros(4, 25)
    warp_env.reset(seed=2)
    warp_env.step(still)
    saved = warp_env.state_dict()
    expected = [warp_env.step(still)[0] for _ in range(4)]
    warp_env.load_state_dict(saved)
    warp_env.physics.qpos[2, layout.ROOT_QPOS.start + 2] = 0.3  # it lies on the floor
    found, _, terminated, *_ = warp_env.step(still)
    assert terminated.tolist() == [False, False, True, False]
    for step in range(4):
        assert same(found, expected[step], [0, 1, 3])
        if step < 3:
            found, *_ = warp_env.step(still)


def test_overflow_is_counted_each_step_and_then_cleared():
    config = FighterConfig(physics=PhysicsConfig(nconmax=2))
    env = FighterEnv(2, "cpu", "warp", config)
    env.reset(seed=0)
    *_, infos = env.step(torch.zeros(2, 25))
    assert (infos["overflow"] != 0).any()
    assert env.counters.totals[TOTALS.index("overflow_steps")] > 0
    assert not env.physics.overflow.any()
    assert env.counters.totals[TOTALS.index("solver_limit_steps")] == 0
    env.config = replace(config, strict=True)
    with pytest.raises(CapacityError, match="nconmax"):
        env.step(torch.zeros(2, 25))
    env.close()


def test_strict_mode_is_refused_while_warp_records():
    env = FighterEnv(2, "cpu", "warp", FighterConfig(strict=True))
    env.reset(seed=0)
    env.step(torch.zeros(2, 25))
    with (
        pytest.raises(CapacityError, match="turn it off to record"),
        wp.ScopedCapture(device="cpu"),
    ):
        env.step(torch.zeros(2, 25))
    env.close()


def test_sensors_belong_to_the_state_after_the_step(warp_env):
    warp_env.reset(seed=4)
    warp_env.step(torch.zeros(4, 25))
    before = warp_env.physics.sensors.clone()
    warp_env.physics.refresh()
    force = layout.FORCE_SENSORS.start
    assert torch.equal(warp_env.physics.sensors[:, :force], before[:, :force])


@pytest.mark.parametrize("kind", ["warp", "mujoco"])
def test_domain_randomisation_reaches_the_physics(kind):
    random = RandomConfig(mass=(0.8, 1.2), friction=(0.5, 1.0), strength=(0.7, 1.0), action_delay=2)
    env = FighterEnv(2, "cpu", kind, FighterConfig(random=random))
    plain = FighterEnv(2, "cpu", kind)
    scaled, _ = env.reset(seed=3)
    plain.reset(seed=3)
    assert (env.scales != 1.0).all()
    assert not torch.equal(env.scales[0], env.scales[1])
    assert torch.equal(
        scaled["critic"][:, layout.observation_slices("critic")["scales"]], env.scales
    )
    for _ in range(10):
        a, *_ = env.step(torch.zeros(2, 25))
        b, *_ = plain.step(torch.zeros(2, 25))
    assert not torch.allclose(a["policy"], b["policy"], atol=1e-4)
    env.close()
    plain.close()


def test_unknown_physics_is_refused():
    with pytest.raises(ConfigError, match='"warp" or "mujoco"'):
        FighterEnv(1, "cpu", "bullet")


@pytest.mark.parametrize("kind", ["warp", "mujoco"])
def test_evaluation_does_not_go_on_with_loaded_randomisation(kind):
    random = RandomConfig(mass=(0.7, 0.8), strength=(0.6, 0.7), action_delay=2)
    config = FighterConfig(random=random)
    trained = FighterEnv(2, "cpu", kind, config)
    trained.reset(seed=3)
    trained.action_delay.fill_(2)
    fresh, loaded = (FighterEnv(2, "cpu", kind, replace(config, evaluation=True)) for _ in "ab")
    loaded.load_state_dict(trained.state_dict())
    assert (loaded.scales != 1.0).any()
    expected, _ = fresh.reset(seed=3)
    found, _ = loaded.reset(seed=3)
    assert (loaded.scales == 1.0).all()
    assert (loaded.action_delay == 0).all()
    for _ in range(3):
        assert all(torch.equal(found[group], expected[group]) for group in found)
        expected, *_ = fresh.step(torch.full((2, 25), 0.1))
        found, *_ = loaded.step(torch.full((2, 25), 0.1))
    for env in (trained, fresh, loaded):
        env.close()
