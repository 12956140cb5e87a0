"""Recorded torch ops: replays equal eager calls, bit for bit, whatever the program does."""

from __future__ import annotations

import random
from collections import namedtuple
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kscheduler.access import READ, WRITE, overlaps
from kscheduler.errors import NotReplayable, StaleArgument
from kscheduler.intercept.torch_access import tensor_access
from kscheduler.intercept.torch_bindings import quickest
from kscheduler.intercept.torch_ops import TorchInterceptor
from kscheduler.intercept.torch_replay import TorchTape


class Recorder:
    """A sink that puts every op on a tape."""

    def __init__(self, tape: TorchTape) -> None:
        self.torch_op = tape.op

    def wants_ops(self) -> bool:
        return True

    def fence(self, reason: str) -> None:
        raise AssertionError(reason)


class Recorded:
    """A function that is recorded at its first call and replayed after that."""

    def __init__(self, function, order=None, pin=None) -> None:
        self.function = function
        self.order = order
        self.pin = pin
        self.tape: TorchTape | None = None

    def __call__(self, *inputs):
        if self.tape is None:
            self.tape = TorchTape()
            self.tape.bind_inputs(inputs)
            with TorchInterceptor(Recorder(self.tape)) as interceptor:
                interceptor.arm()
                self.result = self.function(*inputs)
            if self.pin is not None:
                self.tape.pin(self.pin(self.result))
            return self.tape.outputs(self.tape.recorded_values(), self.result)
        values = self.tape.begin_replay(inputs)
        count = len(self.tape.nodes)
        for index in range(count) if self.order is None else self.order(self.tape):
            self.tape.run(values, index)
        return self.tape.outputs(values, self.result)


def flat(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [tensor for item in value for tensor in flat(item)] if value is not None else []


def assert_same(actual, expected) -> None:
    actual, expected = flat(actual), flat(expected)
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.dtype is theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.stride() == theirs.stride()
        assert mine.requires_grad == theirs.requires_grad
        assert mine.is_inference() == theirs.is_inference()
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))


def check(make_function, make_inputs, calls: int = 4, **options) -> TorchTape:
    """Three replays, with new inputs each, against eager calls of an equal function.

    `make_function` is called twice, so that each side has constants of its own; the function may
    have an attribute `state`, a list of tensors that it changes.
    """
    eager, recorded = make_function(), make_function()
    replayed = Recorded(recorded, **options)
    kept = []
    for call in range(calls):
        torch.manual_seed(call)
        inputs = make_inputs()
        originals = {id(tensor): tensor.clone() for tensor in inputs}
        copies = [originals[id(tensor)] for tensor in inputs]
        torch.manual_seed(100 + call)
        expected = eager(*copies)
        state = torch.get_rng_state()
        torch.manual_seed(100 + call)
        actual = replayed(*inputs)
        assert_same(actual, expected)
        assert_same(inputs, copies)
        assert_same(getattr(recorded, "state", []), getattr(eager, "state", []))
        assert torch.equal(torch.get_rng_state(), state)
        kept.append((actual, [tensor.clone() for tensor in flat(actual)]))
    own = {tensor.data_ptr() for tensor in getattr(recorded, "state", [])}
    for actual, before in kept:
        for tensor, copy in zip(flat(actual), before, strict=True):
            if tensor.untyped_storage().data_ptr() not in own:
                assert torch.equal(tensor.nan_to_num(7), copy.nan_to_num(7))
    assert replayed.tape is not None
    return replayed.tape


def inputs(*shapes):
    return lambda: [torch.randn(shape) for shape in shapes]


def stateless(function):
    return lambda: function


# --- kinds of ops --------------------------------------------------------------------------------


def test_out_of_place_ops():
    check(stateless(lambda x, y: (x @ y).sin() * 2 + 1), inputs((3, 4), (4, 5)))


def test_in_place_ops_act_on_the_bound_value():
    check(stateless(lambda x: x.add_(1).mul_(x)), inputs((4,)))


