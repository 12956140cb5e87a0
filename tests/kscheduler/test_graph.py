"""Topology: the expected DAG is drawn, then its edges, levels, paths and bounds are asserted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kscheduler.access import READ, WRITE, Access
from kscheduler.graph import TaskGraph
from kscheduler.task import Task


def array(name: str) -> int:
    return 1000 * (1 + ord(name) - ord("a"))


def task(name: str, reads: str = "", writes: str = "", seconds: float = 0.0) -> Task:
    """A task on whole arrays, each named by a letter."""
    accesses = [
        *(Access(array(a), array(a) + 100, READ) for a in reads),
        *(Access(array(a), array(a) + 100, WRITE) for a in writes),
    ]
    return Task(name, "warp", tuple(accesses), seconds)


def closure(count: int, edges: list[tuple[int, int]]) -> set[tuple[int, int]]:
    reached = set(edges)
    for middle, a, b in itertools.product(range(count), repeat=3):
        if (a, middle) in reached and (middle, b) in reached:
            reached.add((a, b))
    return reached


@pytest.fixture
def diamond() -> TaskGraph:
    r"""
        0 writes a
       / \
      1   2       a -> b, a -> c
       \ /
        3         b, c -> d         4 writes e, alone
    """
    return TaskGraph.from_tasks(
        [
            task("make", "", "a", 1.0),
            task("left", "a", "b", 2.0),
            task("right", "a", "c", 4.0),
            task("join", "bc", "d", 1.0),
            task("alone", "", "e", 1.0),
        ]
    )


def test_diamond_has_four_edges(diamond):
    assert diamond.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert diamond.predecessors == [[], [0], [0], [1, 2], []]
    assert diamond.successors == [[1, 2], [3], [3], [], []]


def test_branches_of_a_diamond_are_independent(diamond):
    ordered = closure(5, diamond.edges)
    assert (0, 3) in ordered
    assert not {(1, 2), (2, 1), (0, 4), (3, 4)} & ordered


def test_levels_follow_the_longest_chain(diamond):
    assert diamond.levels() == [[0, 4], [1, 2], [3]]
    assert diamond.width_peak == 2
    assert diamond.width_mean == pytest.approx(5 / 3)


def test_critical_path_by_count_and_by_seconds(diamond):
    assert diamond.critical_path("count") == (3, [0, 1, 3])
    assert diamond.critical_path("seconds") == (6.0, [0, 2, 3])


def test_bounds_of_a_diamond(diamond):
    # 9 seconds of work, 6 on the critical path; two streams reach it: 0 2 2 2 2 3 | 4 1 1
    assert diamond.bound(1) == 1.0
    assert diamond.bound(2) == diamond.bound_list(2) == 9 / 6
    assert diamond.bound(8) == 9 / 6
    assert diamond.bound(2, "count") == 5 / 3


def test_war_and_waw_make_edges():
    """
    0 writes a        0 --RAW--> 1 --WAR--> 2 --RAW--> 3
    1 reads a         0 --WAW--> 2 is implied
    2 writes a
    3 reads a
    """
    graph = TaskGraph.from_tasks(
        [task("w", "", "a"), task("r", "a"), task("w", "", "a"), task("r", "a")]
    )
    assert graph.edges == [(0, 1), (1, 2), (2, 3)]


def test_reduction_drops_implied_edges_only():
    """
    0 -> 1 -> 2 -> 3     and the shortcuts 0 -> 2, 0 -> 3, 1 -> 3
    """
    graph = TaskGraph([task(str(i)) for i in range(4)], itertools.combinations(range(4), 2))
    assert graph.edges == [(0, 1), (1, 2), (2, 3)]


@st.composite
def dags(draw):
    count = draw(st.integers(0, 9))
    pairs = list(itertools.combinations(range(count), 2))
    return count, draw(st.lists(st.sampled_from(pairs))) if pairs else []


@given(dags(), st.randoms())
def test_reduction_is_minimal_and_unique(dag, draw):
    count, edges = dag
    tasks = [task(str(i)) for i in range(count)]
    reduced = TaskGraph(tasks, edges).edges
    full = closure(count, edges)
    assert closure(count, reduced) == full
    for edge in reduced:
        assert edge not in closure(count, [other for other in reduced if other != edge])
    shuffled = list(full)
    draw.shuffle(shuffled)
    assert TaskGraph(tasks, shuffled).edges == reduced


@given(dags(), st.data())
def test_bounds_are_in_order(dag, data):
    count, edges = dag
    seconds = data.draw(st.lists(st.floats(0, 10), min_size=count, max_size=count))
    graph = TaskGraph([task(str(i), seconds=s) for i, s in enumerate(seconds)], edges)
    length, path = graph.critical_path("seconds")
    assert all((a, b) in graph.edges for a, b in itertools.pairwise(path))
    for streams in (1, 2, 3):
        reached, bound = graph.bound_list(streams), graph.bound(streams)
        assert 1 - 1e-9 <= reached <= bound * (1 + 1e-9)
        assert bound <= streams * (1 + 1e-9)
        # Graham: list scheduling is at most twice as long as the best.
        assert bound <= 2 * reached * (1 + 1e-9)
    assert length <= graph.work("seconds") * (1 + 1e-9)


@given(dags())
def test_levels_are_antichains_in_order(dag):
    count, edges = dag
    graph = TaskGraph([task(str(i)) for i in range(count)], edges)
    levels = graph.levels()
    depth = {index: d for d, level in enumerate(levels) for index in level}
    assert sorted(depth) == list(range(count))
    assert all(depth[a] < depth[b] for a, b in graph.edges)
    assert len(levels) == graph.critical_path("count")[0] == len(graph.critical_path("count")[1])


def loop_graph() -> TaskGraph:
    r"""
    0 before (2 s) --> 1 loop (12 s) --> 2 after (2 s)
                       |
                       |  one iteration:  0 writes b (1 s)     1 writes c (1 s)
                       |                     \                /
                       |                      2 reads b, c (1 s)
    """
    body = [task("left", "", "b", 1.0), task("right", "", "c", 1.0), task("join", "bc", "d", 1.0)]
    loop = Task("loop", "loop", task("", "a", "bcd").accesses, 12.0, "", body)
    return TaskGraph.from_tasks([task("before", "", "a", 2.0), loop, task("after", "d", "e", 2.0)])


def test_loop_is_one_task_with_a_graph_of_its_own():
    graph = loop_graph()
    assert graph.edges == [(0, 1), (1, 2)]
    assert list(graph.bodies) == [1]
    assert graph.bodies[1].edges == [(0, 2), (1, 2)]
    assert graph.critical_path("seconds") == (16.0, [0, 1, 2])
    assert graph.critical_path("count") == (5, [0, 1, 2])


def test_bound_looks_into_loops():
    # A third of each iteration runs beside another third: 12 s become 8 s on two streams.
    graph = loop_graph()
    assert graph.bound(1) == graph.bound_list(1) == 1.0
    assert graph.bound(2) == pytest.approx(16 / 12)
    assert graph.bound_list(2) == pytest.approx(16 / 12)
    assert graph.bound(8) == pytest.approx(16 / 12)
    assert graph.bound(2, "count") == pytest.approx(5 / 4)


def test_bound_looks_into_nested_loops():
    inner = loop_graph().tasks[1]
    outer = Task("outer", "loop", inner.accesses, 120.0, "", [inner])
    graph = TaskGraph.from_tasks([outer])
    assert graph.bound(2) == graph.bound_list(2) == pytest.approx(120 / 80)


def test_loop_without_measured_time_weighs_its_body():
    inner = loop_graph().tasks[1]
    graph = TaskGraph.from_tasks([Task("loop", "loop", inner.accesses, 0.0, "", inner.body)])
    assert graph.work("seconds") == 3.0
    assert graph.bound(2) == pytest.approx(3 / 2)


def test_no_tasks():
    graph = TaskGraph([], [])
    assert (graph.edges, graph.levels(), graph.width_mean, graph.width_peak) == ([], [], 0.0, 0)
    assert graph.critical_path() == graph.critical_path("seconds") == (0.0, [])
    assert graph.bound(4) == graph.bound_list(4) == 1.0
    assert graph.to_dot().startswith("digraph")


def test_one_task_of_unknown_time():
    graph = TaskGraph.from_tasks([task("only", "a", "b")])
    assert (graph.levels(), graph.width_mean, graph.width_peak) == ([[0]], 1.0, 1)
    assert graph.critical_path("seconds") == (1.0, [0])
    assert graph.bound(4) == graph.bound_list(4) == 1.0


def test_unknown_time_falls_back_to_count():
    graph = TaskGraph.from_tasks([task("a", "", "a"), task("b", "", "b")])
    assert graph.bound(2, "seconds") == graph.bound(2, "count") == 2.0


@pytest.mark.parametrize("edge", [(1, 0), (0, 0), (0, 2), (-1, 1)])
def test_edges_must_point_forward(edge):
    with pytest.raises(ValueError, match="forward"):
        TaskGraph([task("a"), task("b")], [edge])


def test_streams_must_be_positive(diamond):
    with pytest.raises(ValueError, match="streams"):
        diamond.bound(0)
    with pytest.raises(ValueError, match="streams"):
        diamond.bound_list(0)


def test_ranks_are_paths_to_the_end(diamond):
    assert diamond.ranks() == [6.0, 3.0, 5.0, 1.0, 1.0]


def test_dot_names_tasks_hazards_and_loops():
    dot = loop_graph().to_dot()
    assert 't0 [label="0 before\\n2000000.0 us"];' in dot
    assert 't0 -> t1 [label="RAW"];' in dot
    assert "subgraph cluster_t1 {" in dot
    assert 't1_0 -> t1_2 [label="RAW"];' in dot
    assert dot.count("{") == dot.count("}")


def test_dot_escapes_names():
    strange = Task('say "hi"\\now', "opaque", line="a b.py:3")
    dot = TaskGraph([strange, task("b")], [(0, 1)]).to_dot()
    assert '[label="0 say \\"hi\\"\\\\now\\na b.py:3"];' in dot
    assert "t0 -> t1;" in dot


def test_torch_ops_share_one_thread_in_the_bound():
    #  four independent ops of 1 s each, and one kernel of 4 s beside them
    tasks = [Task(f"op{i}", "torch", seconds=1.0) for i in range(4)]
    tasks.append(Task("kernel", "warp", seconds=4.0))
    graph = TaskGraph(tasks, [])
    assert graph.bound(2) == 2.0
    assert graph.bound(8) == 2.0
    kernels = TaskGraph([Task(t.name, "warp", seconds=t.seconds) for t in tasks[:4]], [])
    assert kernels.bound(4) == 4.0
