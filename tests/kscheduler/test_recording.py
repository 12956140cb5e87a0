"""Recording and replaying: arguments, results, what is carried, loops, and memory."""

import collections
import dataclasses
import gc
import resource

import kernels_runtime as kernels
import pytest
import torch
import warp as wp

import kscheduler as ks

N = 16


def zeros(n=N):
    return wp.zeros(n, dtype=float, device="cpu")


def launch(kernel, inputs, dim=N):
    wp.launch(kernel, dim=dim, inputs=inputs, device="cpu")


def graph(function, streams=2):
    return ks.window(streams=streams, strategy="graph")(function)


def recordings(step):
    return sum(len(kept) for kept in step._call._recordings.values())


# --- arguments -----------------------------------------------------------------------------------


def test_warp_arguments_are_rebound_without_a_new_recording():
    step = graph(lambda x, y: launch(kernels.scale, [x, 2.0, y]))
    for value in range(1, 6):
        x, y = zeros(), zeros()
        x.fill_(float(value))
        step(x, y)
        assert (y.numpy() == 2.0 * value).all()
    assert recordings(step) == 1


def test_torch_arguments_are_rebound_without_a_new_recording():
    step = graph(lambda x, y: y.copy_(x * 2.0 + 1.0))
    for value in range(1, 6):
        x, y = torch.full((N,), float(value)), torch.zeros(N)
        step(x, y)
        assert (y == 2.0 * value + 1.0).all()
    assert recordings(step) == 1


def test_an_argument_viewed_by_the_other_framework_is_never_an_old_one():
    def function(x, y):
        launch(kernels.add, [x, 1.0])
        y.copy_(wp.to_torch(x) * 2.0)

    step = graph(function)
    for value in (1.0, 2.0, 3.0):
        x, y = zeros(), torch.zeros(N)
        x.fill_(value)
        step(x, y)
        assert (y == 2.0 * (value + 1.0)).all()


def test_slices_made_inside_follow_their_argument():
    def function(x):
        launch(kernels.fill, [x[4:8], 5.0], dim=4)

    step = graph(function)
    for _ in range(3):
        x = zeros()
        step(x)
        assert x.numpy().tolist() == [0.0] * 4 + [5.0] * 4 + [0.0] * 8
    assert recordings(step) == 1


@pytest.mark.parametrize("change", ["shape", "dtype", "strides", "grad", "scalar", "structure"])
def test_another_key_is_another_recording(change):
    def function(x, options):
        return x * options["factor"]

    step = graph(function)
    x = torch.ones(4, 4)
    step(x, {"factor": 2.0})
    other, options = x.clone(), {"factor": 2.0}
    if change == "shape":
        other = torch.ones(4, 5)
    elif change == "dtype":
        other = other.double()
    elif change == "strides":
        other = other.t()
    elif change == "grad":
        with torch.no_grad():
            assert torch.equal(step(other, options), function(other, options))
        assert recordings(step) == 2
        return
    elif change == "scalar":
        options = {"factor": 3.0}
    else:
        options = {"factor": 2.0, "more": 1}
    for _ in range(2):
        assert torch.equal(step(other, options), function(other, options))
    assert recordings(step) == 2


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, -0.0), ("a", b"a")])
def test_scalars_that_compare_equal_are_told_apart(first, second):
    step = graph(lambda x, value: (x + 1.0, repr(value)))
    for value in (first, second, first, second):
        assert step(torch.ones(2), value)[1] == repr(value)


def test_aliasing_arguments_are_not_served_by_a_recording_of_separate_ones():
    def function(x, y):
        launch(kernels.add, [x, 1.0])
        launch(kernels.scale, [x, 2.0, y])

    step = graph(function)
    step(zeros(), zeros())
    x = zeros()
    step(x, x)
    assert (x.numpy() == 2.0).all()
    step(x, x)
    assert (x.numpy() == 6.0).all()
    y = zeros()
    step(x, y)
    assert (y.numpy() == 14.0).all()
    assert recordings(step) == 2


def test_shifted_views_of_one_array_keep_their_distance():
    def function(x, y):
        launch(kernels.add, [x, 1.0], dim=8)
        launch(kernels.add, [y, 10.0], dim=8)

    step = graph(function)
    for shift in (4, 6, 4, 8):
        whole, plain = zeros(), zeros()
        step(whole[:8], whole[shift : shift + 8])
        function(plain[:8], plain[shift : shift + 8])
        assert whole.numpy().tolist() == plain.numpy().tolist()