def test_in_place_ops_on_a_result():
    def function(x):
        y = x + 1
        z = y * 2
        y.mul_(10)
        return y, z, y + z

    check(stateless(function), inputs((4,)))


def test_constants_are_used_where_they_lie():
    def make():
        total, scale = torch.zeros(4), torch.ones(1)

        def function(x):
            total.add_(x * scale)
            scale.mul_(0.5)
            return total, total.clone()

        function.state = [total, scale]
        return function

    check(make, inputs((4,)))


def test_views_of_inputs_results_and_constants():
    def make():
        state = torch.zeros(4, 6)

        def function(x):
            rows = state[1:3]
            rows[:, ::2] += x[:, 1:4]
            y = (x * 2).view(3, 4).t()
            y[0].zero_()
            left, right = x.chunk(2, dim=1)
            left.copy_(right)
            return y, y[1:, 1], left, x.unbind(1)

        function.state = [state]
        return function

    tape = check(make, inputs((2, 6)))
    names = {node.name for node in tape.nodes}
    assert not names & {"aten::select.int", "aten::slice.Tensor", "aten::view", "aten::t"}


def test_lists_optionals_keywords_and_tuples_of_results():
    def function(x, y):
        a, b = torch.cat([x, y], dim=1).sort(dim=1, descending=True, stable=True)
        c = torch.stack((x, y.clamp(max=0.5)))
        low, where = c.min(dim=0)
        top = x.topk(2, dim=1)
        out = torch.empty(2, 3)
        torch.add(x, y, alpha=0.5, out=out)
        return a, b, low, where, top.values, top.indices, out, x.clamp(min=-0.5, max=None)

    check(stateless(function), inputs((2, 3), (2, 3)))


def test_foreach_ops():
    def make():
        state = [torch.zeros(3), torch.zeros(2, 2)]

        def function(x, y):
            torch._foreach_add_(state, [x, y])
            torch._foreach_mul_(state, 0.5)
            scaled = torch._foreach_mul(state, [2.0, 3.0])
            norms = torch._foreach_norm(scaled)
            return scaled, norms

        function.state = state
        return function

    check(make, inputs((3,), (2, 2)))


def test_scatter_gather_and_masks():
    def make():
        table = torch.zeros(5, 3)

        def function(x):
            index = torch.tensor([0, 2, 2])
            table.index_put_((index,), x, accumulate=True)
            table[x.new_ones(5) > 2] = 9
            table[torch.arange(5) == 3] = 1
            y = torch.where(x > 0, x, x.new_zeros(()))
            y[x < -0.5] = 4
            return table.gather(0, index.view(1, 3)), y, table.index_select(0, index)

        function.state = [table]
        return function

    check(make, inputs((3, 3)))


def test_tensors_made_of_python_numbers_are_made_again():
    def function(x):
        total = torch.tensor(0.0)
        for row in x:
            total += row.sum()
        weights = torch.tensor([1.0, 2.0])
        weights *= total
        return total, weights

    check(stateless(function), inputs((3, 2)))


def test_factories_give_new_memory_each_time():
    def function(x):
        buffer = torch.zeros(2, 3)
        buffer[0] = x
        return buffer, torch.full((2,), 3.5), torch.arange(3), torch.zeros_like(x)

    check(stateless(function), inputs((3,)))


def test_random_ops_draw_again_in_order():
    def function(x):
        y = torch.rand(3) + torch.nn.functional.dropout(x, 0.5)
        y += torch.randn(3)
        return y, torch.randint(0, 9, (4,)), torch.randperm(5), torch.bernoulli(y.sigmoid())

    def reordered(tape):
        # Any order that the accesses allow: here the latest possible one first.
        return topological_order(tape, latest=True)

    check(stateless(function), inputs((3,)))
    check(stateless(function), inputs((3,)), order=reordered)


def test_a_generator_of_the_programs_own():
    def make():
        generator = torch.Generator().manual_seed(5)

        def function(x):
            return x + torch.rand(3, generator=generator), generator.get_state().clone()

        return function

    eager, replayed = make(), Recorded(make())
    for _ in range(4):
        assert torch.equal(eager(torch.ones(3))[0], replayed(torch.ones(3))[0])


