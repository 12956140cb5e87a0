"""What a recording depends on: host values of every kind, and what cannot be replayed at all."""

import collections
import enum
import re
import types

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp

import kscheduler as ks


def graph(function):
    return ks.window(streams=2, strategy="graph")(function)


def times(x, factor):
    y = wp.zeros(2, dtype=float, device="cpu")
    wp.launch(kernels.scale, dim=2, inputs=[x, factor, y], device="cpu")
    return wp.to_torch(y) + 0.0


ONES = wp.ones(2, dtype=float, device="cpu")
GAIN = 2.0
TABLE = {"gain": 2.0}
SETTINGS = types.SimpleNamespace(gain=2.0, inner=types.SimpleNamespace(gain=2.0))


class Holder:
    gain = 2.0


def gain_now():
    return 2.0


class Options:
    gain = 2.0


class Child(Holder):
    pass


class Slots:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 2.0


class Level(enum.Enum):
    LOW = 2.0
    HIGH = 5.0


class Config:
    def __init__(self):
        self.reward = types.SimpleNamespace(gains=[1.0, 2.0], names={"gain": 2.0})
        self.level = Level.LOW
        self.number = np.float64(2.0)
        self.pair = (1.0, 2.0)


def _attribute():
    holder = Holder()
    holder.gain = 2.0

    def change(value):
        holder.gain = value

    return lambda: times(ONES, holder.gain), change


def _global():
    def change(value):
        globals()["GAIN"] = value

    return lambda: times(ONES, GAIN), change


def _global_dict():
    return lambda: times(ONES, TABLE["gain"]), lambda value: TABLE.update(gain=value)


def _global_namespace():
    def change(value):
        SETTINGS.inner.gain = value

    return lambda: times(ONES, SETTINGS.inner.gain), change


def _closure():
    gain = 2.0

    def change(value):
        nonlocal gain
        gain = value

    return lambda: times(ONES, gain), change


def _slots():
    holder = Slots()

    def change(value):
        holder.gain = value

    return lambda: times(ONES, holder.gain), change


def _class_attribute():
    holder = Child()

    def change(value):
        Holder.gain = value

    return lambda: times(ONES, holder.gain), change


def _list():
    gains = [1.0, 2.0]

    def change(value):
        gains[1] = value

    return lambda: times(ONES, gains[1]), change


def _length_of_list():
    gains = [1.0, 1.0]

    def change(value):
        gains[:] = [1.0] * int(value)

    return lambda: times(ONES, float(len(gains))), change


def _dict():
    gains = {"a": 2.0}
    return lambda: times(ONES, gains["a"]), lambda value: gains.update(a=value)


def _nested_list():
    config = Config()

    def change(value):
        config.reward.gains[1] = value

    return lambda: times(ONES, config.reward.gains[1]), change


def _nested_dict():
    config = Config()

    def change(value):
        config.reward.names["gain"] = value

    return lambda: times(ONES, config.reward.names["gain"]), change


def _enumeration():
    config = Config()

    def change(value):
        config.level = Level(value)

    return lambda: times(ONES, config.level.value), change


def _numpy_number():
    config = Config()

    def change(value):
        config.number = np.float64(value)

    return lambda: times(ONES, float(config.number)), change


def _tuple():
    config = Config()

    def change(value):
        config.pair = (1.0, value)

    return lambda: times(ONES, config.pair[1]), change


def _replaced_object():
    config = Config()

    def change(value):
        config.reward = types.SimpleNamespace(gains=[1.0, value])

    return lambda: times(ONES, config.reward.gains[1]), change


def _replaced_array():
    holder = types.SimpleNamespace(x=wp.full(2, 1.0, dtype=float, device="cpu"))

    def change(value):
        holder.x = wp.full(2, value / 2.0, dtype=float, device="cpu")

    return lambda: times(holder.x, 2.0), change


def _replaced_tensor():
    holder = types.SimpleNamespace(x=torch.full((2,), 2.0))

    def change(value):
        holder.x = torch.full((2,), value)

    return lambda: holder.x * 1.0, change


def _argument_of_an_inner_function():
    holder = Holder()
    holder.gain = 2.0

    def inner(settings):
        return times(ONES, settings.gain)

    def change(value):
        holder.gain = value

    return lambda: inner(holder), change


def _module_parameter():
    module = torch.nn.Linear(2, 2, bias=False)
    module.gain = 2.0

    def change(value):
        module.gain = value

    return lambda: times(ONES, module.gain), change


def _global_class():
    def change(value):
        Options.gain = value

    return lambda: times(ONES, Options.gain), change


def _user_module():
    def change(value):
        kernels.GAIN = value

    return lambda: times(ONES, kernels.GAIN), change


def _set():
    holder = types.SimpleNamespace(names={"a", "b"})

    def change(value):
        holder.names.clear()
        holder.names.update(range(int(value)))

    return lambda: times(ONES, float(len(holder.names))), change


