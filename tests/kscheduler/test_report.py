"""What a user reads after a window, and the files that a report writes."""

import json

import pytest

from kscheduler.access import READ, WRITE, Access
from kscheduler.errors import WindowError
from kscheduler.graph import TaskGraph
from kscheduler.report import BOUND_STREAMS, FENCE_REASONS, Report
from kscheduler.task import Task
from kscheduler.trace import TraceEvent, write_trace

A, B = (1000, 1100), (2000, 2100)


@pytest.fixture
def graph() -> TaskGraph:
    """
    0 writes A (1 ms) --> 2 reads A and B (2 ms)
    1 writes B (1 ms) -->
    """
    return TaskGraph.from_tasks(
        [
            Task("make_a", "warp", (Access(*A, WRITE),), 1e-3),
            Task("make_b", "torch", (Access(*B, WRITE),), 1e-3),
            Task("use", "warp", (Access(*A, READ), Access(*B, READ)), 2e-3),
        ]
    )


def test_from_graph_fills_what_the_graph_knows(graph):
    report = Report.from_graph(graph, strategy="stream", streams=2, overlapped=2)
    assert (report.strategy, report.streams, report.overlapped) == ("stream", 2, 2)
    assert (report.tasks, report.edges, report.levels, report.width_peak) == (3, 2, 2, 2)
    assert report.width_mean == 1.5
    assert report.critical_path_tasks == 2
    assert report.critical_path_s == pytest.approx(3e-3)
    assert report.seconds_kernels == pytest.approx(4e-3)
    assert tuple(report.bound) == BOUND_STREAMS
    assert report.bound[1] == 1.0
    assert report.bound[2] == pytest.approx(4 / 3)


def test_unmeasured_graph_has_a_bound_by_count(graph):
    for task in graph.tasks:
        task.seconds = 0.0
    report = Report.from_graph(graph)
    assert report.critical_path_s == 0.0
    assert report.bound[2] == 3 / 2


def test_text_says_what_a_user_asks(graph):
    text = str(
        Report.from_graph(
            graph,
            strategy="stream",
            streams=2,
            overlapped=2,
            fences={"host_read": 12, "window_exit": 1},
            notes=["first note", "second note"],
            seconds_user=1.5,
            seconds_waiting=2e-5,
        )
    )
    assert "stream, 2 streams" in text
    assert "3, 2 edges between them; torch ops with nothing in flight are not seen" in text
    assert "2 tasks, 3.00 ms" in text
    assert "1.33x on 2 streams, 1.33x on 4 streams, 1.33x on 8 streams, of kernel time" in text
    assert "1.50 s in user code, 4.00 ms in kernels, 20 us waiting, in the last call" in text
    assert "2 of 3 tasks ran beside another" in text
    assert FENCE_REASONS["host_read"] in text
    assert "first note" in text
    assert "second note" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_text_lists_frequent_fences_first():
    text = str(Report(fences={"autograd": 1, "window_exit": 1, "host_read": 7}))
    assert text.index("host_read") < text.index("autograd") < text.index("window_exit")


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({"tasks": 1}, "not two"),
        ({"tasks": 9, "strategy": "serial"}, "'serial' keeps program order"),
        ({"tasks": 9, "streams": 1}, "one stream"),
        ({"tasks": 9, "levels": 9}, "needs the one before"),
        ({"tasks": 9, "fences": {"autograd": 2, "host_read": 3}}, FENCE_REASONS["host_read"]),
        ({"tasks": 9, "fences": {"window_exit": 9}}, "before the next one was submitted"),
        ({"tasks": 9, "fences": {"made_up": 9}}, "made_up"),
    ],
)
def test_text_says_why_nothing_overlapped(known, sentence):
    text = str(Report(**({"strategy": "stream", "streams": 2} | known)))
    assert "no task ran beside another" in text
    assert sentence in text


def replayed(*tasks):
    """The text after a replay of independent tasks, each a kind and its seconds."""
    graph = TaskGraph([Task("t", kind, seconds=seconds) for kind, seconds in tasks], [])
    return str(Report.from_graph(graph, strategy="graph", streams=2))


