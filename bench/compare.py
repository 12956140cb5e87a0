"""The `compare` command: all strategies on the chosen cases, interleaved, in one table."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from bench.arms import STRATEGIES, Arm, Strategy, find_strategy, forget_compiled
from bench.cases import CASES, Case, Program, Snapshot, find_case
from bench.errors import UnusableOptionError
from bench.lane import Lane
from bench.plot import plot_timeline
from bench.result import Comparison, Row, describe_machine
from bench.table import show
from kscheduler.trace import write_trace

__all__ = ["CompareOptions", "Group", "compare", "plan", "run_group"]

_UNROLLED_BY_DEFAULT = ("physics/humanoid",)
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass
class CompareOptions:
    """Measures strategies side by side and checks that they agree bit for bit.

    Strategies take turns in short batches; each batch starts from the same state with the same
    actions. Exits with 1 if an exact strategy gave other bits than `serial`, with 2 for an option
    that cannot be used. Ctrl-C prints what was measured so far.
    """

    case: tuple[str, ...] = ("physics/humanoid", "env/humanoid")
    """Cases, as `python -m bench list` shows them; "all" for all."""
    worlds: tuple[int, ...] = (64,)
    """Numbers of worlds."""
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    """Strategies; `serial` always runs, being the oracle."""
    streams: tuple[int, ...] = (2,)
    """Numbers of streams for `stream`, `graph` and `auto`."""
    window: int = 128
    """Size of the window: tasks in flight."""
    steps: int = 30
    """Steps per batch."""
    repeats: int = 3
    """Batches per strategy that count."""
    conditional: Flag = False
    """Only with the solver loop as MuJoCo Warp writes it: it stops when all worlds converged."""
    unrolled: Flag = False
    """Only with the solver loop unrolled; with --conditional: both. Neither flag: conditional, and
    for physics/humanoid unrolled as well."""
    frame_skip: int = 1
    """Physics steps per step of an `env/` case. Gymnasium takes 4 or 5; 1 makes PyTorch weigh
    more."""
    torch_threads: int = 1
    """Threads inside one torch op, the same for every strategy."""
    seed: int = 0
    """Seed of actions and reset noise."""
    json: Path | None = None
    """Where to write machine and rows as JSON."""
    plot: Path | None = Path("out/timeline.png")
    """Where to draw one `graph` step by stream; "None" for nowhere."""
    trace: Path | None = None
    """Where to write the same step as a Chrome trace, for chrome://tracing or Perfetto."""


@dataclass(frozen=True)
class Group:
    """Arms that are measured against each other on one program."""

    case: Case
    worlds: int
    conditional: bool
    arms: tuple[Arm, ...]

    @property
    def title(self) -> str:
        """For people."""
        loop = "conditional" if self.conditional else "unrolled"
        return f"{self.case.name}, {self.worlds} worlds, {loop}"


def compare(options: CompareOptions, out: Console | None = None) -> int:
    """Runs a comparison and shows it.

    Args:
        options: What to measure and where to write.
        out: Where the table goes; standard output if None.

    Returns:
        Exit status: 0, 1 for a wrong result, 130 after an interruption.

    Raises:
        UnknownNameError: A case or strategy does not exist.
        UnusableOptionError: A number is out of range or a file cannot be written.
    """
    groups = plan(options)
    for path in (options.json, options.plot, options.trace):
        _check_writable(path)
    out = out or Console()
    torch.set_num_threads(options.torch_threads)
    comparison = Comparison(describe_machine(), [])
    _warn_if_busy(comparison.machine.load, comparison.machine.threads)
    with _Interruption() as interruption:
        interrupted = not _run_groups(groups, options, comparison, interruption)
    show(comparison, out)
    for path in (options.plot, options.trace):
        if path is not None and path.exists():
            out.print(f"wrote {path}", highlight=False, markup=False)
    if options.json is not None:
        comparison.write(options.json)
        out.print(f"wrote {options.json}", highlight=False, markup=False)
    if interrupted:
        out.print("interrupted: rows show what was measured until then", highlight=False)
        return 130
    return 1 if comparison.has_wrong_result else 0


def plan(options: CompareOptions) -> list[Group]:
    """The groups that the options ask for, checked before anything is built.

    Raises:
        UnknownNameError: A case or strategy does not exist.
        UnusableOptionError: A number is out of range, or nothing is left to measure.
    """
    _check_numbers(options)
    names = tuple(STRATEGIES) if "all" in options.strategies else options.strategies
    strategies = [find_strategy(name) for name in dict.fromkeys(("serial", *names))]
    groups = [
        Group(case, worlds, conditional, _arms(strategies, case, options))
        for case in _cases(options.case)
        for worlds in dict.fromkeys(options.worlds)
        for conditional in _loops(case, options)
    ]
    if not groups:
        raise UnusableOptionError("nothing to measure: name a case and a number of worlds")
    return groups


def _cases(names: tuple[str, ...]) -> list[Case]:
    if "all" in names:
        return list(CASES.values())
    return [find_case(name) for name in dict.fromkeys(names)]


