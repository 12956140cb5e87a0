"""The table: a rich one on a terminal, aligned plain rows elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from bench.result import Comparison, Row

__all__ = ["legend", "plain_rows", "show"]

Column = tuple[str, str, Callable[[Row], str]]

_COLUMNS: tuple[Column, ...] = (
    ("case", "left", lambda row: row.case),
    ("worlds", "right", lambda row: str(row.worlds)),
    ("loop", "left", lambda row: "conditional" if row.graph_conditional else "unrolled"),
    ("strategy", "left", lambda row: row.strategy),
    ("streams", "right", lambda row: _number(row.streams, "{}")),
    ("ms p50", "right", lambda row: _number(row.ms_p50, "{:.2f}")),
    ("p20-p80", "right", lambda row: _range(row)),
    ("speedup", "right", lambda row: _number(row.speedup_vs_serial, "{:.2f}x")),
    ("vs warp-graph", "right", lambda row: _number(row.speedup_vs_warp_graph, "{:.2f}x")),
    ("equal", "left", lambda row: _equality(row)),
    ("first s", "right", lambda row: _number(row.first_call_s, "{:.2f}")),
    ("tasks", "right", lambda row: _number(row.tasks, "{}")),
    ("edges", "right", lambda row: _number(row.edges, "{}")),
    ("levels", "right", lambda row: _number(row.levels, "{}")),
    ("path ms", "right", lambda row: _number(row.critical_path_ms, "{:.2f}")),
    ("bound", "right", lambda row: _bound(row)),
    ("note", "left", lambda row: _note(row)),
)

_FOLDED = ("case", "strategy", "note")  # where even that is not enough; numbers stay whole
_DROPPED_FIRST = ("edges", "levels", "path ms", "first s", "tasks", "p20-p80", "bound", "loop")


def show(comparison: Comparison, console: Console) -> None:
    """Prints the machine and all rows.

    Args:
        comparison: What to print; rows may be missing after an interruption.
        console: Where; decides whether colours and lines make sense.
    """
    comparison.relate()
    machine = comparison.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    heading = (
        f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads, "
        f"load {machine.load:.2f}, {machine.torch_threads} torch threads; {versions}; "
        f"commit {machine.commit or 'unknown'}"
    )
    console.print(heading, highlight=False, soft_wrap=not console.is_terminal)
    if console.is_terminal:
        console.print(_rich_table(comparison.rows, console.width))
    else:
        for line in plain_rows(comparison.rows):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in legend():
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


def legend() -> list[str]:
    """What the columns mean."""
    return [
        "speedup: over serial, much of it launch cost that any graph removes · vs warp-graph: "
        "over Warp's own CPU graph, which runs one kernel after the other",
        "equal: every array bit for bit that of serial, or, for compiled code, its largest error",
        "levels, path ms: the longest chain of dependent tasks, counted and by kernel time · "
        "bound: what the graph allows over one stream, of kernel time",
        "noisy: ran beside other processes; a second stream gains nothing while its core is "
        "taken, so run again when the machine is idle",
    ]


def plain_rows(rows: Sequence[Row]) -> list[str]:
    """Header and rows, columns aligned by spaces."""
    cells = [[title for title, _, _ in _COLUMNS]]
    cells += [[read(row) for _, _, read in _COLUMNS] for row in rows]
    widths = [_width(column, rows) for column in _COLUMNS]
    return [
        "  ".join(
            text.rjust(width) if justify == "right" else text.ljust(width)
            for text, width, (_, justify, _) in zip(line, widths, _COLUMNS, strict=True)
        ).rstrip()
        for line in cells
    ]


def _width(column: Column, rows: Sequence[Row]) -> int:
    title, _, read = column
    return max(len(title), *(len(read(row)) for row in rows)) if rows else len(title)


def _fitting_columns(rows: Sequence[Row], width: int) -> list[Column]:
    """All columns, or without the less telling ones where the terminal is narrow."""
    columns = list(_COLUMNS)
    for title in _DROPPED_FIRST:
        needed = sum(
            2 + (min(20, _width(column, rows)) if column[0] == "note" else _width(column, rows))
            for column in columns
        )
        if needed <= width:
            break
        columns = [column for column in columns if column[0] != title]
    return columns


def _rich_table(rows: Sequence[Row], width: int) -> Table:
    columns = _fitting_columns(rows, width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, justify, _ in columns:
        table.add_column(title, justify=justify, no_wrap=title not in _FOLDED, overflow="fold")
    previous = None
    for row in rows:
        if previous not in (None, row.group):
            table.add_section()
        previous = row.group
        wrong = row.error is not None or row.bitwise_equal is False
        table.add_row(*(read(row) for _, _, read in columns), style="red" if wrong else None)
    return table


def _number(value: float | int | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _range(row: Row) -> str:
    if row.ms_p20 is None or row.ms_p80 is None:
        return "-"
    return f"{row.ms_p20:.2f}-{row.ms_p80:.2f}"


def _equality(row: Row) -> str:
    if row.bitwise_equal is not None:
        return "yes" if row.bitwise_equal else "NO"
    return "-" if row.max_error is None else f"{row.max_error:.1e}"


def _bound(row: Row) -> str:
    if not row.bound or str(row.streams) not in row.bound:
        return "-"
    return f"{row.bound[str(row.streams)]:.2f}x"


def _note(row: Row) -> str:
    notes = []
    if row.error:
        notes.append(row.error)
    elif row.ms_p50 is None:
        notes.append("not measured")
    if row.ran not in (None, row.strategy):
        notes.append(f"ran {row.ran}")
    if row.differs:
        names = ", ".join(row.differs[:3])
        notes.append(f"{len(row.differs)} arrays differ: {names}")
    if row.overflow:
        notes.append("contacts or constraints overflowed")
    if row.slower:
        notes.append("slower than serial")
    if row.noisy:
        notes.append("noisy")
    if row.fences:
        notes.append("fences: " + ", ".join(f"{why} {n}" for why, n in row.fences.items()))
    return "; ".join(notes)