def test_empty_tensors():
    def function(x):
        empty = torch.zeros(0, 3)
        y = torch.cat([empty, x, x[2:2]])
        return y, empty + 1, y[:0], torch.zeros(3, 0) @ torch.zeros(0, 2)

    check(stateless(function), inputs((2, 3)))


def test_complex_and_reinterpreting_views():
    def function(x):
        z = torch.view_as_complex(x)
        w = z.conj() * 2
        bits = (x + 1).view(torch.int32)
        return torch.view_as_real(w), z.conj().imag + 1, bits & 3, w.real

    check(stateless(function), inputs((3, 2)))


def test_ops_that_turn_a_tensor_into_a_view_of_itself():
    def function(x):
        y = x + 1
        y.t_()
        y.unsqueeze_(0)
        y[0, 0].zero_()
        y.squeeze_()
        return y, y * 2

    check(stateless(function), inputs((2, 3)))
    with pytest.raises(NotReplayable, match="in place"):
        Recorded(lambda x: x.t_())(torch.ones(2, 3))
    with pytest.raises(NotReplayable, match="resize_"):
        Recorded(lambda x: (x + 1).resize_(2))(torch.ones(3))


def test_views_without_a_dispatched_op():
    def function(x):
        y = x * 2
        y.data[1:].add_(5)
        x.data.mul_(3)
        return y, y.detach()[0]

    check(stateless(function), inputs((3,)))


def test_inference_mode():
    def function(x):
        y = x.reshape(3, 2).contiguous()
        z = (y.to(torch.float32).flatten() + 1).reshape(2, 3).t()
        y.add_(1)
        return y, z, z.reshape(-1), torch.nn.functional.dropout(y, 0.5, training=False)

    with torch.inference_mode():
        check(stateless(function), inputs((2, 3)))