def _queue():
    queue = collections.deque([1.0, 2.0])

    def change(value):
        queue[1] = value

    return lambda: times(ONES, queue[1]), change


def _function():
    holder = types.SimpleNamespace(gain=lambda: 2.0)

    def change(value):
        holder.gain = lambda: value

    return lambda: times(ONES, holder.gain()), change


def _global_function():
    def change(value):
        globals()["gain_now"] = lambda: value

    return lambda: times(ONES, gain_now()), change


def _new_key():
    gains = {}

    def change(value):
        gains.clear()
        if value != 2.0:
            gains["gain"] = value

    return lambda: times(ONES, gains.get("gain", 2.0)), change


KINDS = [
    _attribute, _global, _global_dict, _global_namespace, _closure, _slots, _class_attribute,
    _list, _length_of_list, _dict, _nested_list, _nested_dict, _enumeration, _numpy_number, _tuple,
    _replaced_object, _replaced_array, _replaced_tensor, _argument_of_an_inner_function,
    _module_parameter, _global_class, _user_module, _set, _queue, _function, _global_function,
    _new_key,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_a_changed_host_value_is_recorded_again(kind):
    function, change = kind()
    change(2.0)
    step = graph(function)
    try:
        for _ in range(3):
            assert step().tolist() == [2.0, 2.0]
        assert sum(len(kept) for kept in step._call._recordings.values()) == 1
        change(5.0)
        for _ in range(2):
            assert step().tolist() == [5.0, 5.0]
        change(2.0)
        assert step().tolist() == [2.0, 2.0]
    finally:
        change(2.0)


MEMO = {}


def test_a_global_cache_may_fill_while_recording():
    def function():
        if "gain" not in MEMO:
            MEMO["gain"] = 2.0
        return times(ONES, MEMO["gain"])

    MEMO.clear()
    step = graph(function)
    for _ in range(3):
        assert step().tolist() == [2.0, 2.0]
    MEMO["gain"] = 3.0
    assert step().tolist() == [3.0, 3.0]


def test_the_report_says_what_made_it_record_again():
    holder = Holder()
    holder.gain = 2.0
    step = graph(lambda: times(ONES, holder.gain))
    step()
    holder.gain = 3.0
    step()
    assert "recorded again: Holder.gain was 2.0 and is 3.0" in str(step.report)


def test_a_function_that_is_stale_every_time_becomes_a_stream():
    holder = Holder()
    step = graph(lambda: times(ONES, holder.gain))
    for value in range(40):
        holder.gain = float(value)
        assert step().tolist() == [float(value)] * 2
    assert "runs as strategy='stream' from now on" in str(step.report)


# --- what cannot be replayed ---------------------------------------------------------------------


def _item(x):
    return x.sum().item()


def _print(x):
    print(x)


def _numpy(x):
    return x.numpy().sum()


def _nonzero(x):
    return x.nonzero()


def _mask(x):
    return x[x > 0.0]


def _bool(x):
    return 1 if x.sum() > 0.0 else 2


def _float(x):
    return float(x[0])


def _tolist(x):
    return x.tolist()


def _warp_numpy(x):
    return float(ONES.numpy()[0]) + x


READS = {
    _item: "local_scalar_dense|item",
    _print: "print|repr|tolist|local_scalar",
    _numpy: "numpy",
    _nonzero: "nonzero",
    _mask: "nonzero|index",
    _bool: "local_scalar_dense|is_nonzero|bool",
    _float: "local_scalar_dense|float|item",
    _tolist: "tolist",
    _warp_numpy: "numpy",
}


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.strip("_"))
def test_a_host_read_is_refused_with_op_and_line(read):
    with pytest.raises(ks.NotReplayable) as caught:
        graph(read)(torch.ones(3))
    line = read.__code__.co_firstlineno + 1
    assert f"test_recording_guards.py:{line} in {read.__name__}" in str(caught.value)
    assert re.search(READS[read], str(caught.value))


def test_a_refused_function_can_still_run_otherwise():
    step = graph(_item)
    with pytest.raises(ks.NotReplayable):
        step(torch.ones(3))
    assert _item(torch.ones(3)) == 3.0
    assert ks.window(streams=2)(_item)(torch.ones(3)) == 3.0


class Counting:
    def __init__(self):
        self.count = 0
        self.x = torch.zeros(2)

    def step(self):
        self.count += 1
        self.x.add_(1.0)


def test_a_changed_number_is_refused_by_name():
    counting = Counting()
    with pytest.raises(ks.NotReplayable, match=r"changes Counting\.count from 0 to 1"):
        graph(counting.step)()


def test_a_compiled_callable_is_refused_by_name():
    def inner(x):
        return x + 1.0

    compiled = torch.compile(inner, backend="eager")
    with pytest.raises(ks.NotReplayable, match="compiled callable"):
        graph(lambda x: compiled(x))(torch.ones(2))
