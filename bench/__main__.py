"""The command line: `python -m bench --help`. A new command is one entry in `COMMANDS`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro
import warp as wp

from bench.arms import STRATEGIES
from bench.cases import CASES
from bench.check import CheckOptions, check
from bench.compare import CompareOptions, compare
from bench.errors import Error
from bench.fuzz.command import FuzzOptions, fuzz

__all__ = ["COMMANDS", "main"]


@dataclass
class ListOptions:
    """Lists the cases and strategies that `compare` knows."""


def list_names(options: ListOptions) -> int:
    """Prints cases and strategies; returns 0."""
    for title, entries in (("cases", CASES), ("strategies", STRATEGIES)):
        print(title)
        for name, entry in entries.items():
            print(f"  {name:22}{entry.says}")
    return 0


# Name on the command line: its options and what runs them; the options' docstring is the help.
COMMANDS: dict[str, tuple[type, Callable[[Any], int]]] = {
    "compare": (CompareOptions, compare),
    "check": (CheckOptions, check),
    "fuzz": (FuzzOptions, fuzz),
    "list": (ListOptions, list_names),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The command line without the program's name; that of the process if None.

    Returns:
        Exit status: that of the command, or 2 for an option that cannot be used.
    """
    options = tyro.extras.subcommand_type_from_defaults(
        {name: kind() for name, (kind, _) in COMMANDS.items()},
        descriptions={name: inspect.getdoc(kind) or "" for name, (kind, _) in COMMANDS.items()},
    )
    chosen = tyro.cli(
        options,
        prog="python -m bench",
        description="Measures what each scheduling strategy gains on simulator steps.",
        args=arguments,
    )
    run = next(run for kind, run in COMMANDS.values() if isinstance(chosen, kind))
    wp.config.log_level = wp.LOG_WARNING
    try:
        return run(chosen)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
