"""Laws of accesses, against sets of bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kscheduler.access import READ, WRITE, Access, overlaps, strided_access

MODES = st.sampled_from((READ, WRITE))
ORIGIN = 10_000

dense = st.builds(
    lambda start, size, mode: Access(ORIGIN + start, ORIGIN + start + size, mode),
    st.integers(0, 200),
    st.integers(0, 60),
    MODES,
)


@st.composite
def rows(draw):
    pitch = draw(st.integers(2, 24))
    width = draw(st.integers(1, pitch - 1))
    start = ORIGIN + draw(st.integers(0, 200))
    count = draw(st.integers(1, 8))
    return Access(start, start + (count - 1) * pitch + width, draw(MODES), pitch, width)


@st.composite
def views(draw):
    """Address, shape, byte strides (also 0 and negative) and item size of a view."""
    item = draw(st.sampled_from((1, 2, 4, 8)))
    rank = draw(st.integers(0, 3))
    shape = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(-40, 40), min_size=rank, max_size=rank))
    return ORIGIN + draw(st.integers(0, 100)), shape, [item * s for s in strides], item


def bytes_of_access(access: Access) -> set[int]:
    span = range(access.start, access.end)
    if access.pitch == 0:
        return set(span)
    return {byte for byte in span if (byte - access.start) % access.pitch < access.width}


def bytes_of_view(address, shape, strides, item) -> set[int]:
    touched: set[int] = set()
    for index in itertools.product(*map(range, shape)):
        first = address + sum(i * s for i, s in zip(index, strides, strict=True))
        touched.update(range(first, first + item))
    return touched


@given(st.one_of(dense, rows()), st.one_of(dense, rows()))
def test_overlap_is_never_missed(a, b):
    if bytes_of_access(a) & bytes_of_access(b):
        assert overlaps(a, b)


@given(st.one_of(dense, rows()), st.one_of(dense, rows()))
def test_overlap_is_symmetric(a, b):
    assert overlaps(a, b) == overlaps(b, a)


@given(dense, dense)
def test_overlap_of_dense_ranges_is_exact(a, b):
    assert overlaps(a, b) == bool(bytes_of_access(a) & bytes_of_access(b))


@given(st.integers(1, 8), st.data())
def test_columns_of_one_array_overlap_exactly_if_they_share_one(columns, data):
    def draw_columns() -> tuple[set[int], Access]:
        first = data.draw(st.integers(0, columns - 1))
        last = data.draw(st.integers(first + 1, columns))
        view = strided_access(ORIGIN + 4 * first, (5, last - first), (4 * columns, 4), 4, READ)
        return set(range(first, last)), view

    one, other = draw_columns(), draw_columns()
    assert overlaps(one[1], other[1]) == bool(one[0] & other[0])


@given(st.one_of(dense, rows()), st.integers(0, 300))
def test_empty_access_overlaps_nothing(a, at):
    empty = Access(ORIGIN + at, ORIGIN + at, WRITE)
    assert not overlaps(a, empty)
    assert not overlaps(empty, a)


@given(views())
def test_strided_access_covers_every_byte(view):
    access = strided_access(*view, WRITE)
    assert bytes_of_view(*view) <= bytes_of_access(access)
    assert access.mode == WRITE


@given(views())
def test_strided_access_has_the_exact_span(view):
    touched = bytes_of_view(*view)
    access = strided_access(*view, READ)
    if touched:
        assert (access.start, access.end) == (min(touched), max(touched) + 1)
    else:
        assert access.start == access.end


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 9), st.sampled_from((1, -1)))
def test_rows_are_exact_for_one_gapped_dimension(count, columns, gap, sign):
    view = (ORIGIN, (count, columns), (sign * (4 * columns + gap), 4), 4)
    assert bytes_of_access(strided_access(*view, READ)) == bytes_of_view(*view)


def test_stride_0_touches_one_element():
    assert strided_access(ORIGIN, (1000, 3), (0, 4), 4, READ) == Access(ORIGIN, ORIGIN + 12, READ)


def test_negative_stride_reaches_down():
    assert strided_access(ORIGIN, (10,), (-4,), 4, READ) == Access(ORIGIN - 36, ORIGIN + 4, READ)


def test_transposed_columns_keep_their_rows():
    by_rows = strided_access(ORIGIN, (5, 3), (24, 4), 4, READ)
    by_columns = strided_access(ORIGIN, (3, 5), (4, 24), 4, READ)
    assert by_rows == by_columns == Access(ORIGIN, ORIGIN + 4 * 24 + 12, READ, 24, 12)


def test_rows_of_two_strides_widen_to_the_span():
    uneven = strided_access(ORIGIN, (3, 2), (50, 20), 4, READ)
    assert (uneven.pitch, uneven.start, uneven.end) == (0, ORIGIN, ORIGIN + 124)
