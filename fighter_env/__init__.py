"""fighter_env."""
