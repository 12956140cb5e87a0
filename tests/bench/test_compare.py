"""The comparison: what it plans, how it fails, and what it writes."""

import json
import os
import signal
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench import arms, compare, measure
from bench.__main__ import COMMANDS, main
from bench.arms import STRATEGIES, Strategy
from bench.cases import CASES
from bench.compare import CompareOptions, plan
from bench.result import Comparison, Row, describe_machine
from bench.table import legend, plain_rows, show

SMALL = CompareOptions(
    case=("physics/half_cheetah",),
    worlds=(2,),
    strategies=("serial",),
    steps=2,
    repeats=2,
    plot=None,
)
ISSUED_ROW_KEYS = {
    "case",
    "worlds",
    "strategy",
    "streams",
    "window",
    "ms_p50",
    "ms_p20",
    "ms_p80",
    "first_call_s",
    "speedup_vs_serial",
    "speedup_vs_warp_graph",
    "bitwise_equal",
    "tasks",
    "edges",
    "levels",
    "width_mean",
    "critical_path_ms",
    "fences",
    "graph_conditional",
    "iterations",
    "max_error",
    "noisy",
    "steps",
}


@pytest.fixture(autouse=True)
def short_batches(monkeypatch):
    """No batch is stretched or repeated: these tests look at everything but times."""
    monkeypatch.setattr(measure, "_SHORTEST_BATCH_SECONDS", 1e-9)
    monkeypatch.setattr(measure, "FOREIGN_LOAD_LIMIT", 1.0)


@pytest.fixture
def add_strategy(monkeypatch):
    """Registers a strategy for one test."""

    def add(name, prepare, **options):
        strategy = Strategy(name, "planted by a test", prepare, **options)
        monkeypatch.setitem(STRATEGIES, name, strategy)

    return add


def measured(tmp_path, **changes):
    """Exit status and JSON of a small comparison."""
    path = tmp_path / "result.json"
    status = compare.compare(replace(SMALL, json=path, **changes), Console(quiet=True))
    return status, json.loads(path.read_text())


def labels(group):
    return [arm.label for arm in group.arms]


def test_default_plan_is_humanoid_with_both_loops_and_its_environment():
    assert [group.title for group in plan(CompareOptions())] == [
        "physics/humanoid, 64 worlds, conditional",
        "physics/humanoid, 64 worlds, unrolled",
        "env/humanoid, 64 worlds, conditional",
    ]


def test_compiled_strategies_apply_to_environments_only():
    physics, env = plan(replace(SMALL, case=("physics/ant", "env/ant"), strategies=("all",)))
    assert labels(physics) == [
        "serial",
        "warp-graph",
        "stream, 2 streams",
        "graph, 2 streams",
        "auto, 2 streams",
    ]
    assert set(labels(env)) - set(labels(physics)) == {"torch-compile", "warp-graph+compile"}


def test_serial_is_always_first_and_streams_multiply_windowed_arms():
    (group,) = plan(replace(SMALL, strategies=("graph", "warp-graph"), streams=(1, 4)))
    assert labels(group) == ["serial", "graph, 1 streams", "graph, 4 streams", "warp-graph"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [True]),
        ({"conditional": True}, [True]),
        ({"unrolled": True}, [False]),
        ({"conditional": True, "unrolled": True}, [True, False]),
    ],
)
def test_loop_flags_choose_rows(flags, expected):
    assert [group.conditional for group in plan(replace(SMALL, **flags))] == expected


