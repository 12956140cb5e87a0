"""The same seed gives the same bits, in any batch, across resets and across a save."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fighter_env import FighterConfig, FighterEnv
from fighter_env.config import EpisodeConfig
from fighter_env.draws import Draws


def roll(env, actions, seed=3):
    """Everything that a run gives out, one list per kind of output."""
    observations, _ = env.reset(seed=seed)
    rows = [(observations["critic"], observations["teacher"])]
    for action in actions:
        observations, reward, terminated, truncated, infos = env.step(action)
        rows.append((observations["critic"], observations["teacher"]))
        rows.append((reward, terminated, truncated, infos["final_obs"]["policy"]))
    return rows


def equal(a, b):
    return all(
        torch.equal(x, y)
        for one, two in zip(a, b, strict=True)
        for x, y in zip(one, two, strict=True)
    )


def test_same_seed_gives_the_same_200_steps(busy, actions):
    runs = []
    for _ in range(2):
        env = FighterEnv(2, "cpu", "mujoco", busy)
        runs.append(roll(env, actions(200, 2)))
        env.close()
    assert equal(*runs)


def test_warp_gives_the_same_bits_twice(warp_env, actions):
    runs = [roll(warp_env, actions(20, 4)) for _ in range(2)]
    assert equal(*runs)


def test_one_batch_of_32_equals_four_of_8(busy, actions):
    tape = actions(40, 32)
    whole = FighterEnv(32, "cpu", "mujoco", busy)
    together = roll(whole, tape)
    whole.close()
    parts = []
    for part in range(4):
        env = FighterEnv(8, "cpu", "mujoco", replace(busy, first_world=8 * part))
        parts.append(roll(env, tape[:, 8 * part : 8 * part + 8]))
        env.close()
    joined = [
        tuple(torch.cat(pieces) for pieces in zip(*rows, strict=True))
        for rows in zip(*parts, strict=True)
    ]
    assert equal(together, joined)


def test_five_autoresets_of_8_worlds_give_40_starts_the_same_40_each_time():
    config = FighterConfig(episode=EpisodeConfig(seconds=0.04))
    runs = []
    for _ in range(2):
        env = FighterEnv(8, "cpu", "mujoco", config)
        env.reset(seed=11)
        starts = []
        for _ in range(5):
            env.step(torch.zeros(8, 25))
            *_, truncated, _ = env.step(torch.zeros(8, 25))
            assert truncated.all()
            starts.append(env.physics.qpos.clone())
        env.close()
        runs.append(torch.cat(starts))
    assert torch.equal(*runs)
    assert len({tuple(row.tolist()) for row in runs[0]}) == 40


def test_evaluation_starts_every_episode_alike_and_takes_tasks_in_turn():
    config = FighterConfig(evaluation=True, episode=EpisodeConfig(seconds=0.04))
    env = FighterEnv(10, "cpu", "mujoco", config)
    env.reset(seed=11)
    first = env.physics.qpos.clone()
    assert env.tasks.kind.tolist() == [0, 1, 2, 3, 4] * 2
    for _ in range(2):
        env.step(torch.zeros(10, 25))
    assert torch.equal(env.physics.qpos, first)
    env.close()


@pytest.mark.parametrize("kind", ["warp", "mujoco"])
def test_save_and_load_in_the_middle_changes_nothing(kind, warp_env, busy, actions, tmp_path):
    make = (lambda: warp_env) if kind == "warp" else (lambda: FighterEnv(4, "cpu", kind, busy))
    tape = actions(24, 4)
    env = make()
    env.reset(seed=3)
    for action in tape[:12]:
        env.step(action)
    torch.save(env.state_dict(), tmp_path / "state.pt")
    straight = [env.step(action)[:4] for action in tape[12:]]
    other = make()
    other.reset(seed=99)
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for expected, action in zip(straight, tape[12:], strict=True):
        found = other.step(action)[:4]
        assert torch.equal(found[0]["critic"], expected[0]["critic"])
        assert all(torch.equal(a, b) for a, b in zip(found[1:], expected[1:], strict=True))


def test_draws_differ_by_seed_world_episode_event_and_purpose():
    base = Draws(2, torch.device("cpu"), first_world=4)
    other = Draws(2, torch.device("cpu"), first_world=5)
    zero, one = torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    rows = [
        base.uniform(1, zero, zero, 3).clone(),
        base.uniform(1, one, zero, 3).clone(),
        base.uniform(1, zero, one, 3).clone(),
        base.uniform(2, zero, zero, 3).clone(),
    ]
    base.reseed(1)
    rows.append(base.uniform(1, zero, zero, 3).clone())
    values = torch.cat(rows).flatten().tolist()
    assert len(set(values)) == len(values)
    assert torch.equal(other.uniform(1, zero, zero, 3)[0], rows[0][1])


def test_draws_are_uniform():
    draws = Draws(1000, torch.device("cpu"))
    zero = torch.zeros(1000, dtype=torch.int32)
    made = draws.uniform(1, zero, zero, 50).flatten()
    assert 0.0 <= float(made.min()) < float(made.max()) < 1.0
    assert float(made.mean()) == pytest.approx(0.5, abs=0.01)
    counts = torch.histc(made, 10, 0.0, 1.0) / len(made)
    assert float((counts - 0.1).abs().max()) < 0.01
