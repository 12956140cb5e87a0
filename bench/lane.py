"""One arm on one program: its first call, its batches, its check against `serial`, its row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.arms import Arm
from bench.cases import Program, Snapshot
from bench.measure import (
    Batch,
    Spread,
    is_slower,
    largest_error,
    measure_quietly,
    run_batch,
    spread,
    unequal_arrays,
)
from bench.result import Row

__all__ = ["Lane"]

# Compiled code may differ in the last bits, and contact buffers then differ in order: only what a
# user sees of a step is compared for it.
_SEEN_BY_USERS = ("qpos", "qvel")


class Lane:
    """One arm on one program.

    Args:
        arm: What to run.
        program: On what; shared by the lanes of a group, which restore it before every batch.

    Attributes:
        batches: Those that count.
        error: Why the arm failed; a failed lane does nothing more.
    """

    def __init__(self, arm: Arm, program: Program) -> None:
        self.arm = arm
        self.program = program
        self.step: Callable[[], Any] | None = None
        self.batches: list[Batch] = []
        self.steps = 0
        self.discarded = 0
        self.first_call_s: float | None = None
        self.unequal: set[str] = set()
        self.max_error = 0.0
        self.overflow = False
        self.error: str | None = None

    def first_call(self) -> None:
        """Prepares the arm and calls it, timed as one; then warms it up."""
        self._guarded(self._first_call)

    def measure(self, steps: int, max_discarded: int) -> Snapshot | None:
        """Runs one batch that counts.

        Args:
            steps: Steps of the batch.
            max_discarded: Noisy batches that this lane may throw away in all.

        Returns:
            Everything the batch left behind, or None if the arm has failed.
        """
        return self._guarded(lambda: self._measure(steps, max_discarded))

    def check(self, expected: Snapshot, actual: Snapshot) -> None:
        """Compares what a batch left behind with what `serial` left behind."""
        if self.arm.strategy.exact:
            self.unequal.update(unequal_arrays(expected, actual))
            return
        seen = [name for name in expected if name.startswith("output.") or name in _SEEN_BY_USERS]
        error = largest_error(
            {name: expected[name] for name in seen}, {name: actual[name] for name in seen}
        )
        self.max_error = max(self.max_error, error)

    def report(self) -> Any:
        """The window's report of the last call, or None for arms without a window."""
        return getattr(self.step, "report", None) if self.arm.strategy.windowed else None

    def timeline(self) -> list[Any]:
        """The trace events of one more call, from the start state; empty without a window."""
        if self.error is not None or not hasattr(self.step, "timeline"):
            return []
        self.program.restore()
        self.program.load_action(0)
        self.step()
        return list(self.step.timeline())

    def row(self, serial: Lane) -> Row:
        """The result beside that of `serial`; fields that were not measured stay null."""
        program, arm = self.program, self.arm
        row = Row(
            case=program.case.name,
            worlds=program.simulation.worlds,
            strategy=arm.strategy.name,
            streams=arm.streams,
            window=arm.window,
            first_call_s=self.first_call_s,
            graph_conditional=bool(program.simulation.model.opt.graph_conditional),
            iterations=program.simulation.host.opt.iterations,
            ls_iterations=program.simulation.host.opt.ls_iterations,
            frame_skip=program.task.frame_skip if program.case.kind == "env" else 1,
            steps=self.steps,
            torch_threads=torch.get_num_threads(),
            repeats=len(self.batches),
            discarded=self.discarded,
            noisy=any(batch.is_noisy for batch in self.batches),
            overflow=self.overflow,
            error=self.error,
        )
        if self.batches and self.error is None:
            self._fill_times(row, serial)
            self._fill_report(row)
        return row

    def _first_call(self) -> None:
        self.program.restore()
        self.program.load_action(0)
        start = time.perf_counter()
        self.step = self.arm.prepare(self.program)
        self.step()
        self.first_call_s = time.perf_counter() - start
        for index in range(1, 1 + self.arm.strategy.warm_calls):
            self.program.load_action(index)
            self.step()

    def _measure(self, steps: int, max_discarded: int) -> Snapshot:
        assert self.step is not None
        step = self.step
        retries = max(0, max_discarded - self.discarded)
        batch, thrown = measure_quietly(lambda: run_batch(self.program, step, steps), retries)
        self.batches.append(batch)
        self.steps = steps
        self.discarded += thrown
        self.overflow |= self.program.simulation.overflowed()
        return self.program.snapshot(batch.outputs)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        if self.error is not None:
            return None
        try:
            return action()
        except Exception as error:
            # A strategy may fail in any way; its row says how, and the other arms go on.
            first = (str(error).strip().splitlines() or ["no message"])[0]
            self.error = f"{type(error).__name__}: {first}"
            return None

    def _spread(self) -> Spread:
        return spread([second for batch in self.batches for second in batch.seconds])

    def _fill_times(self, row: Row, serial: Lane) -> None:
        times = self._spread()
        row.ms_p50, row.ms_p20, row.ms_p80 = (
            1e3 * value for value in (times.p50, times.p20, times.p80)
        )
        if serial.batches:
            row.speedup_vs_serial = serial._spread().p50 / times.p50
            pairs = list(zip(serial.batches, self.batches, strict=False))
            row.slower = is_slower(
                [spread(base.seconds).p50 for base, _ in pairs],
                [spread(own.seconds).p50 for _, own in pairs],
            )
        if self.arm.strategy.exact:
            row.bitwise_equal = not self.unequal
            row.differs = sorted(self.unequal)
        else:
            row.max_error = self.max_error

    def _fill_report(self, row: Row) -> None:
        report = self.report()
        if report is None:
            return
        row.tasks, row.edges, row.levels = report.tasks, report.edges, report.levels
        row.width_mean = report.width_mean
        row.critical_path_ms = 1e3 * report.critical_path_s
        row.fences = dict(report.fences)
        row.bound = {str(streams): value for streams, value in report.bound.items()}
        row.ran, row.notes = report.strategy, list(report.notes)
        row.user_ms = 1e3 * report.seconds_user
        row.kernels_ms = 1e3 * report.seconds_kernels
        row.waiting_ms = 1e3 * report.seconds_waiting