def test_an_argument_that_overlaps_recorded_memory_is_recorded_again():
    inner = zeros()

    def function(x):
        launch(kernels.fill, [inner, 3.0])
        launch(kernels.sum_of_two, [x, inner, inner])

    step = graph(function)
    other = zeros()
    other.fill_(1.0)
    step(other)
    assert (inner.numpy() == 4.0).all()
    step(inner)  # which the recording writes as a temporary
    assert (inner.numpy() == 6.0).all()
    step(other)
    assert (inner.numpy() == 4.0).all()


def test_keyword_arguments_are_arguments():
    step = graph(lambda *, x, factor=2.0: x * factor)
    x = torch.ones(3)
    assert step(x=x).tolist() == [2.0] * 3
    assert step(x=x + 1.0, factor=2.0).tolist() == [4.0] * 3
    assert step(x=x, factor=5.0).tolist() == [5.0] * 3


def test_arrays_of_two_devices_are_refused():
    step = graph(lambda x, y: x)
    with pytest.raises(ks.Error, match="lie on cpu, meta"):
        step(torch.ones(2), torch.ones(2, device="meta"))


# --- results -------------------------------------------------------------------------------------


def test_kept_results_never_change():
    step = graph(lambda x: (x * 2.0, {"sum": x.sum()}))
    results = [step(torch.full((N,), float(value))) for value in range(8)]
    for value, (double, rest) in enumerate(results):
        assert (double == 2.0 * value).all()
        assert rest["sum"] == N * value


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    count: int


def test_results_keep_their_structure():
    def function(x):
        return [x + 1.0, Pair(x + 2.0, "text"), Result(x + 3.0, 4), None, (x, 5)]

    step = graph(function)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((2,), value)
        first, pair, result, nothing, (same, five) = step(x)
        assert first.tolist() == [value + 1.0] * 2
        assert isinstance(pair, Pair)
        assert (pair.first.tolist(), pair.second) == ([value + 2.0] * 2, "text")
        assert isinstance(result, Result)
        assert (result.value.tolist(), result.count) == ([value + 3.0] * 2, 4)
        assert (nothing, five) == (None, 5)
        assert same.data_ptr() == x.data_ptr()


class Custom:
    def __init__(self, value):
        self.value = value


def test_a_new_object_as_a_result_is_refused():
    step = graph(lambda x: Custom(x))
    with pytest.raises(ks.NotReplayable, match="returns a new Custom"):
        step(torch.ones(2))


def test_a_known_object_as_a_result_is_given_back():
    holder = Custom(torch.zeros(2))

    def function(x, holder):
        holder.value.add_(x)
        return holder

    step = graph(function)
    for _ in range(3):
        assert step(torch.ones(2), holder) is holder
    assert holder.value.tolist() == [3.0, 3.0]


# --- attributes that are carried -----------------------------------------------------------------


class Env:
    """Keeps its last action, as environments do."""

    def __init__(self):
        self.previous = torch.zeros(4)
        self.total = torch.zeros(4)

    def step(self, action):
        change = action - self.previous
        self.total += change.abs()
        self.previous = action * 1.0
        return change


def test_replaced_tensors_are_carried_from_call_to_call():
    plain, recorded = Env(), Env()
    step = graph(recorded.step)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        action = torch.randn(4, generator=generator)
        assert torch.equal(step(action), plain.step(action))
        assert torch.equal(recorded.previous, plain.previous)
        assert torch.equal(recorded.total, plain.total)
    recorded.previous = torch.ones(4)  # from outside, between two calls
    plain.previous = torch.ones(4)
    assert torch.equal(step(action), plain.step(action))


class Decorated:
    """A method decorated in the class: every instance has its own state."""

    def __init__(self, gain):
        self.gain = gain
        self.x = torch.zeros(3)

    @ks.window(streams=2, strategy="graph")
    def step(self, y):
        """Adds."""
        self.x.add_(y * self.gain)
        return self.x * 1.0