def test_all_means_every_case():
    planned = plan(replace(SMALL, case=("all",), conditional=True))
    assert [group.case.name for group in planned] == list(CASES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--case", "physics/dog"], "there is no case 'physics/dog'; known: physics/ant"),
        (["--strategies", "streem"], "there is no strategy 'streem'; known: serial, warp-graph"),
        (["--worlds", "0"], "--worlds must be at least 1, not 0"),
        (["--streams", "0"], "--streams must be at least 1, not 0"),
        (["--steps", "-3"], "--steps must be at least 1, not -3"),
        (["--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json: No such"),
        (["--plot", "/"], "cannot write /: Is a directory"),
        (["--case"], "nothing to measure"),
    ],
)
def test_unusable_options_are_refused_before_the_run(arguments, words, capsys):
    assert main(["compare", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_refusal_leaves_no_file(tmp_path):
    path = tmp_path / "x.json"
    assert main(["compare", "--json", str(path), "--trace", "/no/such/x"]) == 2
    assert not path.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    explained = " ".join(COMMANDS[command][0].__doc__.split()[:3])
    assert explained in " ".join(capsys.readouterr().out.split())


def test_list_names_every_case_and_strategy(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.split()
    assert set(CASES) | set(STRATEGIES) <= set(shown)


def test_json_has_the_documented_form(tmp_path):
    status, result = measured(tmp_path, strategies=("serial", "warp-graph"))
    assert status == 0
    assert set(result) == {"machine", "rows"}
    known = {"cpu", "cores", "threads", "versions", "commit", "date", "load"}
    assert known <= set(result["machine"])
    serial, warp = result["rows"]
    assert ISSUED_ROW_KEYS <= set(serial) == {field.name for field in fields(Row)}
    assert serial["strategy"] == "serial"
    assert serial["speedup_vs_serial"] == warp["speedup_vs_warp_graph"] == 1.0
    assert serial["speedup_vs_warp_graph"] == pytest.approx(1 / warp["speedup_vs_serial"])
    assert warp["bitwise_equal"] is serial["bitwise_equal"] is True
    assert warp["ms_p20"] <= warp["ms_p50"] <= warp["ms_p80"]
    assert (warp["iterations"], warp["graph_conditional"], warp["steps"]) == (5, True, 2)
    assert warp["repeats"] == 2
    assert warp["error"] is None


@pytest.mark.parametrize("case", ["physics/half_cheetah", "env/half_cheetah"])
def test_every_exact_strategy_leaves_the_same_bits(tmp_path, case):
    exact = tuple(name for name, strategy in STRATEGIES.items() if strategy.exact)
    trace, plot = tmp_path / "trace.json", tmp_path / "timeline.png"
    options = {"case": (case,), "strategies": exact, "streams": (1, 2), "steps": 12}
    status, result = measured(tmp_path, **options, trace=trace, plot=plot)
    assert status == 0
    assert [row["error"] for row in result["rows"]] == [None] * len(result["rows"])
    assert all(row["bitwise_equal"] for row in result["rows"])
    graph = next(row for row in result["rows"] if row["strategy"] == "graph")
    assert graph["tasks"] > graph["levels"] > 0
    assert plot.stat().st_size > 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"}


def test_strategy_that_raises_is_a_row_in_words_and_the_others_go_on(tmp_path, add_strategy):
    def prepare(program, arm):
        raise ValueError("no such trick\nsecond line")

    add_strategy("broken", prepare)
    status, result = measured(tmp_path, strategies=("broken", "warp-graph"))
    _, broken, warp = result["rows"]
    assert broken["error"] == "ValueError: no such trick"
    assert broken["ms_p50"] is broken["bitwise_equal"] is None
    assert warp["bitwise_equal"] is True
    assert status == 0


def test_strategy_that_raises_in_a_batch_is_a_row_in_words(tmp_path, add_strategy):
    def prepare(program, arm):
        calls = []

        def step():
            calls.append(program.step())
            if len(calls) > 4:
                raise RuntimeError("worn out")

        return step

    add_strategy("tired", prepare)
    _, result = measured(tmp_path, strategies=("tired",))
    assert result["rows"][1]["error"] == "RuntimeError: worn out"
    assert result["rows"][1]["ms_p50"] is None


def wrong_step(program, arm):
    def step():
        outputs = program.step()
        program.task.qvel[1, 2] += 1e-6
        return outputs

    return step


def test_wrong_bits_are_named_and_exit_with_one(tmp_path, add_strategy):
    add_strategy("wrong", wrong_step)
    status, result = measured(tmp_path, strategies=("wrong",))
    row = result["rows"][1]
    assert status == 1
    assert row["bitwise_equal"] is False
    assert "qvel" in row["differs"]


def test_inexact_strategy_reports_its_largest_error_instead(tmp_path, add_strategy):
    add_strategy("close", wrong_step, exact=False)
    status, result = measured(tmp_path, strategies=("close",))
    row = result["rows"][1]
    assert status == 0
    assert row["bitwise_equal"] is None
    assert 0.0 < row["max_error"] < 1e-2


def test_batches_take_turns(monkeypatch, tmp_path, add_strategy):
    order = []

    def prepare(program, arm):
        def step():
            order.append(arm.strategy.name)
            return program.step()

        return step

    add_strategy("a", prepare, warm_calls=0)
    add_strategy("b", prepare, warm_calls=0)
    monkeypatch.setattr(compare.Lane, "measure", lambda lane, *_, **__: lane.step() and None)
    measured(tmp_path, strategies=("a", "b"), repeats=3)
    assert order == ["a", "b", "a", "b", "a", "b", "a", "b"]


def test_interruption_prints_what_was_measured(tmp_path, add_strategy, monkeypatch):
    original, calls = compare.Lane.measure, []

    def interrupted(lane, steps, max_discarded):
        calls.append(lane)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return original(lane, steps, max_discarded)

    monkeypatch.setattr(compare.Lane, "measure", interrupted)
    status, result = measured(tmp_path, strategies=("warp-graph",))
    assert status == 130
    assert [row["repeats"] for row in result["rows"]] == [1, 1]
    assert all(row["ms_p50"] > 0.0 for row in result["rows"])


def test_terminated_run_prints_what_was_measured(tmp_path, monkeypatch):
    original, calls = compare.Lane.measure, []

    def terminated(lane, steps, max_discarded):
        calls.append(lane)
        if len(calls) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(lane, steps, max_discarded)

    monkeypatch.setattr(compare.Lane, "measure", terminated)
    before = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "result.json"
    arguments = ["--case", "physics/half_cheetah", "--worlds", "2", "--steps", "2"]
    arguments += ["--strategies", "warp-graph", "--plot", "None", "--json", str(path)]
    assert main(["compare", *arguments]) == 130
    assert [row["repeats"] for row in json.loads(path.read_text())["rows"]] == [1, 0]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interruption_that_a_callback_swallows_still_ends_the_run(tmp_path, add_strategy):
    class Swallows:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    def prepare(program, arm):
        garbage = [Swallows()]

        def step():
            garbage.clear()
            return program.step()

        return step

    add_strategy("swallows", prepare)
    status, result = measured(tmp_path, strategies=("swallows",))
    assert status == 130
    assert [row["repeats"] for row in result["rows"]] == [0, 0]


def test_report_of_a_window_fills_its_row(tmp_path, add_strategy):
    report = SimpleNamespace(
        strategy="graph",
        notes=["graph was fastest"],
        tasks=3,
        edges=2,
        levels=2,
        width_mean=1.5,
        critical_path_s=0.002,
        fences={"host read": 1},
        bound={2: 1.5},
        seconds_user=0.001,
        seconds_kernels=0.003,
        seconds_waiting=0.0,
    )

    def prepare(program, arm):
        def step():
            return program.step()

        step.report = report
        return step

    add_strategy("reporting", prepare, windowed=True)
    _, result = measured(tmp_path, strategies=("reporting",))
    row = result["rows"][1]
    assert (row["tasks"], row["edges"], row["levels"], row["width_mean"]) == (3, 2, 2, 1.5)
    assert row["critical_path_ms"] == 2.0
    assert row["fences"] == {"host read": 1}
    assert row["bound"] == {"2": 1.5}
    assert (row["user_ms"], row["kernels_ms"], row["waiting_ms"]) == (1.0, 3.0, 0.0)
    assert (row["ran"], row["notes"]) == ("graph", ["graph was fastest"])


def test_wrapped_step_gets_size_streams_and_strategy(monkeypatch):
    asked = {}

    def window(**options):
        asked.update(options)
        return lambda step: step

    monkeypatch.setattr(arms.ks, "window", window, raising=False)
    (group,) = plan(replace(SMALL, strategies=("graph",), streams=(3,), window=7))
    program = SimpleNamespace(step=lambda: "result")
    assert group.arms[1].prepare(program)() == "result"
    assert asked == {"size": 7, "streams": 3, "strategy": "graph"}


ROWS = [
    Row("physics/ant", 64, "serial", ms_p50=20.0, ms_p20=19.0, ms_p80=21.0, bitwise_equal=True),
    Row("physics/ant", 64, "graph", streams=2, error="NotReplayable: aten::item at a.py:3"),
    Row("physics/ant", 64, "stream", streams=2, bitwise_equal=False, differs=["qpos"], noisy=True),
]


def test_rows_are_related_to_the_warp_graph_of_their_group():
    rows = [
        Row("physics/ant", 64, "warp-graph", ms_p50=6.0),
        Row("physics/ant", 64, "graph", ms_p50=4.0),
        Row("physics/ant", 64, "stream", error="ValueError: no"),
        Row("physics/ant", 64, "graph", ms_p50=4.0, graph_conditional=False),
        Row("env/ant", 64, "warp-graph", error="ValueError: no"),
        Row("env/ant", 64, "graph", ms_p50=4.0),
    ]
    result = json.loads(Comparison(describe_machine(), rows).to_json())["rows"]
    assert [row["speedup_vs_warp_graph"] for row in result] == [1.0, 1.5, None, None, None, None]
    assert "1.50x" in plain_rows(rows)[2]


def test_legend_is_short_and_names_what_misleads():
    assert len(legend()) <= 4
    for word in ("vs warp-graph", "launch cost", "noisy", "idle"):
        assert word in " ".join(legend())


def test_numbers_stay_whole_on_a_narrow_terminal():
    console = Console(force_terminal=True, width=80, color_system=None)
    rows = [Row("env/humanoid", 64, "warp-graph+compile", ms_p50=17.64, speedup_vs_serial=4.29)]
    with console.capture() as captured:
        show(Comparison(describe_machine(), [*rows, *ROWS]), console)
    assert "vs warp-graph" in captured.get()
    assert " 17.64 " in captured.get()
    assert " 4.29x " in captured.get()


def test_plain_rows_are_aligned_without_tabs():
    lines = plain_rows(ROWS)
    assert len(lines) == 4
    assert "\t" not in "".join(lines)
    column = lines[0].index("strategy")
    assert [line[column:].split()[0] for line in lines] == ["strategy", "serial", "graph", "stream"]
    assert "NotReplayable: aten::item at a.py:3" in lines[2]
    assert "1 arrays differ: qpos; noisy" in lines[3]


def test_narrow_terminal_loses_columns_but_no_row():
    console = Console(force_terminal=True, width=100, color_system=None)
    with console.capture() as captured:
        show(Comparison(describe_machine(), ROWS), console)
    header = next(line for line in captured.get().splitlines() if line.startswith("case"))
    assert "edges" not in header
    assert "speedup" in header
    assert all(f" {row.strategy} " in captured.get() for row in ROWS)


@pytest.mark.parametrize("terminal", [True, False])
def test_table_shows_every_row(terminal):
    console = Console(force_terminal=terminal, width=240)
    with console.capture() as captured:
        show(Comparison(describe_machine(), ROWS), console)
    text = captured.get()
    for row in ROWS:
        assert row.strategy in text
    assert "19.00-21.00" in text
    assert "NO" in text
