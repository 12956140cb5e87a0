"""`FighterEnv`: the vectorised environment, a `gymnasium.vector.VectorEnv` of torch tensors.

`step` is a fixed sequence of torch ops and Warp launches over persistent buffers: no host read, no
branch on data, no Python counter. Worlds end and restart inside the step (SAME_STEP autoreset);
`infos["final_obs"]` holds every observation group as it was before the restart. All floating-point
tensors are float32. What a world does depends on its seed and its global number alone, not on the
batch that it is in (with MuJoCo Warp on a CPU: from 4 worlds on).
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import warp as wp
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from fighter_env import body, layout
from fighter_env.config import FighterConfig
from fighter_env.counters import Counters
from fighter_env.devices import shared_stream
from fighter_env.draws import Draws, Purpose, between
from fighter_env.errors import ActionError, CapacityError, ConfigError
from fighter_env.fingerprint import compare, fingerprint
from fighter_env.observe import observe
from fighter_env.opponent import Opponent
from fighter_env.physics import ModelScales, make_physics
from fighter_env.posture import PostureController
from fighter_env.rewards import TERMS, reward_terms, weigh
from fighter_env.scene import Scene, read_scene
from fighter_env.scoring import Scoring
from fighter_env.sight import Sight
from fighter_env.tasks import OPPONENT, StepEvents, Tasks

__all__ = ["FighterEnv"]


class FighterEnv(VectorEnv):
    """Two fighters in each of `num_envs` worlds.

    Args:
        num_envs: Worlds N.
        device: Torch device; ``"cpu"``, or a CUDA device with ``physics="warp"``.
        physics: ``"warp"`` (MuJoCo Warp) or ``"mujoco"`` (MuJoCo C threads, fastest on a CPU).
        config: Settings.
        seed: First seed; `reset` may give another.
        render_mode: ``"rgb_array"`` or None.

    Observations are dictionaries of float32 tensors ``policy``, ``critic`` and ``teacher``, each of
    shape (N, size); their entries are in `layout.observation_entries`. Actions are float32 of shape
    (N, 25) in [-1, 1] (``action="targets"``) or (N, 50) in [0, 1] (``action="muscle"``); values
    outside are clipped. Rewards are float32, `terminated` and `truncated` bool, all of shape (N,).
    Everything is a torch tensor, so gymnasium's NumPy wrappers do not apply; a sampled action goes
    in as ``torch.as_tensor(env.action_space.sample())``. A world's bits are the same in any batch
    with MuJoCo C, and on MuJoCo Warp from 4 worlds on, on the CPU.

    Raises:
        ConfigError: `num_envs`, `physics` or a setting cannot be used.
        ClipError: A clip is unknown or broken.
    """

    metadata = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": 50,
    }

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        physics: str = "warp",
        config: FighterConfig | None = None,
        *,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        num_envs = _whole("num_envs", num_envs)
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        seed = _whole("seed", seed)
        self.config = FighterConfig() if config is None else config
        if not isinstance(self.config, FighterConfig):
            raise ConfigError(f"config is a {type(config).__name__}; it must be a FighterConfig")
        self.config.check()
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f'render_mode is {render_mode!r}; it must be "rgb_array" or None')
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.render_mode = render_mode
        self.physics = make_physics(physics, num_envs, self.device, self.config.physics)
        self._make_parts()
        self._make_spaces()
        self._make_state()
        self.fingerprint = fingerprint(
            body.build_model(timestep=self.config.physics.timestep),
            self.opponent.bank.clips,
            self.config,
        )
        self._renderer: Any = None
        self._closed = False
        self.draws.reseed(seed)

    def _make_parts(self) -> None:
        config, num, device = self.config, self.num_envs, self.device
        timing = (config.physics.timestep, config.physics.substeps)
        self.draws = Draws(num, device, config.first_world)
        self.opponent = Opponent(
            num, device, config.opponent, self.draws, config.clip_folder, *timing
        )
        self.sight = Sight(num, device, config.sight, config.control_step)
        self.scoring = Scoring(num, device, config.scoring, *timing)
        self.tasks = Tasks(num, device, config, self.draws)
        self.posture = PostureController(device, config.posture)
        self.counters = Counters(num, device, config)

    def _make_spaces(self) -> None:
        low, high = layout.ACTION_RANGE[self.config.action]
        size = layout.ACTION_SIZE[self.config.action]
        self.single_action_space = gym.spaces.Box(low, high, (size,), np.float32)
        self.single_observation_space = gym.spaces.Dict(
            {
                group: gym.spaces.Box(
                    -100.0, 100.0, (layout.observation_size(group, self.config.action),), np.float32
                )
                for group in layout.GROUPS
            }
        )
        batch = gym.vector.utils.batch_space
        self.action_space = batch(self.single_action_space, self.num_envs)
        self.observation_space = batch(self.single_observation_space, self.num_envs)

    def _make_state(self) -> None:
        num, device, config = self.num_envs, self.device, self.config

        def floats(*shape: int) -> Tensor:
            return torch.zeros(num, *shape, device=device)

        size = layout.ACTION_SIZE[config.action]
        self.episode = torch.zeros(num, dtype=torch.int32, device=device)
        self.elapsed = torch.zeros(num, dtype=torch.int32, device=device)
        self.last_action = floats(size)
        self.action_ring = floats(config.random.action_delay + 1, size)
        self.action_delay = torch.zeros(num, dtype=torch.int64, device=device)
        self.scales = floats(3) + 1.0
        self.overflow = torch.zeros(num, dtype=torch.int32, device=device)
        self._home = torch.tensor(body.guard_pose(), dtype=torch.float32, device=device)
        self.guard = self._home[layout.HINGE_QPOS].clone()
        hinges = body.anatomy.HINGES
        self.reach = torch.tensor([hinge.reach for hinge in hinges], device=device)
        self._low, self._high = layout.ACTION_RANGE[config.action]
        self._longest = round(config.episode.seconds / config.control_step)
        self._started = False

    STATE = (*("episode", "elapsed", "last_action", "action_ring", "action_delay"), "scales")
    PARTS = ("opponent", "sight", "tasks", "counters")

    # The contract of `VectorEnv`.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Starts a new episode in every world, or in those of ``options["reset_mask"]``.

        Args:
            seed: A new seed; episode numbers and totals then begin at 0 again. All worlds share
                it, so it cannot be given for some of them only.
            options: `reset_mask`: bool tensor of shape (N,). The first reset starts every world.

        Returns:
            The observation groups, and an empty dictionary.

        Raises:
            ConfigError: `seed` or `reset_mask` cannot be used, or the environment is closed.
        """
        if self._closed:
            raise ConfigError("this environment is closed; make another one")
        everyone = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        mask = (options or {}).get("reset_mask")
        mask = everyone if mask is None else torch.as_tensor(mask, device=self.device)
        if mask.shape != (self.num_envs,) or mask.dtype != torch.bool:
            raise ConfigError(f"reset_mask must be bool of shape ({self.num_envs},)")
        if not self._started:
            mask = everyone
        if seed is not None:
            seed = _whole("seed", seed)
            if mask is not everyone and not bool(mask.all()):
                raise ConfigError(
                    f"seed is {seed} and reset_mask leaves worlds out; all worlds share one seed: "
                    "reset some of them without a seed, or all of them with it"
                )
            self.draws.reseed(seed)
            self.episode.zero_()
            self.counters.clear()
        self._started = True
        with shared_stream(self.device):
            self._restart(mask)
        return self._observe(self._read()), {}

    def step(
        self, actions: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """One control step of every world, with autoreset.

        A world whose action is not finite is broken in this step, like one whose physics is: it
        is stepped with zeros, gives no reward, terminates and starts again.

        Args:
            actions: float32 on the environment's device, shape (N, A); no gradient flows back.

        Returns:
            Observations, rewards, terminated, truncated, infos. `infos` has `final_obs` (the groups
            before a restart; meaningful where `_final_obs`), `episode` (counters of the episode
            so far; complete where `_episode`), and `log` (means of the weighted reward terms).

        Raises:
            ActionError: Shape, dtype or device is wrong.
            CapacityError: Contacts or constraints did not fit, in strict mode.
        """
        self._check_action(actions)
        if not self._started:
            self.reset()
        with shared_stream(self.device):
            actions = actions.detach()
            finite = torch.isfinite(actions).all(1)
            actions = torch.where(finite[:, None], actions, 0.0)
            return self._advance(actions.clamp(self._low, self._high), finite)

    def _advance(
        self, action: Tensor, finite: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """The step itself, as a sequence of parts."""
        ctrl = self._excite(action)
        self._plan()
        self._simulate(ctrl)
        scene, events = self._judge()
        terminated, truncated, broken = self._ends(scene, finite)
        weighted = self._reward(scene, events, terminated, broken, action)
        self._count(events, weighted, terminated, truncated, broken)
        final = self._observe(scene)
        done = terminated | truncated
        infos = self._infos(final, done, weighted)
        self._restart(done)
        fresh = self._observe(self._read())
        observations = {
            group: torch.where(done[:, None], fresh[group], final[group]) for group in final
        }
        if self.config.strict:
            self._raise_on_overflow()
        return observations, weighted.sum(1), terminated, truncated, infos

    def get_observations(self) -> dict[str, Tensor]:
        """The present observation groups, for trainers that ask between steps."""
        if not self._started:
            self.reset()
        return self._observe(self._read())

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Pictures of all worlds, each uint8 of shape (540, 960, 3), in mode ``"rgb_array"``."""
        if self.render_mode is None:
            return None
        from fighter_env.render import Camera

        if self._renderer is None:
            self._renderer = Camera(self)
        return tuple(self._renderer.picture(world) for world in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Stops threads and closes the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self.physics.close()
        self._closed = True

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact resume needs, and the fingerprint; all tensors are copies.

        It starts the worlds if nothing has started them yet.
        """
        if not self._started:
            self.reset()
        own = {name: getattr(self, name).clone() for name in self.STATE}
        return {
            "fingerprint": dict(self.fingerprint),
            "env": own | {"seed": self.draws.seed.clone()},
            "physics": self.physics.state_dict(),
            **{name: self._part_state(getattr(self, name)) for name in self.PARTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state.

        Raises:
            FingerprintError: The state belongs to another body, clips, layout or settings.
            ConfigError: It has another number of worlds.
        """
        compare(state["fingerprint"], self.fingerprint)
        saved = len(state["env"]["episode"])
        if saved != self.num_envs:
            raise ConfigError(f"the state has {saved} worlds, num_envs is {self.num_envs}")
        for name in self.STATE:
            getattr(self, name).copy_(state["env"][name])
        self.draws.seed.copy_(state["env"]["seed"])
        for name in self.PARTS:
            part = getattr(self, name)
            for key in part.STATE:
                getattr(part, key).copy_(state[name][key])
        if self.config.random.scales_model:
            everyone = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
            self.physics.scale_model(everyone, ModelScales(*self.scales.unbind(1)))
        self.physics.load_state_dict(state["physics"])
        self._started = True

    @staticmethod
    def _part_state(part: Any) -> dict[str, Tensor]:
        return {name: getattr(part, name).clone() for name in part.STATE}

    # The parts of a step, in order.

    def _check_action(self, actions: Tensor) -> None:
        wanted = (self.num_envs, layout.ACTION_SIZE[self.config.action])
        if self._closed:
            raise ActionError("this environment is closed; make another one")
        if not isinstance(actions, Tensor):
            raise ActionError(
                f"actions are a {type(actions).__name__}; they must be a torch tensor of shape "
                f"{wanted}: torch.as_tensor(actions)"
            )
        if tuple(actions.shape) != wanted:
            raise ActionError(f"actions are {tuple(actions.shape)}; they must be {wanted}")
        if actions.dtype != torch.float32:
            raise ActionError(f"actions are {actions.dtype}; they must be torch.float32")
        if actions.device.type != self.device.type:
            raise ActionError(f"actions are on {actions.device}; they must be on {self.device}")

    def _excite(self, action: Tensor) -> Tensor:
        """Excitations of the 50 muscles, shape (N, 50)."""
        if self.config.random.action_delay:
            self.action_ring[:, 1:] = self.action_ring[:, :-1].clone()
            self.action_ring[:, 0].copy_(action)
            rows = torch.arange(self.num_envs, device=self.device)
            action = self.action_ring[rows, self.action_delay]
        if self.config.action == "muscle":
            return action
        targets = self.guard + self.reach * action
        physics = self.physics
        return self.posture.excite(targets, physics.qpos, physics.qvel, physics.sensors)

    def _plan(self) -> None:
        """What the opponent and the pushes do in this step."""
        key = self._episode_key()
        sensors = self.physics.sensors
        head, pelvis = layout.SENSOR["head_centre_pos"], layout.SENSOR["pelvis_pos"]
        self.opponent.plan(key, sensors[:, head], sensors[:, pelvis])
        self.tasks.prepare(key)

    def _simulate(self, ctrl: Tensor) -> None:
        opponent = self.opponent
        self.physics.step(ctrl, opponent.path_pos, opponent.path_quat, self.tasks.force)

    def _judge(self) -> tuple[Scene, StepEvents]:
        """Sight, punches and tasks after the physics."""
        opponent, scoring, physics = self.opponent, self.scoring, self.physics
        self._look()
        self.sight.remember()
        scoring.judge(
            physics.sensor_history,
            opponent.path_pos,
            opponent.path_quat,
            opponent.hand,
            opponent.throwing,
            opponent.struck,
        )
        opponent.struck.logical_or_(scoring.scored)
        opponent.advance(scoring.touched)
        scene = self._read()
        mark = opponent.fixed[:, 1]
        return scene, self.tasks.advance(scene, self._episode_key(), scoring.bag_speed, mark)

    def _ends(self, scene: Scene, finite: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Terminated, truncated, and broken worlds, each bool of shape (N,)."""
        rule = self.config.episode
        self.elapsed.add_(1)
        whole = torch.cat((scene.qpos, scene.qvel, scene.act), 1)
        speed = scene.qvel.abs().amax(1)
        broken = ~(finite & torch.isfinite(whole).all(1) & (speed < rule.fastest))
        fell = (
            (scene.head[:, 2] < rule.fall_head)
            | (scene.pelvis[:, 2] < rule.fall_pelvis)
            | (scene.up[:, 2] < rule.fall_tilt)
        )
        terminated = fell | broken
        truncated = (self.elapsed >= self._longest) & ~terminated
        return terminated, truncated, broken

    def _reward(
        self, scene: Scene, events: StepEvents, fell: Tensor, broken: Tensor, action: Tensor
    ) -> Tensor:
        """Weighted reward terms, zero in broken worlds, shape (N, len(TERMS))."""
        terms = reward_terms(
            scene,
            self.tasks,
            self.opponent,
            self.scoring,
            events,
            fell,
            action,
            self.last_action,
            self.guard,
            self.config,
        )
        self.last_action.copy_(action)
        weighted = weigh(terms, self.config.rewards)
        return torch.where(broken[:, None], 0.0, torch.nan_to_num(weighted, 0.0, 0.0, 0.0))

    def _count(
        self,
        events: StepEvents,
        weighted: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        broken: Tensor,
    ) -> None:
        """Counts this step, then clears what the physics had to report."""
        ends = (terminated, truncated, broken)
        self.counters.add(self.tasks, self.scoring, events, weighted.sum(1), *ends)
        physics = self.physics
        self.counters.add_limits(physics.overflow, physics.solver_limit)
        self.overflow.copy_(physics.overflow)
        physics.overflow.zero_()
        physics.solver_limit.zero_()

    def _infos(self, final: dict[str, Tensor], done: Tensor, weighted: Tensor) -> dict[str, Any]:
        episode = self.counters.episode() | {"task": self.tasks.kind.clone()}
        log = {f"reward/{n}": v for n, v in zip(TERMS, weighted.mean(0).unbind(0), strict=True)}
        return {
            "final_obs": final,
            "_final_obs": done,
            "episode": episode,
            "_episode": done,
            "log": log,
            "overflow": self.overflow.clone(),
        }

    def _restart(self, mask: Tensor) -> None:
        """Starts the next episode of the worlds of `mask`; others keep every bit."""
        config = self.config
        key = self._episode_key()
        draw = self.draws.uniform(Purpose.START, key, torch.zeros_like(key), 4 + 2 * layout.HINGES)
        fixed = self.tasks.restart(mask, key)
        self.opponent.restart(mask, draw[:, :3], self.tasks.kind == OPPONENT, fixed)
        self.opponent.pose()
        self._scale(mask, key)
        noise = 0.0 if config.evaluation else 1.0
        qpos = self._home.repeat(self.num_envs, 1)
        offset = 2.0 * draw[:, 4 : 4 + layout.HINGES] - 1.0
        qpos[:, layout.HINGE_QPOS] += noise * config.episode.hinge_noise * offset
        qvel = torch.zeros(self.num_envs, layout.NV, device=self.device)
        speed = 2.0 * draw[:, 4 + layout.HINGES :] - 1.0
        qvel[:, layout.HINGE_QVEL] = noise * config.episode.speed_noise * speed
        pos, quat = self.opponent.path_pos[:, 0], self.opponent.path_quat[:, 0]
        self.physics.restart(mask, qpos, qvel, pos, quat)
        self.sight.clear(mask)
        self._look()
        self.episode.add_(mask.to(torch.int32))
        for state in (self.elapsed, self.last_action, self.action_ring, self.counters.counts):
            state.masked_fill_(mask.view(-1, *(1,) * (state.dim() - 1)), 0)

    def _scale(self, mask: Tensor, key: Tensor) -> None:
        """Draws the domain randomisation of the worlds of `mask`; evaluation takes it off."""
        random = self.config.random
        if not (random.scales_model or random.action_delay):
            return
        draw = self.draws.uniform(Purpose.MODEL, key, torch.zeros_like(key), 4)
        delay = (draw[:, 3] * (random.action_delay + 1)).long().clamp_max(random.action_delay)
        ranges = (random.mass, random.friction, random.strength)
        drawn = torch.stack([between(draw[:, i], pair) for i, pair in enumerate(ranges)], 1)
        if self.config.evaluation:
            delay, drawn = torch.zeros_like(delay), torch.ones_like(drawn)
        self.action_delay.copy_(torch.where(mask, delay, self.action_delay))
        self.scales.copy_(torch.where(mask[:, None], drawn, self.scales))
        if random.scales_model:
            self.physics.scale_model(mask, ModelScales(*self.scales.unbind(1)))

    def _episode_key(self) -> Tensor:
        """The number that draws are keyed by: that of the episode, or 0 in evaluation."""
        return self.episode * 0 if self.config.evaluation else self.episode

    def _look(self) -> None:
        """Finds what is seen in the present state; nothing is remembered by it."""
        physics = self.physics
        self.sight.look(physics.sensors, physics.mocap_pos, physics.mocap_quat)

    def _read(self) -> Scene:
        return read_scene(self.physics)

    def _observe(self, scene: Scene) -> dict[str, Tensor]:
        left = 1.0 - self.elapsed.to(torch.float32) / self._longest
        return observe(
            scene,
            self.tasks,
            self.opponent,
            self.sight,
            self.last_action,
            self.scales,
            left,
            self.guard,
            self.config,
        )

    def _raise_on_overflow(self) -> None:
        if self._is_recording():
            raise CapacityError("strict mode reads the host; turn it off to record a step")
        worlds = torch.nonzero(self.overflow).flatten().tolist()
        if worlds:
            bits = int(self.overflow[worlds[0]])
            raise CapacityError(
                f"worlds {worlds} ran out of room (bits {bits}): raise physics.nconmax "
                f"({self.config.physics.nconmax}) or physics.njmax ({self.config.physics.njmax})"
            )

    def _is_recording(self) -> bool:
        if self.device.type == "cuda":
            return torch.cuda.is_current_stream_capturing()
        return bool(wp.get_device("cpu").is_capturing) if wp.is_cpu_available() else False


def _whole(name: str, value: Any) -> int:
    """A whole number, NumPy's included, as a Python one."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number") from None