def test_decorated_methods_keep_instances_apart():
    first, second = Decorated(1.0), Decorated(10.0)
    for count in range(1, 5):
        assert first.step(torch.ones(3)).tolist() == [1.0 * count] * 3
        assert second.step(torch.ones(3)).tolist() == [10.0 * count] * 3


def test_the_decorator_keeps_name_and_docstring():
    assert Decorated.step.__name__ == "step"
    assert Decorated.step.__doc__ == "Adds."


# --- loops and branches --------------------------------------------------------------------------


def run_until(x, limit, going):
    launch(kernels.restart, [x, limit, going], dim=1)
    wp.capture_while(going, lambda: launch(kernels.halve_until, [x, limit, going], dim=1))


@pytest.mark.parametrize("recorded_from", [1.0, 4.0, 64.0])  # 0, 1 and 5 iterations
@pytest.mark.parametrize("streams", [1, 2])
def test_loops_replay_any_number_of_iterations(recorded_from, streams):
    x, going = zeros(1), wp.zeros(1, dtype=int, device="cpu")
    step = graph(lambda: run_until(x, 2.0, going), streams)
    for start in (recorded_from, 1.0, 4.0, 1024.0, 1.5, 64.0):
        x.fill_(start)
        step()
        expected = start
        while expected > 2.0:
            expected *= 0.5
        assert x.numpy()[0] == expected
    assert recordings(step) == 1


def test_loops_nest():
    x, y = zeros(1), zeros(1)
    outer, inner = (wp.zeros(1, dtype=int, device="cpu") for _ in range(2))

    def inner_body():
        launch(kernels.add, [y, 1.0], dim=1)
        launch(kernels.count_down, [inner], dim=1)

    def outer_body():
        launch(kernels.set_int, [inner, 3], dim=1)
        wp.capture_while(inner, inner_body)
        launch(kernels.add, [x, 1.0], dim=1)
        launch(kernels.count_down, [outer], dim=1)

    def function():
        wp.capture_while(outer, outer_body)

    step = graph(function)
    total = 0
    for times in (2, 0, 1, 5):
        outer.fill_(times)
        step()
        total += times
        assert x.numpy()[0] == total
        assert y.numpy()[0] == 3 * total
    assert recordings(step) == 1


@pytest.mark.parametrize("recorded", [0, 1])
def test_both_sides_of_a_branch_replay(recorded):
    flag, x = wp.zeros(1, dtype=int, device="cpu"), zeros(1)

    def function():
        wp.capture_if(
            flag,
            on_true=lambda: launch(kernels.add, [x, 1.0], dim=1),
            on_false=lambda: launch(kernels.add, [x, 100.0], dim=1),
        )

    step = graph(function)
    expected = 0.0
    for value in (recorded, 0, 1, 1, 0):
        flag.fill_(value)
        step()
        expected += 1.0 if value else 100.0
        assert x.numpy()[0] == expected
    assert recordings(step) == 1


def test_a_branch_without_the_other_side():
    flag, x = wp.zeros(1, dtype=int, device="cpu"), zeros(1)
    step = graph(lambda: wp.capture_if(flag, on_true=lambda: launch(kernels.add, [x, 1.0], dim=1)))
    for value in (0, 1, 0, 1):
        flag.fill_(value)
        step()
    assert x.numpy()[0] == 2.0


def test_a_loop_beside_independent_work_is_one_task():
    x, going, y = zeros(1), wp.zeros(1, dtype=int, device="cpu"), zeros()

    def function():
        run_until(x, 2.0, going)
        launch(kernels.add, [y, 1.0])

    step = graph(function)
    x.fill_(8.0)
    step()
    assert [task.name for task in step.report.graph.tasks] == ["restart", "capture_while", "add"]
    assert step.report.graph.edges == [(0, 1)]


def test_a_body_that_swaps_its_buffers_is_refused():
    x, y, left = zeros(), zeros(), wp.full(1, 4, dtype=int, device="cpu")

    def function():
        pair = [x, y]

        def body():
            launch(kernels.scale, [pair[0], 2.0, pair[1]])
            launch(kernels.count_down, [left], dim=1)
            pair.reverse()

        wp.capture_while(left, body)

    with pytest.raises(ks.NotReplayable, match=r"not the same in each iteration: scale got other"):
        graph(function)()


