"""The command `python -m bench fuzz`: random programs until their number or a mismatch."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.errors import Error
from bench.fuzz.generate import Program, generate, show
from bench.fuzz.run import Outcome, as_written, difference, in_window
from bench.fuzz.shrink import missing_edge, shrink

__all__ = ["FuzzOptions", "Tally", "check", "fuzz"]


class NothingToRun(Error):
    """No program was asked for."""


@dataclass
class FuzzOptions:
    """Runs random programs in a window and as written, and compares every byte.

    Program i is that of seed `seed + i`; the same seed gives the same program.
    """

    programs: int = 1000
    """How many programs to run."""
    seed: int = 0
    """Seed of the first program."""
    strategy: Literal["stream", "graph"] | None = None
    """Run the programs of this strategy only."""
    keep_going: bool = False
    """Go on after a mismatch, without shrinking it."""


@dataclass
class Tally:
    """What the programs did.

    Attributes:
        programs: How many were run.
        overlapped: Those in which at least two tasks ran at the same time.
        graphs: Those that were recorded.
        replayed: Those whose recording was replayed.
        refused: Those that a recording refused, as it had to.
        mismatches: (seed, what differed).
    """

    programs: int = 0
    overlapped: int = 0
    graphs: int = 0
    replayed: int = 0
    refused: int = 0
    mismatches: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, seed: int, program: Program, found: Outcome, wrong: str | None) -> None:
        """Counts one program."""
        self.programs += 1
        self.overlapped += found.overlapped > 0
        self.graphs += program.strategy == "graph"
        self.replayed += found.replayed
        self.refused += any(name.endswith("refused") for name, _ in found.seen)
        if wrong:
            self.mismatches.append((seed, wrong))

    def text(self) -> str:
        """One line."""
        share = 100 * self.overlapped / max(1, self.programs)
        return (
            f"{self.programs} programs, {self.overlapped} with an overlap of two tasks "
            f"({share:.0f}%), {self.graphs} recorded ({self.replayed} replayed, {self.refused} "
            f"refused), {len(self.mismatches)} mismatches"
        )


def check(seed: int, tally: Tally, strategy: str | None = None) -> Program | None:
    """Runs the program of one seed; returns it if its results were wrong."""
    program = generate(random.Random(seed))
    if strategy not in (None, program.strategy):
        return None
    found = in_window(program)
    wrong = difference(as_written(program), found)
    tally.add(seed, program, found, wrong)
    return program if wrong else None


def fuzz(options: FuzzOptions) -> int:
    """Runs the programs and prints what was found; returns 1 after a mismatch.

    Raises:
        NothingToRun: The number of programs is not positive.
    """
    if options.programs < 1:
        raise NothingToRun(f"--programs {options.programs}: give a positive number")
    tally = Tally()
    columns = (TextColumn("programs"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("programs", total=options.programs)
        for seed in range(options.seed, options.seed + options.programs):
            wrong = check(seed, tally, options.strategy)
            progress.advance(bar)
            if wrong is not None and not options.keep_going:
                break
    print(tally.text())
    for seed, what in tally.mismatches:
        print(f"seed {seed}: {what}")
    if tally.mismatches and not options.keep_going and wrong is not None:
        _explain(wrong, tally.mismatches[-1][0])
    return 1 if tally.mismatches else 0


def _explain(program: Program, seed: int) -> None:
    print(f"again: python -m bench fuzz --programs 1 --seed {seed}")
    smallest = shrink(program)
    print(show(smallest))
    print(smallest)
    edge = missing_edge(smallest)
    if edge is not None:
        print(f"missing edge: {edge[0].name}{edge[0].numbers} -> {edge[1].name}{edge[1].numbers}")
