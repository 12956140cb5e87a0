"""fighter_env: two fighters with sight, on MuJoCo Warp and on MuJoCo C.

Ours is a muscle body of 25 hinges and 50 muscles; the opponent replays recorded punches. A world
draws one of five tasks per episode: face the opponent, block on cue, walk to a spot, punch the bag,
recover from a push. Observations, rewards and actions are float32 torch tensors on the device::

    import torch
    from fighter_env import FighterConfig, FighterEnv
    from fighter_env.teacher import LEG_COLUMNS, Teacher

    env = FighterEnv(16, device="cpu", physics="mujoco", config=FighterConfig())
    teacher = Teacher.load()
    observations, _ = env.reset(seed=0)
    for step in range(20):
        action = 0.1 * torch.randn(env.action_space.shape)  # 0 holds the guard
        action[:, LEG_COLUMNS] = 0.2 * teacher(observations["teacher"])
        observations, reward, terminated, truncated, infos = env.step(action)
        done = terminated | truncated
        last = infos["final_obs"]["critic"]  # the observation before a restart, for bootstrapping
        returns = infos["episode"]["return"][done]
    env.close()

`layout` says where each value of an observation stands; ``python -m fighter_env info`` prints it.
"""

import gymnasium

from fighter_env.config import DIFFICULTY, TASKS, FighterConfig, only
from fighter_env.env import FighterEnv
from fighter_env.errors import FighterError

__all__ = ["DIFFICULTY", "TASKS", "FighterConfig", "FighterEnv", "FighterError", "only"]

gymnasium.register(id="Fighter-v0", vector_entry_point="fighter_env.env:FighterEnv")
