"""Recordings that once gave the results, the memory or the settings of another call."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import random
import types

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp

import kscheduler as ks

X = torch.arange(4.0)


def graph(function):
    return ks.window(streams=2, strategy="graph")(function)


def launch(kernel, arrays, dim=4):
    wp.launch(kernel, dim=dim, inputs=arrays, device="cpu")


@wp.kernel
def count_down(counter: wp.array(dtype=int), total: wp.array(dtype=float)):
    counter[0] = counter[0] - 1
    total[0] = total[0] + 1.0


@wp.kernel
def add_to(array: wp.array(dtype=float), value: float):
    i = wp.tid()
    array[i] = array[i] + value


# --- memory --------------------------------------------------------------------------------------


def test_the_condition_of_a_loop_is_that_of_this_call():
    def run(counter, total):
        wp.capture_while(counter, lambda: launch(count_down, [counter, total], 1))

    step = graph(run)
    for number in (3, 2, 5, 0):
        counter = wp.array([number], dtype=int, device="cpu")
        total = wp.zeros(1, dtype=float, device="cpu")
        step(counter, total)
        assert (total.numpy()[0], counter.numpy()[0]) == (number, 0)


def test_the_condition_of_a_branch_is_that_of_this_call():
    total = wp.zeros(1, dtype=float, device="cpu")

    def run(condition):
        wp.capture_if(
            condition,
            lambda: launch(add_to, [total, 1.0], 1),
            lambda: launch(add_to, [total, 100.0], 1),
        )

    step = graph(run)
    expected = 0.0
    for number in (1, 0, 0, 1):
        step(wp.array([number], dtype=int, device="cpu"))
        expected += 1.0 if number else 100.0
        assert total.numpy()[0] == expected


def _through_warp(x):
    return wp.to_torch(wp.from_torch(x * 2))


def _through_a_kernel(x):
    array = wp.from_torch(x * 2)
    launch(add_to, [array, 0.0])
    return wp.to_torch(array)


def _part_of_a_result(x):
    return wp.to_torch(wp.from_torch(torch.cat([x, x * 2]))[4:])


def _through_dlpack(x):
    return torch.from_dlpack(x * 2)


@pytest.mark.parametrize(
    "function", [_through_warp, _through_a_kernel, _part_of_a_result, _through_dlpack]
)
def test_a_result_that_came_back_from_another_framework(function):
    step = graph(function)
    results = [step(X + count) for count in range(5)]
    for count, result in enumerate(results):
        assert torch.equal(result, (X + count) * 2)


def test_a_result_seen_as_another_type_is_refused():
    with pytest.raises(ks.NotReplayable, match="seen through another framework"):
        graph(lambda x: wp.to_torch(wp.from_torch(x * 2).view(wp.int32)) + 1)(X)


@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "cond", "matrix_norm"])
def test_linalg_gives_the_same_bits_in_a_window(name):
    torch.manual_seed(0)
    a = torch.randn(40, 40)
    a = a + a.T
    function = getattr(torch.linalg, name)
    options = {"ord": 2} if name == "matrix_norm" else {}
    expected = function(a, **options)
    array = wp.from_torch(torch.zeros(4))
    with ks.window(streams=2):
        launch(kernels.fill, [array, 1.0])
        assert torch.equal(getattr(torch.linalg, name)(a, **options), expected)
    with pytest.raises(ks.NotReplayable, match=r"torch\.linalg"):
        graph(lambda x: getattr(torch.linalg, name)(x, **options))(a)


# --- what a recording takes for granted of a tensor ----------------------------------------------


def _other_data(tensor):
    tensor.data = torch.full((4,), 10.0)


def _other_storage(tensor):
    tensor.set_(torch.full((4,), 10.0))


@pytest.mark.parametrize("change", [_other_data, _other_storage])
def test_other_memory_under_a_tensor_that_warp_reads(change):
    held = types.SimpleNamespace(values=torch.ones(4))
    out = wp.zeros(4, dtype=float, device="cpu")
    step = graph(lambda: wp.copy(out, wp.from_torch(held.values)))
    step()
    before = held.values.data  # keeps the old memory readable
    change(held.values)
    step()
    assert (out.numpy() == 10.0).all()
    assert (before == 1.0).all()


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (torch.Tensor.numel, lambda t: setattr(t, "data", torch.ones(9))),
        (lambda t: t.shape[0], lambda t: t.resize_(2)),
        (lambda t: 2 if t.requires_grad else 3, lambda t: t.requires_grad_()),
    ],
    ids=["numel", "shape", "requires_grad"],
)
def test_the_look_of_a_tensor_is_guarded(read, change):
    held = types.SimpleNamespace(values=torch.ones(6))
    step = graph(lambda x: x * read(held.values))
    step(X)
    change(held.values)
    assert torch.equal(step(X), X * read(held.values))


def test_a_parameter_that_is_unfrozen_is_noticed():
    module = torch.nn.Linear(4, 4).requires_grad_(False)
    step = graph(lambda x: module(x))
    step(X)
    module.requires_grad_()
    with pytest.raises(ks.NotReplayable, match="requires grad"):
        step(X)


# --- results -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Arrays:
    values: wp.array


@dataclasses.dataclass
class Doubled:
    value: torch.Tensor

    def __post_init__(self):
        self.twice = self.value * 2


def test_an_argument_in_a_dataclass_is_that_of_this_call():
    step = graph(lambda array: (launch(add_to, [array, 1.0]), Arrays(array))[1])
    for number in range(4):
        array = wp.full(4, float(number), dtype=float, device="cpu")
        assert step(array).values is array
        assert (array.numpy() == number + 1.0).all()


def test_attributes_that_a_dataclass_gave_itself_are_kept():
    step = graph(lambda x: Doubled(x + 1))
    for count in range(4):
        result = step(X + count)
        assert torch.equal(result.value, X + count + 1)
        assert torch.equal(result.twice, (X + count + 1) * 2)


# --- arguments -----------------------------------------------------------------------------------


def test_a_tensor_on_an_argument_is_that_of_this_call():
    step = graph(lambda x: x + x.extra)
    for count in range(4):
        x = X.clone()
        x.extra = X + count
        assert torch.equal(step(x), x + x.extra)


def test_an_attribute_of_a_warp_argument_is_that_of_this_call():
    step = graph(lambda x, array: x * array.gain)
    for count in range(4):
        array = wp.zeros(4, dtype=float, device="cpu")
        array.gain = float(count)
        assert torch.equal(step(X, array), X * count)


# --- the host's generators and clocks ------------------------------------------------------------

RNG = np.random.default_rng(0)
PYTHON_RNG = random.Random(0)


def noise():
    return float(RNG.normal())


class Noisy(torch.nn.Module):
    shared = np.random.default_rng(0)

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, x):
        return x + float(self.rng.normal())

    def from_class(self, x):
        return x + float(self.shared.normal())


def _default(x, rng=np.random.default_rng(0)):  # noqa: B008
    return x + float(rng.normal())


DRAWING = {
    "helper": lambda x: x + noise(),
    "python": lambda x: x + PYTHON_RNG.gauss(0.0, 1.0),
    "module": Noisy(),
    "class": Noisy().from_class,
    "partial": functools.partial(lambda rng, x: x + float(rng.normal()), np.random.default_rng(0)),
    "default": _default,
    "date": lambda x: x + datetime.datetime.now().microsecond,
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_generator_or_clock_in_an_unusual_place_is_refused(name):
    with torch.no_grad(), pytest.raises(ks.NotReplayable, match="which a replay would not"):
        graph(DRAWING[name])(X)


# --- buffers that are made when first used -------------------------------------------------------


class Lazy:
    def __init__(self):
        self.total = None

    def step(self, x):
        if self.total is None:
            self.total = torch.zeros(4)
        self.total.add_(x)
        return self.total.clone()


def test_a_buffer_may_be_made_on_the_first_call():
    step = graph(Lazy().step)
    for count in range(1, 6):
        assert torch.equal(step(X), X * count)
    assert step.report.strategy == "graph"