def _loops(case: Case, options: CompareOptions) -> list[bool]:
    if options.conditional or options.unrolled:
        return [True] * options.conditional + [False] * options.unrolled
    return [True, False] if case.name in _UNROLLED_BY_DEFAULT else [True]


def _arms(strategies: list[Strategy], case: Case, options: CompareOptions) -> tuple[Arm, ...]:
    arms: list[Arm] = []
    for strategy in strategies:
        if case.kind not in strategy.kinds:
            continue
        if strategy.windowed:
            arms += [Arm(strategy, n, options.window) for n in dict.fromkeys(options.streams)]
        else:
            arms.append(Arm(strategy))
    return tuple(arms)


def _check_numbers(options: CompareOptions) -> None:
    numbers = {
        "--window": (options.window,),
        "--steps": (options.steps,),
        "--repeats": (options.repeats,),
        "--frame-skip": (options.frame_skip,),
        "--torch-threads": (options.torch_threads,),
        "--worlds": options.worlds,
        "--streams": options.streams,
    }
    for option, values in numbers.items():
        for value in values:
            if value < 1:
                raise UnusableOptionError(f"{option} must be at least 1, not {value}")


def _check_writable(path: Path | None) -> None:
    """Finds out before the run whether a file can be written; leaves no empty file behind."""
    if path is None:
        return
    existed = path.exists()
    try:
        if path.parent == Path("out"):
            path.parent.mkdir(exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise UnusableOptionError(f"cannot write {path}: {error.strerror}") from error
    if not existed:
        path.unlink()


def _warn_if_busy(load: float, threads: int) -> None:
    if load > threads / 2:
        message = f"the machine is busy (load {load:.2f} on {threads} threads): times will be noisy"
        print(message, file=sys.stderr)


def _run_groups(
    groups: list[Group],
    options: CompareOptions,
    comparison: Comparison,
    interruption: _Interruption,
) -> bool:
    """Measures all groups into `comparison`; False if the user interrupted."""
    total = sum(len(group.arms) * (1 + options.repeats) for group in groups)
    wants_timeline = options.plot is not None or options.trace is not None
    with _progress(total) as advance:
        for group in groups:
            lanes: list[Lane] = []
            try:
                for says in run_group(group, options, lanes):
                    interruption.check()
                    advance(f"{group.title}: {says}")
                if wants_timeline:
                    wants_timeline = not _draw(lanes, group, options)
            except KeyboardInterrupt:
                comparison.rows += _rows(lanes)
                return False
            comparison.rows += _rows(lanes)
            forget_compiled()
    return True


def run_group(group: Group, options: CompareOptions, lanes: list[Lane]) -> Iterator[str]:
    """Measures the arms of a group, interleaved.

    Args:
        group: What to measure.
        options: Steps, repeats, seed and frame skip.
        lanes: Receives one lane per arm, the first being `serial`.

    Yields:
        A line for people after each call or batch.
    """
    program = Program(
        group.case,
        group.worlds,
        conditional=group.conditional,
        steps=options.steps,
        frame_skip=options.frame_skip,
        seed=options.seed,
    )
    lanes += [Lane(arm, program) for arm in group.arms]
    for lane in lanes:
        yield f"first call of {lane.arm.label}"
        lane.first_call()
    expected: Snapshot | None = None
    for repeat in range(options.repeats):
        for lane in lanes:
            yield f"{lane.arm.label}, batch {repeat + 1} of {options.repeats}"
            actual = lane.measure(options.steps, max_discarded=max(1, options.repeats // 2))
            expected = expected or actual
            if actual is not None and expected is not None:
                lane.check(expected, actual)


def _rows(lanes: list[Lane]) -> list[Row]:
    return [lane.row(lanes[0]) for lane in lanes]


def _draw(lanes: list[Lane], group: Group, options: CompareOptions) -> bool:
    """Writes the timeline of the first `graph` lane that has one; whether it did."""
    for lane in lanes:
        if lane.arm.strategy.name != "graph":
            continue
        events = lane.timeline()
        if not events:
            continue
        if options.plot is not None:
            plot_timeline(events, f"{group.title}: one step, {lane.arm.label}", options.plot)
        if options.trace is not None:
            write_trace(options.trace, events)
        return True
    return False


class _Interruption:
    """Ctrl-C and SIGTERM as KeyboardInterrupt, remembered where a callback swallows it."""

    def __init__(self) -> None:
        self._requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises KeyboardInterrupt if one was asked for."""
        if self._requested:
            raise KeyboardInterrupt

    def _request(self, *_: object) -> None:
        self._requested = True
        raise KeyboardInterrupt


class _progress:
    """A progress bar on standard error; one line per group where that is no terminal."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._total = total
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal or bool(os.environ.get("CI")),
        )

    def __enter__(self) -> Callable[[str], None]:
        self._progress.start()
        self._task = self._progress.add_task("", total=self._total)
        self._done = -1
        self._group = ""
        return self._advance

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _advance(self, says: str) -> None:
        self._done += 1
        self._progress.update(self._task, completed=self._done, description=says)
        group = says.split(":", 1)[0]
        if self._progress.disable and group != self._group:
            print(f"measuring {group}", file=sys.stderr)
        self._group = group
