"""Microbenchmarks of tracker, interception, record and replay: `pytest bench/micro`."""