def test_autocast_casts_are_not_repeated_below_autocast():
    def function(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
            with torch.autocast("cpu", enabled=False):
                w = x @ y
        return z, w

    check(stateless(function), inputs((2, 3), (3, 4)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(stateless(function), inputs((2, 3), (3, 4)))


def test_modules_without_grad():
    def make():
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        )

        def function(x):
            with torch.no_grad():
                return model(x)

        norm = model[1]
        function.state = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        return function

    check(make, inputs((5, 4)))


def test_inference_mode_inside_the_function():
    def function(x):
        with torch.inference_mode():
            y = x + 1
        return y, x * 2

    check(stateless(function), inputs((3,)))
    recorded = Recorded(function)
    recorded(torch.ones(3))
    with torch.inference_mode(), pytest.raises(StaleArgument, match="inference"):
        recorded(torch.ones(3))


def test_inputs_that_require_grad_under_no_grad():
    def function(x):
        with torch.no_grad():
            y = x * 2
            y[0] = 5
            return y, x[1:], x.detach()

    check(stateless(function), lambda: [torch.randn(3, requires_grad=True)])


def test_custom_ops_are_called_again():
    with torch.library._scoped_library("kscheduler_replay_test", "FRAGMENT") as library:
        library.define("bump(Tensor x, Tensor y) -> Tensor")

        def bump(x, y):
            x.add_(1)  # although the schema says nothing of it
            return x + y

        library.impl("bump", bump, "CPU")
        op = torch.ops.kscheduler_replay_test.bump
        tape = check(stateless(lambda x, y: (op(x, y), x * 2)), inputs((3,), (3,)))
    assert tape.nodes[0].accesses is None


# --- values --------------------------------------------------------------------------------------


def test_structures_are_rebuilt():
    Pair = namedtuple("Pair", "first second")
    constant = torch.ones(1)

    def function(x):
        y = x + 1
        return {"a": [y, 3, None], "b": Pair(y[0], "text"), "c": (x, constant, np.float32(2))}

    recorded = Recorded(function)
    recorded(torch.ones(2))
    x = torch.zeros(2)
    result = recorded(x)
    assert result["a"][0].tolist() == [1, 1]
    assert result["a"][1:] == [3, None]
    assert isinstance(result["b"], Pair)
    assert result["b"].first == 1
    assert result["b"].first.data_ptr() == result["a"][0].data_ptr()
    assert result["c"][0] is x
    assert result["c"][1] is constant
    assert result["c"][2] == 2


def test_an_object_that_may_hide_tensors_is_refused():
    class State:
        pass

    recorded = Recorded(lambda x: State())
    with pytest.raises(NotReplayable, match="State"):
        recorded(torch.ones(1))


def test_one_input_given_twice():
    check(stateless(lambda x, y: x.add_(y)), lambda: [torch.randn(3)] * 2)


def test_one_input_given_twice_and_then_two():
    recorded = Recorded(lambda x, y: x + y)
    x = torch.ones(3)
    recorded(x, x)
    with pytest.raises(StaleArgument, match="two now"):
        recorded(x, torch.ones(3))


def test_pinned_results_stay_at_their_address():
    seen = []

    def function(x):
        y = x * 2
        z = y[1:] + 1
        y.add_(1)
        return y, z, y[:2]

    recorded = Recorded(function, pin=lambda result: [tensor_access(result[0], READ)])
    x = torch.arange(3.0)
    kept = []
    for call in range(4):
        expected = function(x + call)
        actual = recorded(x + call)
        assert_same(actual, expected)
        kept.append((actual, expected))
        seen.append(recorded.result[0].clone())  # what a kernel at the recorded address sees
        assert torch.equal(seen[-1], expected[0])
    for actual, expected in kept:
        assert_same(actual, expected)
        assert actual[2].data_ptr() == actual[0].data_ptr()
        assert actual[0].data_ptr() != recorded.result[0].data_ptr()


@pytest.mark.parametrize("what", ["address", "storage", "access"])
def test_pin_takes_addresses_storages_and_ranges(what):
    def pin(result):
        access = tensor_access(result[1:], READ)
        storage = result.untyped_storage()
        return [{"address": access.start, "storage": storage, "access": access}[what]]

    recorded = Recorded(lambda x: x + 1, pin=pin)
    recorded(torch.zeros(3))
    recorded(torch.ones(3))
    assert recorded.result.tolist() == [2, 2, 2]


def test_pinned_empty_memory_keeps_its_address():
    buffers = []

    def function(x):
        buffers.append(torch.empty_like(x))
        buffers[-1].copy_(x)
        return buffers[-1] + 1

    recorded = Recorded(function, pin=lambda result: [buffers[0].data_ptr()])
    for call in range(3):
        assert torch.equal(recorded(torch.full((3,), call)), torch.full((3,), call + 1))
        assert buffers[0].tolist() == [call] * 3
    assert len(buffers) == 1


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "name"),
    [
        (torch.ops.aten.add.Tensor, (torch.ones(2), 1), {"alpha": 2}, "add"),
        (torch.ops.aten.add_.Tensor, (torch.ones(2), torch.ones(2)), {}, "add_"),
        (torch.ops.aten.cat.default, ([torch.ones(2), torch.ones(1)],), {}, "cat"),
        (torch.ops.aten.select.int, (torch.ones(2, 2), 0, 1), {}, "select"),
    ],
)
def test_bindings_are_taken_where_they_come_to_the_same_op(func, args, kwargs, name):
    binding = quickest(func, args, kwargs)
    assert binding is not func._op
    assert binding.__name__ == name
    before = [tensor.clone() for tensor in flat(args[:1])]
    for tensor, untouched in zip(flat(args[:1]), before, strict=True):
        assert torch.equal(tensor, untouched)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        # The binding would take another overload, or another op, or there is none.
        (torch.ops.aten.mul.Scalar, (torch.ones(2), 2)),
        (torch.ops.aten.slice.Tensor, (torch.ones(4), 0, 1, 2)),
        (torch.ops.aten.matmul.default, (torch.ones(2, 2), torch.ones(2, 2))),
    ],
)
def test_bindings_that_come_to_another_op_are_not_taken(func, args):
    assert quickest(func, args, {}) is func._op


