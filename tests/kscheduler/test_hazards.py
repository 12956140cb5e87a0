"""The three hazards, and agreement of the native tracker with its plain twin."""

import random
from collections.abc import Callable, Sequence

import pytest

from kscheduler import hazards
from kscheduler._core import HazardTracker as NativeTracker
from kscheduler.access import READ, READ_WRITE, WRITE, Access
from kscheduler.hazards import hazards_between

TRACKERS = pytest.mark.parametrize("tracker_type", [NativeTracker, hazards.HazardTracker])
A = (1000, 1100)
LEFT = (1000, 1050)
RIGHT = (1050, 1100)
MIDDLE = (1025, 1075)
B = (2000, 2100)
HUGE = 1 << 40


def reads(*ranges: tuple[int, int]) -> list[Access]:
    return [Access(start, end, READ) for start, end in ranges]


def writes(*ranges: tuple[int, int]) -> list[Access]:
    return [Access(start, end, WRITE) for start, end in ranges]


def updates(*ranges: tuple[int, int]) -> list[Access]:
    return [Access(start, end, READ_WRITE) for start, end in ranges]


def columns(first: int, last: int, mode: int) -> Access:
    """Columns [first, last) of a (10, 8) array of 4-byte items at 1000."""
    return Access(1000 + 4 * first, 1000 + 4 * (72 + last), mode, 32, 4 * (last - first))


def dependencies(tracker_type: Callable, *tasks: Sequence[Access]) -> list[set[int]]:
    """Per task, every task that it comes after, directly or through others; none is ever done."""
    tracker = tracker_type()
    closed: list[set[int]] = []
    for index, accesses in enumerate(tasks):
        direct = tracker.add(index, accesses)
        closed.append(set(direct).union(*(closed[other] for other in direct)))
    return closed


@TRACKERS
def test_raw_orders_a_read_after_the_write(tracker_type):
    assert dependencies(tracker_type, writes(A), reads(A)) == [set(), {0}]
    assert hazards_between(writes(A), reads(A)) == {"RAW"}


@TRACKERS
def test_war_orders_a_write_after_all_reads(tracker_type):
    assert dependencies(tracker_type, reads(A), reads(A), writes(A)) == [set(), set(), {0, 1}]
    assert hazards_between(reads(A), writes(A)) == {"WAR"}


@TRACKERS
def test_waw_orders_two_writes(tracker_type):
    assert dependencies(tracker_type, writes(A), writes(A)) == [set(), {0}]
    assert hazards_between(writes(A), writes(A)) == {"WAW"}


@TRACKERS
def test_read_write_acts_as_both(tracker_type):
    found = dependencies(tracker_type, reads(A), updates(A), reads(A), updates(A))
    assert found == [set(), {0}, {0, 1}, {0, 1, 2}]
    assert hazards_between(updates(A), updates(A)) == {"RAW", "WAR", "WAW"}


@TRACKERS
def test_reads_are_independent(tracker_type):
    assert dependencies(tracker_type, reads(A), reads(A), reads(A, B)) == [set(), set(), set()]
    assert hazards_between(reads(A), reads(A)) == set()


@TRACKERS
def test_touching_ranges_are_independent(tracker_type):
    assert dependencies(tracker_type, writes(LEFT), writes(RIGHT)) == [set(), set()]


@TRACKERS
def test_partial_write_splits_range(tracker_type):
    found = dependencies(
        tracker_type,
        writes(A),  # 0: all of it
        writes(MIDDLE),  # 1: over 0
        reads((1000, 1025)),  # 2: only 0 wrote here
        reads((1075, 1100)),  # 3: only 0 wrote here
        reads((1030, 1040)),  # 4: 1 over 0
        writes((1020, 1030)),  # 5: across the cut, over 0 and 1 and the read of 2
    )
    assert found == [set(), {0}, {0}, {0}, {0, 1}, {0, 1, 2}]


@TRACKERS
def test_partial_write_keeps_readers_of_the_rest(tracker_type):
    found = dependencies(tracker_type, reads(A), writes(LEFT), writes(RIGHT))
    assert found == [set(), {0}, {0}]


@TRACKERS
def test_wide_write_covers_pieces_and_gaps(tracker_type):
    found = dependencies(
        tracker_type, writes((1010, 1020)), reads((1050, 1060)), writes(A), reads((1030, 1040))
    )
    assert found == [set(), set(), {0, 1}, {0, 1, 2}]


