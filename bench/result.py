"""The result of a comparison as JSON: `{"machine": {...}, "rows": [...]}`.

Times are milliseconds unless the name says seconds. A field is null where it means nothing for the
row's strategy, and all measured fields are null in the row of a strategy that failed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

import kscheduler

__all__ = ["Comparison", "Machine", "Row", "describe_machine"]

_PACKAGES = ("torch", "warp-lang", "mujoco", "mujoco-warp", "gymnasium", "numpy")


@dataclass(frozen=True)
class Machine:
    """Where and with what a comparison ran.

    Attributes:
        cpu: Model name of the processor.
        cores: Physical cores.
        threads: Logical processors that this process may use.
        torch_threads: Intra-op threads of torch, the same for every arm.
        load: Load average over one minute at the start.
        versions: Package name to version.
        commit: Of the checkout, with "+" if files were changed; "" outside a checkout.
        date: UTC, ISO 8601.
    """

    cpu: str
    cores: int
    threads: int
    torch_threads: int
    load: float
    system: str
    python: str
    versions: dict[str, str]
    commit: str
    date: str


@dataclass
class Row:
    """One strategy on one case.

    Attributes:
        first_call_s: Preparation and first call; for `serial` it includes loading, and if need be
            compiling, the kernels that all strategies share.
        speedup_vs_serial: Median of `serial` over the median of this row.
        speedup_vs_warp_graph: Median of `warp-graph` on the same case, worlds and loop over the
            median of this row; null where that was not measured.
        bitwise_equal: Whether every array of the simulation and the environment and the outputs of
            the last step equal those of `serial`; null for compiled arms, see `max_error`.
        max_error: Largest absolute difference in outputs and state, for compiled arms.
        differs: Names of arrays that differ, where `bitwise_equal` is false.
        critical_path_ms: Longest chain of dependent tasks, by measured kernel time.
        bound: Streams to the best possible speedup over one stream, from the recorded graph.
        ran: The strategy that the window used, which `auto` picks.
        user_ms: Time of the last step in the program's own code and in Python.
        kernels_ms: Run time of all tasks of the last step, summed over streams.
        waiting_ms: Time of the last step in which the host waited.
        notes: What the window has to say.
        frame_skip: Physics steps per step.
        slower: Whether the paired batches show it to be slower than `serial` beyond noise.
        torch_threads: Threads inside one torch op.
        noisy: Whether a counted batch ran beside more than 5% foreign load.
        discarded: Batches thrown away for that reason.
        overflow: Whether contacts or constraint rows did not fit in some world.
        error: Why the strategy failed, in words; null if it did not.
    """

    case: str
    worlds: int
    strategy: str
    streams: int | None = None
    window: int | None = None
    ms_p50: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    first_call_s: float | None = None
    speedup_vs_serial: float | None = None
    speedup_vs_warp_graph: float | None = None
    bitwise_equal: bool | None = None
    tasks: int | None = None
    edges: int | None = None
    levels: int | None = None
    width_mean: float | None = None
    critical_path_ms: float | None = None
    fences: dict[str, int] | None = None
    bound: dict[str, float] | None = None
    ran: str | None = None
    user_ms: float | None = None
    kernels_ms: float | None = None
    waiting_ms: float | None = None
    graph_conditional: bool = True
    iterations: int = 0
    ls_iterations: int = 0
    frame_skip: int = 1
    steps: int = 0
    repeats: int = 0
    torch_threads: int = 1
    max_error: float | None = None
    differs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slower: bool = False
    noisy: bool = False
    discarded: int = 0
    overflow: bool = False
    error: str | None = None

    @property
    def group(self) -> tuple[str, int, bool]:
        """What this row shares with those that it was measured against."""
        return self.case, self.worlds, self.graph_conditional


@dataclass
class Comparison:
    """All rows of one run, and the machine."""

    machine: Machine
    rows: list[Row]

    def relate(self) -> None:
        """Fills what rows say of other rows: `speedup_vs_warp_graph`."""
        medians = {row.group: row.ms_p50 for row in self.rows if row.strategy == "warp-graph"}
        for row in self.rows:
            base = medians.get(row.group)
            row.speedup_vs_warp_graph = base / row.ms_p50 if base and row.ms_p50 else None

    def to_json(self) -> str:
        """The documented JSON, indented."""
        self.relate()
        return json.dumps(asdict(self), indent=2)

    def write(self, path: Path) -> None:
        """Writes the JSON to a file."""
        path.write_text(self.to_json() + "\n")

    @property
    def has_wrong_result(self) -> bool:
        """Whether an exact strategy gave other bits than `serial`."""
        return any(row.bitwise_equal is False for row in self.rows)


def describe_machine() -> Machine:
    """Reads processor, versions, commit and load."""
    return Machine(
        cpu=_cpu_name(),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        threads=_usable_threads(),
        torch_threads=torch.get_num_threads(),
        load=round(psutil.getloadavg()[0], 2),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={"kscheduler": kscheduler.__version__}
        | {name: _version(name) for name in _PACKAGES},
        commit=_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "-uno") else "")
    except OSError:
        return ""