# --- what cannot be replayed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: float(x[0]), "_local_scalar_dense"),
        (lambda x: 1 if x.sum() > 0 else 2, "_local_scalar_dense"),
        (lambda x: x[x > 0], "index.Tensor"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.masked_select(x, x > 0), "masked_select"),
        (lambda x: x.unique(), "unique"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: torch.allclose(x, x), "allclose"),
        (lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])), "repeat_interleave"),
    ],
)
def test_host_reads_name_the_op_and_the_line(function, name):
    recorded = Recorded(function)
    with pytest.raises(NotReplayable, match=rf"{name}.*test_torch_replay\.py:\d+"):
        recorded(torch.tensor([1.0, -1.0, 2.0]))


def test_gradients_are_refused():
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(NotReplayable, match="requires grad"):
        Recorded(lambda x: x * weight)(torch.ones(3))


def test_a_generator_seeded_inside_is_refused():
    def function(x):
        torch.manual_seed(1)
        return x + torch.rand(3)

    with pytest.raises(NotReplayable, match="generator"):
        Recorded(function)(torch.ones(3))


def test_inputs_that_share_memory_are_refused():
    base = torch.zeros(6)
    with pytest.raises(NotReplayable, match="share memory"):
        Recorded(lambda x, y: x + y)(base[:4], base[2:])
    recorded = Recorded(lambda x, y: x.add_(1) + y)
    recorded(base[:3], base[3:])
    with pytest.raises(StaleArgument, match="shares memory"):
        recorded(base[:3], base[1:4])


def test_an_input_that_is_also_a_constant_is_refused():
    buffer = torch.zeros(3)
    recorded = Recorded(lambda x: buffer.add_(x))
    recorded(torch.ones(3))
    with pytest.raises(StaleArgument, match="uses otherwise"):
        recorded(buffer)


def test_a_view_of_an_input_that_was_made_outside_is_refused():
    x = torch.zeros(4)
    half = x[:2]
    with pytest.raises(NotReplayable, match="was not made"):
        Recorded(lambda x: half + x[2:])(x)


@pytest.mark.parametrize(
    "other", [torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(6)[::2]]
)
def test_an_input_of_another_geometry_is_stale(other):
    recorded = Recorded(lambda x: x + 1)
    recorded(torch.ones(3))
    with pytest.raises(StaleArgument, match="argument 0"):
        recorded(other)


def test_a_constant_that_moved_is_stale():
    weight = torch.ones(3)
    recorded = Recorded(lambda x: x * weight[0])
    recorded(torch.ones(3))
    weight.data = torch.zeros(3)
    with pytest.raises(StaleArgument, match="other memory"):
        recorded(torch.ones(3))


def test_higher_order_ops_are_refused():
    from torch._higher_order_ops.associative_scan import associative_scan_op

    tape = TorchTape()
    with pytest.raises(NotReplayable, match="higher-order"):
        tape.op(associative_scan_op, (), {})


# --- accesses and order --------------------------------------------------------------------------


def topological_order(tape: TorchTape, latest: bool = False, seed: int = 0) -> list[int]:
    """An order of the nodes that keeps only the conflicts of their accesses."""
    rng = random.Random(seed)
    nodes = tape.nodes
    before = {node.index: set() for node in nodes}
    for later in nodes:
        for earlier in nodes[: later.index]:
            if later.accesses is None or earlier.accesses is None or conflict(earlier, later):
                before[later.index].add(earlier.index)
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [i for i in before if i not in order and before[i] <= set(order)]
        order.append(ready[-1] if latest else rng.choice(ready))
    return order


def conflict(a, b) -> bool:
    return any(
        overlaps(x, y) and (x.mode & WRITE or y.mode & WRITE)
        for x in a.accesses
        for y in b.accesses
    )


