"""Launches in, tasks out: the only place that replaces attributes of other packages."""