def test_text_says_why_nothing_overlapped_in_a_replay():
    assert "ready at the same time" in replayed(("warp", 3.0), ("torch", 1.0))
    for kind in ("torch", "opaque"):
        assert "on the program's thread" in replayed((kind, 3.0), ("warp", 1.0))
    text = replayed(("warp", 0.0), ("torch", 0.0))
    assert "not been replayed yet" in text
    assert "of tasks, as no time was measured" in text
    text = str(Report(strategy="graph", streams=2, tasks=9, fences={"host_read": 9}))
    assert "ready at the same time" in text
    assert "torch ops with nothing in flight" not in text


@pytest.mark.parametrize(
    ("known", "is_said"),
    [
        ({}, True),
        ({"overlapped": 10}, False),
        ({"fences": {"host_read": 9, "window_exit": 50}}, False),
        ({"strategy": "graph"}, False),
    ],
)
def test_text_says_why_few_overlapped(known, is_said):
    fences = {"host_read": 8, "autograd": 2, "window_exit": 50}
    report = {"strategy": "stream", "streams": 2, "tasks": 100, "overlapped": 9, "fences": fences}
    (line,) = [s for s in str(Report(**(report | known))).splitlines() if s.startswith("overlap")]
    assert "of 100 tasks ran beside another" in line
    reason = f"the host waited 10 times, mostly since {FENCE_REASONS['host_read']} (host_read)"
    assert (reason in line) is is_said


def test_empty_report_can_be_read():
    assert "no task ran" in str(Report())
    json.dumps(Report().to_dict())


def test_dict_survives_json(graph):
    report = Report.from_graph(graph, fences={"host_read": 2}, notes=["n"])
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["bound"]["2"] == pytest.approx(4 / 3)
    assert plain["fences"] == {"host_read": 2}
    assert plain["tasks"] == 3
    assert "graph" not in plain
    assert "events" not in plain


def test_dot_file_holds_the_graph(graph, tmp_path):
    Report.from_graph(graph).write_dot(tmp_path / "step.dot")
    assert (tmp_path / "step.dot").read_text() == graph.to_dot()


def test_files_that_were_not_kept_are_refused(tmp_path):
    report = Report(strategy="serial")
    with pytest.raises(WindowError, match="no graph"):
        report.write_dot(tmp_path / "step.dot")
    with pytest.raises(WindowError, match="no timeline"):
        report.write_trace(tmp_path / "step.json")
    assert list(tmp_path.iterdir()) == []


def test_trace_file_has_one_row_per_stream_and_counts_from_0(tmp_path):
    events = [TraceEvent("a", 0, 500.0, 10.0, {"line": "x.py:1"}), TraceEvent("b", 3, 505.0, 2.5)]
    Report(events=events).write_trace(tmp_path / "step.json")
    rows = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    names = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert names == {0: "stream 0", 3: "stream 3"}
    spans = [(row["name"], row["tid"], row["ts"], row["dur"]) for row in rows if row["ph"] == "X"]
    assert spans == [("a", 0, 0.0, 10.0), ("b", 3, 5.0, 2.5)]
    assert next(row for row in rows if row["name"] == "a")["args"] == {"line": "x.py:1"}


def test_arrows_join_streams_only(tmp_path):
    events = [TraceEvent("a", 0, 0.0, 10.0), TraceEvent("b", 1, 12.0, 5.0)]
    events.append(TraceEvent("c", 1, 20.0, 5.0))
    write_trace(tmp_path / "t.json", events, edges=[(0, 1), (1, 2)])
    rows = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    arrows = [(row["ph"], row["tid"], row["id"]) for row in rows if row["name"] == "edge"]
    assert arrows == [("s", 0, 0), ("f", 1, 0)]
    ends = [row["ts"] for row in rows if row["name"] == "edge"]
    assert 0.0 <= ends[0] <= 10.0 < ends[1] == 12.0


def test_empty_trace_is_valid(tmp_path):
    write_trace(tmp_path / "t.json", [])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