def test_accesses_hold_inputs_and_results():
    x = torch.ones(3)
    recorded = Recorded(lambda x: x * 2)
    recorded(x)
    (node,) = recorded.tape.nodes
    assert node.name == "aten::mul.Tensor"
    assert node.accesses == (tensor_access(x, READ), tensor_access(recorded.result, WRITE))


def test_independent_ops_do_not_conflict():
    recorded = Recorded(lambda x, y: (x[:, 0:3] + 1, y.mul_(2), x[:, 3:6].neg_()))
    recorded(torch.ones(4, 6), torch.ones(3))
    add, mul, neg = recorded.tape.nodes
    assert not conflict(add, mul)
    assert not conflict(add, neg)
    assert not conflict(mul, neg)


# --- random programs -----------------------------------------------------------------------------


def random_program(seed: int, steps: int):
    """A program of in-place ops, views and functional ops on inputs, results and constants."""

    def make():
        state = [torch.linspace(-1, 1, 24).view(4, 6), torch.arange(24.0).view(4, 6) / 10]

        def function(x, y):
            rng = random.Random(seed)
            pool = [x, y, *state]
            for _ in range(steps):
                step(rng, pool)
            return tuple(rng.sample(pool, 3)), pool[-1]

        function.state = state
        return function

    return make


def step(rng: random.Random, pool: list[torch.Tensor]) -> None:
    a, b = rng.choice(pool), rng.choice(pool)
    rows = rng.randrange(4)
    kind = rng.randrange(16)
    if kind == 0:
        pool.append(a + b)
    elif kind == 1:
        pool.append(torch.where(a > b, a, b * 0.5))
    elif kind == 2:
        a.mul_(0.5).add_(b, alpha=0.25)
    elif kind == 3:
        a[rows] = b[(rows + 1) % 4]
    elif kind == 4:
        a[:, 1:4].add_(b[:, 2:5].clone())
    elif kind == 5:
        a[:, ::2].copy_(b[:, 1::2].tanh())
    elif kind == 6:
        pool.append(torch.cat([a[:2], b[2:]], dim=0))
    elif kind == 7:
        low, _ = a.sort(dim=1)
        pool.append(low)
    elif kind == 8:
        pool.append(a.reshape(6, 4).t().contiguous().view(4, 6).clamp_(-2, 2))
    elif kind == 9:
        index = torch.tensor([0, 2, 1, 0])
        a.index_add_(0, index, b.tanh())
    elif kind == 10:
        left, right = a.chunk(2, dim=1)
        left.sub_(right.sigmoid())
    elif kind == 11:
        pool.append(torch.rand_like(a) - b)
    elif kind == 12:
        a.masked_fill_(b > 0.7, 0.1)
    elif kind == 13:
        out = torch.empty(4, 6)
        torch.sub(a, b, out=out)
        pool.append(out)
    elif kind == 14:
        pool.append(a.view(2, 2, 6).transpose(0, 1).reshape(4, 6))
    else:
        a.data[rows].fill_(0.3)
        torch._foreach_clamp_min_([a[:1], b[1:2]], -1.5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), steps=st.integers(1, 25), mode=st.sampled_from(["", "inference"])
)
def test_random_programs_equal_eager(seed, steps, mode):
    with torch.inference_mode() if mode else nullcontext():
        check(random_program(seed, steps), inputs((4, 6), (4, 6)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 20), pins=st.integers(0, 3))
def test_random_programs_in_any_order_with_pinned_results(seed, steps, pins):
    def pin(result):
        return [tensor_access(tensor, READ) for tensor in flat(result)[:pins]]

    def order(tape):
        return topological_order(tape, seed=seed)

    check(random_program(seed, steps), inputs((4, 6), (4, 6)), order=order, pin=pin)


def test_the_order_test_bites():
    """Without the accesses, another order gives other values."""

    def function(x):
        y = x + 1
        y.mul_(2)
        y.add_(x)
        return y

    def backwards(tape):
        return [0, 2, 1]

    with pytest.raises(AssertionError):
        check(stateless(function), inputs((3,)), order=backwards)