@TRACKERS
def test_columns_of_one_array_are_disjoint(tracker_type):
    found = dependencies(
        tracker_type,
        [columns(0, 3, WRITE)],
        [columns(3, 6, WRITE)],
        [columns(2, 4, READ)],
        [columns(6, 8, READ_WRITE)],
        [columns(0, 1, WRITE)],
    )
    assert found == [set(), set(), {0, 1}, set(), {0}]


@TRACKERS
def test_columns_meet_the_whole_array_and_other_pitches(tracker_type):
    whole = Access(1000, 1320, WRITE)
    other_pitch = Access(1000, 1320, WRITE, 16, 4)
    found = dependencies(tracker_type, [columns(0, 3, WRITE)], [other_pitch], [whole])
    assert found == [set(), {0}, {0, 1}]


@TRACKERS
def test_wider_columns_replace_narrower_ones_only(tracker_type):
    found = dependencies(
        tracker_type,
        [columns(1, 2, WRITE)],
        [columns(0, 3, WRITE)],  # contains 0
        [columns(2, 5, WRITE)],  # meets 1, does not contain it
        [columns(1, 2, READ)],
        [columns(0, 1, READ)],
    )
    assert found == [set(), {0}, {0, 1}, {0, 1}, {0, 1}]


@TRACKERS
def test_task_never_depends_on_itself(tracker_type):
    task = [*reads(A), *writes(MIDDLE), *updates(A), columns(0, 3, WRITE), columns(0, 8, READ)]
    assert dependencies(tracker_type, task, task) == [set(), {0}]


@TRACKERS
def test_empty_access_touches_nothing(tracker_type):
    empty = [Access(0, 0, WRITE), Access(1050, 1050, READ_WRITE)]
    assert dependencies(tracker_type, writes(A), empty, empty) == [set(), set(), set()]


@TRACKERS
def test_query_remembers_nothing(tracker_type):
    tracker = tracker_type()
    tracker.add(1, reads(A))
    tracker.add(2, writes(B))
    assert tracker.query(Access(*A, READ)) == []
    assert tracker.query(Access(*MIDDLE, WRITE)) == [1]
    assert tracker.query(Access(1000, 3000, READ)) == [2]
    assert tracker.query(Access(*A, READ), lambda id: True) == []
    assert tracker.add(3, writes(A)) == [1]


@TRACKERS
def test_done_tasks_are_not_waited_for(tracker_type):
    tracker = tracker_type()
    tracker.add(1, writes(LEFT))
    tracker.add(2, writes(RIGHT))
    assert tracker.add(3, reads(A), lambda id: id == 1) == [2]
    assert tracker.add(4, writes(A), lambda id: id <= 3) == []


@TRACKERS
def test_clear_forgets(tracker_type):
    tracker = tracker_type()
    tracker.add(1, writes(A))
    tracker.clear()
    assert tracker.query(Access(*A, WRITE)) == []
    assert tracker.add(2, updates(A)) == []


@TRACKERS
def test_ids_strictly_increase(tracker_type):
    tracker = tracker_type()
    tracker.add(5, writes(A))
    with pytest.raises(ValueError, match="increase"):
        tracker.add(5, writes(B))


def test_each_dependency_is_named_once():
    tracker = NativeTracker()
    for id in range(600):
        tracker.add(id, reads(A, B, MIDDLE))
    found = tracker.add(600, writes(A, B, MIDDLE))
    assert sorted(found) == list(range(600))


def test_readers_survive_a_long_gap_of_ids():
    tracker = NativeTracker()
    tracker.add(3, reads(A))
    tracker.add(500, reads(A))
    tracker.add(HUGE, reads(B))
    assert sorted(tracker.query(Access(*A, WRITE))) == [3, 500]
    assert sorted(tracker.add(HUGE + 1, writes(A))) == [3, 500]


@pytest.mark.parametrize("first", [reads(A), [columns(0, 3, READ)], [columns(0, 3, WRITE)]])
def test_what_a_later_write_implies_is_left_out(first):
    tracker = NativeTracker()
    whole = [Access(1000, 1320, WRITE)]
    assert tracker.add(0, first) == []
    assert tracker.add(1, whole) == [0]
    assert tracker.add(2, whole) == [1]


