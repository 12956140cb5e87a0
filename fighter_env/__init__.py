"""fighter_env: two fighters with sight."""

import gymnasium

from fighter_env.config import DIFFICULTY, TASKS, FighterConfig, only
from fighter_env.env import FighterEnv
from fighter_env.errors import FighterError

__all__ = ["DIFFICULTY", "TASKS", "FighterConfig", "FighterEnv", "FighterError", "only"]

gymnasium.register(id="Fighter-v0", vector_entry_point="fighter_env.env:FighterEnv")
