"""The `gymnasium.vector.VectorEnv` contract: what a trainer may rely on."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch.utils._python_dispatch import TorchDispatchMode

import fighter_env
from fighter_env import FighterConfig, FighterEnv, layout
from fighter_env.config import EpisodeConfig
from fighter_env.counters import COUNTERS, TOTALS
from fighter_env.errors import ActionError, ConfigError, FingerprintError
from fighter_env.measure import count_step
from fighter_env.rewards import TERMS
from fighter_env.tasks import StepEvents

STILL = torch.zeros(4, 25)


@pytest.fixture
def env():
    made = FighterEnv(4, "cpu", "mujoco", FighterConfig(episode=EpisodeConfig(seconds=0.1)))
    yield made
    made.close()


def test_spaces_describe_what_comes_out(env):
    assert isinstance(env, VectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, infos = env.reset(seed=0)
    assert infos == {}
    assert set(observations) == set(env.observation_space.spaces) == set(layout.GROUPS)
    for group, values in observations.items():
        assert values.shape == env.observation_space[group].shape
        assert env.observation_space[group].contains(values.numpy())
    assert env.action_space.shape == (4, 25)
    assert env.single_action_space.shape == (25,)


def test_every_floating_point_output_is_float32(env):
    env.reset(seed=0)
    observations, reward, terminated, truncated, infos = env.step(STILL)
    floats = [*observations.values(), reward, *infos["final_obs"].values()]
    floats += [infos["episode"][name] for name in COUNTERS] + list(infos["log"].values())
    assert {values.dtype for values in floats} == {torch.float32}
    assert terminated.dtype == truncated.dtype == torch.bool
    assert reward.shape == terminated.shape == truncated.shape == (4,)


def test_muscle_mode_takes_50_excitations():
    env = FighterEnv(2, "cpu", "mujoco", FighterConfig(action="muscle"))
    env.reset(seed=0)
    observations, *_ = env.step(torch.full((2, 50), 0.5))
    assert env.single_action_space.low.min() == 0.0
    assert observations["policy"].shape[1] == layout.observation_size("policy", "muscle")
    env.close()


def test_length_of_an_episode_truncates_and_a_fall_terminates(env):
    env.reset(seed=0)
    for step in range(1, 6):
        _, _, terminated, truncated, infos = env.step(STILL)
        assert truncated.tolist() == [step == 5] * 4
        assert not terminated.any()
    assert infos["_episode"].all()
    assert infos["episode"]["length"].tolist() == [5.0] * 4
    assert env.elapsed.tolist() == [0] * 4


def test_final_obs_is_the_observation_before_the_restart(env, actions):
    """Worlds that end are compared with a run whose episodes never end."""
    tape = actions(6, 4)
    free = FighterEnv(4, "cpu", "mujoco", FighterConfig(episode=EpisodeConfig(seconds=10.0)))
    env.reset(seed=5)
    free.reset(seed=5)
    skip = layout.observation_slices("critic")["time_left"]
    for action in tape[:5]:
        observations, _, _, truncated, infos = env.step(action)
        expected, *_ = free.step(action)
        final = {group: values.clone() for group, values in infos["final_obs"].items()}
    assert truncated.all()
    assert torch.equal(final["policy"], expected["policy"])
    assert torch.equal(final["teacher"], expected["teacher"])
    assert torch.equal(final["critic"][:, : skip.start], expected["critic"][:, : skip.start])
    assert not torch.equal(final["policy"], observations["policy"])
    env.step(tape[5])
    assert all(torch.equal(infos["final_obs"][group], final[group]) for group in final)
    free.close()


def test_counters_restart_with_the_episode_and_totals_go_on(env):
    env.reset(seed=0)
    for _ in range(10):
        *_, infos = env.step(STILL)
    assert infos["episode"]["length"].tolist() == [5.0] * 4
    assert env.counters.totals[TOTALS.index("episodes")] == 8


def test_each_reward_term_is_logged_and_they_sum_to_the_reward(env):
    env.reset(seed=0)
    _, reward, *_, infos = env.step(STILL)
    assert set(infos["log"]) == {f"reward/{name}" for name in TERMS}
    total = sum(infos["log"].values())
    assert float(total) == pytest.approx(float(reward.mean()), abs=1e-5)


def test_reset_mask_restarts_only_those_worlds(env):
    env.reset(seed=0)
    env.step(STILL)
    before, episode = env.physics.qpos.clone(), env.episode.clone()
    env.reset(options={"reset_mask": torch.tensor([True, False, True, False])})
    assert torch.equal(env.physics.qpos[[1, 3]], before[[1, 3]])
    assert (env.episode - episode).tolist() == [1, 0, 1, 0]


def test_make_vec_finds_the_environment():
    env = gymnasium.make_vec("Fighter-v0", num_envs=2, physics="mujoco")
    observations, _ = env.reset(seed=0)
    assert observations["policy"].shape[0] == env.num_envs == 2
    env.close()
    env.close()


def test_step_reads_nothing_from_the_host(warp_env):
    counts = count_step(warp_env)
    assert sum(row["host_reads"] for row in counts.values()) == 0
    assert sum(row["launches"] for row in counts.values()) > 500
    assert sum(row["torch_ops"] for row in counts.values()) > 500


def test_a_step_keeps_its_state_in_tensors(warp_env):
    """A recorded step replays ops only: no attribute of the environment may become another."""
    warp_env.reset(seed=0)
    warp_env.step(STILL)
    parts = ("opponent", "sight", "scoring", "tasks", "physics", "draws", "posture", "counters")
    owners = [warp_env, *(getattr(warp_env, name) for name in parts)]
    before = [dict(vars(owner)) for owner in owners]
    warp_env.step(STILL)
    for owner, attributes in zip(owners, before, strict=True):
        assert vars(owner).keys() == attributes.keys()
        changed = [key for key, value in attributes.items() if vars(owner)[key] is not value]
        assert changed == [], type(owner).__name__


def test_no_op_of_a_step_makes_a_float64(warp_env):
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for value in made if isinstance(made, (tuple, list)) else (made,):
                if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                    found.append(func)
            return made

    warp_env.reset(seed=0)
    with Watch():
        warp_env.step(STILL)
    assert found == []


def test_a_step_is_the_same_ops_whatever_happens(warp_env):
    """A recorded step must not depend on data: a step in which worlds end has the same ops."""
    from fighter_env import measure

    warp_env.reset(seed=0)
    counts = []
    for _ in range(4):
        warp_env.elapsed.copy_(torch.tensor([0, 5, 14, 14])[torch.randperm(4)])
        counter, launches = measure._OpCounter(), measure.Counter()
        with measure._counted(warp_env, counter, launches):
            warp_env.step(STILL)
        launches.pop("physics")  # the solver's loop runs until all worlds have converged
        counts.append((dict(counter.ops), dict(launches)))
    assert all(count == counts[0] for count in counts)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (torch.zeros(4, 24), r"\(4, 25\)"),
        (torch.zeros(3, 25), r"\(4, 25\)"),
        (torch.zeros(4, 25, dtype=torch.float64), "float32"),
        (np.zeros((4, 25), np.float32), "torch tensor"),
        (torch.zeros(4, 25, device="meta"), "they must be on cpu"),
    ],
)
def test_wrong_action_is_refused(env, actions, words):
    with pytest.raises(ActionError, match=words):
        env.step(actions)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, "4", True])
def test_wrong_number_of_worlds_is_refused(num_envs):
    with pytest.raises(ConfigError, match="num_envs"):
        FighterEnv(num_envs)


def test_numpy_integers_are_whole_numbers():
    env = FighterEnv(np.int64(2), "cpu", "mujoco", seed=np.int32(3))
    env.reset(seed=np.int64(4))
    assert type(env.num_envs) is int
    assert env.draws.seed.tolist() == [4]
    env.close()


@pytest.mark.parametrize("seed", [1.0, "1", True, [1, 2, 3, 4]])
def test_seed_that_is_no_whole_number_is_refused(env, seed):
    with pytest.raises(ConfigError, match="seed"):
        env.reset(seed=seed)
    with pytest.raises(ConfigError, match="seed"):
        FighterEnv(1, "cpu", "mujoco", seed=seed)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["warp", "mujoco"])
def test_world_with_an_action_that_is_not_finite_is_broken(kind, value, warp_env):
    env = warp_env if kind == "warp" else FighterEnv(4, "cpu", kind, warp_env.config)
    env.reset(seed=6)
    saved = env.state_dict()
    expected, reward, *_ = env.step(STILL)
    env.load_state_dict(saved)
    broken = STILL.clone()
    broken[1, 3] = value
    found, rewards, terminated, truncated, infos = env.step(broken)
    others = [0, 2, 3]
    assert torch.equal(found["critic"][others], expected["critic"][others])
    assert torch.equal(rewards[others], reward[others])
    assert rewards[1] == 0.0
    assert terminated.tolist() == infos["_final_obs"].tolist() == [False, True, False, False]
    assert not truncated.any()
    assert torch.equal(infos["final_obs"]["teacher"][1], expected["teacher"][1])
    assert env.counters.totals[TOTALS.index("broken_worlds")] == 1
    assert env.episode.tolist() == [1, 2, 1, 1]
    assert torch.isfinite(env.last_action).all()
    _, _, terminated, *_ = env.step(STILL)
    assert not terminated.any()


def test_no_gradient_flows_through_a_step(warp_env):
    warp_env.reset(seed=0)
    weight = torch.zeros(4, 25, requires_grad=True)
    observations, reward, *_ = warp_env.step(weight + 0.1)
    made = [*observations.values(), reward, warp_env.last_action, warp_env.physics._ctrl]
    assert not any(value.requires_grad for value in made)


@pytest.mark.parametrize("seed", [None, 4])
def test_first_reset_starts_every_world_whatever_its_mask(seed):
    env = FighterEnv(2, "cpu", "mujoco")
    env.reset(seed=seed, options={"reset_mask": torch.tensor([True, False])})
    assert env.episode.tolist() == [1, 1]
    assert (env.physics.sensors[:, layout.SENSOR["head_centre_pos"]][:, 2] > 1.0).all()
    env.close()


def test_state_saved_before_any_reset_is_one_to_go_on_from():
    one, two = (FighterEnv(2, "cpu", "mujoco", seed=8) for _ in range(2))
    two.load_state_dict(one.state_dict())
    action = torch.zeros(2, 25)
    observations, *_ = two.step(action)
    one.reset(seed=8)
    expected, *_ = one.step(action)
    assert torch.equal(observations["critic"], expected["critic"])
    one.close()
    two.close()


def test_seed_for_some_worlds_only_is_refused_and_changes_nothing(env):
    env.reset(seed=0)
    for _ in range(6):
        env.step(STILL)
    episode, totals = env.episode.clone(), env.counters.totals.clone()
    with pytest.raises(ConfigError, match="all worlds share one seed"):
        env.reset(seed=1, options={"reset_mask": torch.tensor([True, False, True, False])})
    assert torch.equal(env.episode, episode)
    assert torch.equal(env.counters.totals, totals)
    assert env.draws.seed.tolist() == [0]
    env.reset(seed=1, options={"reset_mask": torch.ones(4, dtype=torch.bool)})
    assert env.episode.tolist() == [1] * 4
    assert not env.counters.totals.any()


def test_total_of_the_punch_strength_is_not_rounded_step_by_step(env):
    env.reset(seed=0)
    env.scoring.scored.fill_(True)
    env.scoring.share.fill_(1.0)
    env.scoring.speed.fill_(0.1)  # 4 worlds at 3 kg: 1.2 kg m/s per step
    zero, false = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    events = StepEvents(false, false, false, zero, zero, zero)
    for _ in range(100):
        env.counters.add(env.tasks, env.scoring, events, zero, false, false, false)
    assert abs(int(env.counters.totals[TOTALS.index("punch_strength")]) - 120) <= 1
    assert int(env.counters.totals[TOTALS.index("punches_taken")]) == 400


def test_state_of_another_body_is_refused_with_the_parts_that_differ(env):
    env.reset(seed=0)
    state = env.state_dict()
    state["fingerprint"]["body.jnt_range"] = "wider"
    with pytest.raises(FingerprintError, match=r"body\.jnt_range"):
        env.load_state_dict(state)


def test_state_of_another_size_is_refused(env):
    other = FighterEnv(2, "cpu", "mujoco", env.config)
    other.reset(seed=0)
    with pytest.raises(ConfigError, match="2 worlds"):
        env.load_state_dict(other.state_dict())
    other.close()


def test_readme_example_runs():
    """The example of the package's docstring, word for word."""
    text = fighter_env.__doc__
    lines = text[text.index("    import torch") :].splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    scope: dict = {}
    exec(compile(code, "example", "exec"), scope)
    assert scope["env"].num_envs == 16