def test_torch_ops_in_a_body_are_refused():
    left, x = wp.full(1, 2, dtype=int, device="cpu"), torch.zeros(2)

    def function():
        def body():
            x.add_(1.0)
            launch(kernels.count_down, [left], dim=1)

        wp.capture_while(left, body)

    with pytest.raises(ks.NotReplayable, match=r"inside the body of wp\.capture_while"):
        graph(function)()


# --- between the frameworks, and errors ----------------------------------------------------------


def test_torch_ops_between_launches_replay_in_order():
    x = torch.zeros(N)

    def function(y):
        launch(kernels.add, [wp.from_torch(x), 1.0])
        x.mul_(2.0)
        launch(kernels.add, [wp.from_torch(x), y])
        return x + 0.0

    step = graph(function)
    expected = 0.0
    for _ in range(5):
        result = step(3.0)
        expected = (expected + 1.0) * 2.0 + 3.0
        assert (result == expected).all()


def test_random_numbers_replay_as_they_would_be_drawn():
    step = graph(lambda x: x + torch.rand(4))
    torch.manual_seed(3)
    found = [step(torch.zeros(4)) for _ in range(4)]
    torch.manual_seed(3)
    expected = [torch.zeros(4) + torch.rand(4) for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_exception_while_recording_leaves_no_recording():
    x = zeros()

    def function(fails):
        launch(kernels.add, [x, 1.0])
        if fails:
            raise ValueError("mine")

    step = graph(function)
    with pytest.raises(ValueError, match="mine"):
        step(True)
    assert recordings(step) == 0
    step(False)
    step(False)
    assert (x.numpy() == 3.0).all()


def test_an_op_that_fails_in_a_replay_raises_its_own_error():
    index = torch.zeros(2, dtype=torch.long)
    values = torch.arange(4.0)
    step = graph(lambda: values[index] + 1.0)
    step()
    index[0] = 99
    with pytest.raises(IndexError):
        step()
    index[0] = 2
    assert step().tolist() == [3.0, 1.0]


def test_a_recorded_function_inside_a_recording_is_refused():
    inner = graph(lambda x: x + 1.0)
    outer = graph(lambda x: inner(x) * 2.0)
    with pytest.raises(ks.NotReplayable, match="decorate the outer one only"):
        outer(torch.ones(2))
    assert inner(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_recorded_function_inside_an_open_window():
    x = zeros()
    step = graph(lambda: launch(kernels.add, [x, 1.0]))
    for expected in (17.0, 17.0):
        with ks.window(streams=2):
            launch(kernels.fill, [x, 5.0])
            step()
            step()
            launch(kernels.add, [x, 10.0])
        assert (x.numpy() == expected).all()
        step()  # records outside, so that the second window replays
        assert (x.numpy() == expected + 1.0).all()


def test_a_window_inside_a_recording_joins_it():
    x = zeros()

    def function():
        with ks.window(streams=2) as window:
            launch(kernels.add, [x, 1.0])
        return "part of a recording" in str(window.report)

    step = graph(function)
    assert step()
    step()
    assert (x.numpy() == 2.0).all()


# --- memory --------------------------------------------------------------------------------------


def _resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_dropped_recordings_give_their_memory_back():
    def record():
        y = wp.zeros(1 << 14, dtype=float, device="cpu")

        def function(x):
            temporary = wp.zeros(1 << 14, dtype=float, device="cpu")
            launch(kernels.scale, [x, 2.0, temporary], dim=1 << 14)
            launch(kernels.scale, [temporary, 2.0, y], dim=1 << 14)

        step = graph(function)
        x = wp.ones(1 << 14, dtype=float, device="cpu")
        step(x)
        step(x)
        assert y.numpy()[0] == 4.0

    def record_many(times):
        for _ in range(times):
            for _ in range(100):
                record()
            gc.collect()  # recordings hold cycles

    record_many(4)
    before = _resident_kib()
    record_many(10)
    # Each recording holds 64 KiB of temporaries: 64 MB would be left.
    assert _resident_kib() - before < 24 * 1024


def test_at_most_eight_recordings_of_a_key_are_kept():
    config = {"gain": 0.0}
    step = graph(lambda x: x * config["gain"])
    for value in range(12):
        config["gain"] = float(value)
        assert step(torch.ones(2)).tolist() == [float(value)] * 2
    assert recordings(step) == 8