def test_wider_columns_imply_narrower_ones():
    tracker = NativeTracker()
    assert tracker.add(0, [columns(1, 2, READ)]) == []
    assert tracker.add(1, [columns(1, 2, WRITE)]) == [0]
    assert tracker.add(2, [columns(0, 3, WRITE)]) == [1]
    assert tracker.add(3, [columns(0, 8, WRITE)]) == [2]


def test_live_readers_keep_their_segment():
    tracker = NativeTracker()
    tracker.add(0, [Access(100 * i, 100 * i + 50, WRITE) for i in range(8_000)])
    kept = [Access(*B, READ), columns(0, 3, READ), Access(5000, 5300, WRITE, 32, 12)]
    for id, access in enumerate(kept, start=1):
        tracker.add(id, [access])
    tracker.add(4, [Access(HUGE + 100 * i, HUGE + 100 * i + 50, WRITE) for i in range(200)])
    tracker.add(5, reads((9000, 9100)), lambda id: id == 0)
    assert tracker.segment_count() < 300
    for id, access in enumerate(kept, start=1):
        host = Access(access.start, access.end, WRITE)
        assert tracker.query(host, lambda id: id == 0) == [id]


def test_dead_segments_are_dropped_and_live_ones_kept():
    tracker = NativeTracker()
    dead = [Access(HUGE + 100 * i, HUGE + 100 * i + 50, WRITE) for i in range(8_000)]
    live = [Access(100 * i, 100 * i + 50, WRITE) for i in range(300)]
    tracker.add(0, dead)
    tracker.add(1, live)
    assert tracker.segment_count() == 8_300
    assert tracker.add(2, reads((50, 60)), lambda id: id == 0) == []
    assert tracker.segment_count() == 301
    assert tracker.query(live[150], lambda id: id == 0) == [1]
    assert tracker.add(3, dead, lambda id: id == 0) == []


def test_repeated_step_adds_no_segments():
    tracker = NativeTracker()
    step = [writes(A), reads(MIDDLE), writes(LEFT), updates(B, RIGHT), [columns(0, 3, WRITE)]]
    counts = []
    for id in range(500):
        tracker.add(id, step[id % len(step)], 32)
        counts.append(tracker.segment_count())
    assert counts[len(step) :] == [counts[len(step)]] * (500 - len(step))


def random_access(draw: random.Random) -> Access:
    mode = draw.choice((READ, READ, READ, WRITE, READ_WRITE))
    start = draw.randrange(96)
    if draw.random() < 0.6:
        return Access(start, start + draw.choice((0, 1, 8, 16, 32, 96)), mode)
    pitch = draw.choice((8, 12, 16))
    width = draw.randrange(1, pitch)
    return Access(start, start + pitch * draw.randrange(4) + width, mode, pitch, width)


def random_program(draw: random.Random, tasks: int) -> list[list[Access]]:
    return [[random_access(draw) for _ in range(draw.randrange(4))] for _ in range(tasks)]


def assert_same_order(draw: random.Random, program: list[list[Access]], id_step: int) -> None:
    """Runs both trackers; tasks finish at random, each after those that it waits for."""
    native, twin = NativeTracker(), hazards.HazardTracker()
    done: set[int] = set()
    after: dict[int, set[int]] = {}  # the unfinished tasks that each task comes after
    finishing = draw.choice((0.0, 0.3, 0.9))
    id = draw.randrange(100)
    for accesses in program:
        found = native.add(id, accesses, done.__contains__)
        expected = set(twin.add(id, accesses, done.__contains__))
        assert len(found) == len(set(found))
        assert set(found) <= expected
        reached = set(found).union(*(after[other] for other in found)) - done
        assert reached == expected.union(*(after[other] for other in expected)) - done
        host = random_access(draw)
        assert set(native.query(host, done.__contains__)) <= set(
            twin.query(host, done.__contains__)
        )
        after[id] = reached
        for other in list(after):
            if other not in done and after[other] <= done and draw.random() < finishing:
                done.add(other)
        id += draw.randrange(1, id_step + 1)


def test_native_agrees_with_twin_on_random_programs():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(10_000):
        assert_same_order(draw, random_program(draw, 8), draw.choice((1, 1, 40, 200)))


def test_native_agrees_with_twin_on_long_programs():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(10):
        assert_same_order(draw, random_program(draw, 150), draw.choice((1, 5)))
