"""The search for wrong results: random programs, run in a window and as written, bit for bit."""
