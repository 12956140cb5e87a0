"""What Warp's builtins do to the memory behind their arguments, by their name in generated code.

A builtin that is in none of these tables is taken to read and write whatever its arguments reach.
"""

from __future__ import annotations

import re

__all__ = [
    "NO_ACCESS",
    "PASSES_ON",
    "POINTS_INTO",
    "READS",
    "WRITES_FIRST",
    "is_arithmetic",
    "is_atomic",
]

# Look at the header of an array only.
NO_ACCESS = frozenset({"wp::len", "wp::unot"})

# The result leads to what the arguments lead to.
PASSES_ON = frozenset({"wp::copy", "wp::where", "wp::select", "wp::tuple", "wp::extract"})

# The result is a place in the first argument.
POINTS_INTO = frozenset({"wp::address", "wp::index", "wp::indexref"})

READS = frozenset(
    {"wp::tile_load", "wp::tile_load_indexed", "wp::lower_bound", "wp::print", "wp::sample_cdf"}
)

# Write what the first argument is or points to.
WRITES_FIRST = frozenset(
    {"wp::store", "wp::array_store", "wp::tile_store", "wp::tile_store_indexed"}
)

_ATOMIC = re.compile(r"wp::(?:tile_|array_)?atomic_\w+")
_ARITHMETIC = re.compile(
    r"bool|int|float|printf|assert|wp::(?:u?int\d+|float\d+|bool|vec_t|mat_t|load|store|address|index|"
    r"indexref|array_store|view|copy|where|select|tuple|extract|print|len|lower_bound|add|sub|mul|"
    r"div|floordiv|mod|min|max|clamp|abs|sign|neg|pos|unot|invert|bit_\w+|lshift|rshift|popcount|"
    r"(?:array_)?atomic_\w+|slice_t|range|assign\w*|\w+_inplace)"
)


def is_atomic(name: str) -> bool:
    """Whether a builtin reads and writes what its first argument is."""
    return _ATOMIC.fullmatch(name) is not None


def is_arithmetic(name: str) -> bool:
    """Whether a call takes 64-bit unsigned integers as numbers.

    Any other call may be a query of the mesh, BVH, hash grid, volume or texture of that id, or make
    an array of an address.
    """
    return _ARITHMETIC.fullmatch(name) is not None
