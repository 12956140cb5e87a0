"""Host values in unusual places: a replay must not use an old one."""

import array
import ctypes
import dataclasses
import functools
import itertools
import os
import sys
import types
import weakref

import kernels_runtime as kernels
import numpy as np
import pytest
import torch
import warp as wp

import kscheduler as ks

X = torch.arange(4.0)


def graph(function):
    return ks.window(streams=2, strategy="graph")(function)


class Scale:
    lr = 2.0

    def __init__(self):
        self.lr = 2.0

    def __call__(self, x):
        return x * self.lr

    @classmethod
    def by_class(cls, x):
        return x * cls.lr


class Private:
    __slots__ = ("__lr",)

    def __init__(self):
        self.set(2.0)

    def set(self, value):
        self.__lr = value

    def scale(self, x):
        return x * self.__lr


def gained(x):
    return x * gained.lr


def settings():
    return types.SimpleNamespace(lr=2.0)


def setter(holder, name="lr"):
    return functools.partial(setattr, holder, name)


def item_setter(holder, key):
    return functools.partial(holder.__setitem__, key)


def _callable_object():
    scale = Scale()
    return scale, setter(scale)


def _partial():
    held = settings()
    return functools.partial(lambda held, x: x * held.lr, held), setter(held)


def _bound_method_in_closure():
    scale = Scale()
    method = scale.__call__
    return lambda x: method(x), setter(scale)


def _default():
    held = settings()

    def function(x, held=held):
        return x * held.lr

    return function, setter(held)


def _keyword_default():
    held = [2.0]

    def function(x, *, held=held):
        return x * held[0]

    return function, item_setter(held, 0)


def _weak_reference():
    scale = Scale()
    reference = weakref.ref(scale)

    def change(value):
        scale.lr = value

    return lambda x: reference()(x), change


def _attribute_of_a_function():
    gained.lr = 2.0
    return lambda x: gained(x), setter(gained)


def _class_method():
    return Scale.by_class, setter(Scale)


def _class_in_closure():
    held = Scale
    return lambda x: x * held.lr, setter(Scale)


def _module_in_attribute():
    holder = types.SimpleNamespace(module=kernels)
    return lambda x: x * holder.module.GAIN, setter(kernels, "GAIN")


def _module_imported_inside():
    def function(x):
        import kernels_runtime as inner

        return x * inner.GAIN

    return function, setter(kernels, "GAIN")


def _name_imported_inside():
    def function(x):
        from kernels_runtime import GAIN

        return x * GAIN

    return function, setter(kernels, "GAIN")


def _name_in_a_string():
    held = settings()
    return lambda x: x * getattr(held, "lr"), setter(held)  # noqa: B009


def _computed_name():
    held = settings()
    return lambda x: x * getattr(held, "".join(["l", "r"])), setter(held)


def _vars():
    held = settings()
    return lambda x: x * vars(held)["lr"], setter(held)


def _private_slot():
    held = Private()
    return lambda x: held.scale(x), held.set


def _large_list():
    held = [2.0] * 600
    return lambda x: x * held[599], item_setter(held, 599)


def _large_dict():
    held = dict.fromkeys(range(600), 2.0)
    return lambda x: x * held[599], item_setter(held, 599)


def _deep_object():
    top = inner = types.SimpleNamespace()
    for _ in range(8):
        inner.n = types.SimpleNamespace()
        inner = inner.n
    return lambda x: x * top.n.n.n.n.n.n.n.n.lr, setter(inner)


def _numpy_array():
    held = types.SimpleNamespace(values=np.ones(4))
    return lambda x: x * float(held.values[1]), item_setter(held.values, 1)


def _numpy_array_of_objects():
    held = np.array([2.0, None], dtype=object)
    return lambda x: x * held[0], item_setter(held, 0)


def _large_numpy_array():
    held = types.SimpleNamespace(values=np.ones(100_000))
    return lambda x: x * float(held.values[70_001]), item_setter(held.values, 70_001)


def _environment_variable():
    return lambda x: x * float(os.environ["KSCHEDULER_TEST"]), set_variable


def _environment_variable_by_function():
    return lambda x: x * float(os.getenv("KSCHEDULER_TEST")), set_variable


def set_variable(value):
    os.environ["KSCHEDULER_TEST"] = str(value)


def _method():
    class Gain:
        def get(self):
            return 2.0

    gain = Gain()
    return lambda x: x * gain.get(), lambda v: setattr(Gain, "get", functools.partial(float, v))


def _recorded_launch():
    array = wp.zeros(4, dtype=float, device="cpu")
    command = wp.launch(
        kernels.fill, dim=4, inputs=[array, 2.0], device="cpu", record_cmd=True, record_tape=False
    )

    def function(x):
        command.launch()
        return x * wp.to_torch(array)

    return function, lambda value: command.set_param_at_index(1, value)


def _dimension_of_a_recorded_launch():
    array = wp.zeros(4, dtype=float, device="cpu")
    command = wp.launch(
        kernels.fill, dim=4, inputs=[array, 2.0], device="cpu", record_cmd=True, record_tape=False
    )

    def function(x):
        array.zero_()
        command.launch()
        return x * wp.to_torch(array)

    return function, lambda value: command.set_dim(4 if value == 2.0 else 2)


def _default_of_getattr():
    held = types.SimpleNamespace()

    def change(value):
        vars(held).pop("lr", None)
        if value != 2.0:
            held.lr = value

    return lambda x: x * getattr(held, "lr", 2.0), change


def _hasattr():
    held = types.SimpleNamespace()

    def change(value):
        vars(held).pop("lr", None)
        if value != 2.0:
            held.lr = value

    return lambda x: x * (held.lr if hasattr(held, "lr") else 2.0), change


def _hidden_method():
    scale = Scale()

    def change(value):
        vars(scale).pop("by_class", None)
        if value != 2.0:
            scale.by_class = lambda x: x * value

    return lambda x: scale.by_class(x), change


def _hidden_forward():
    module = torch.nn.Identity()

    def change(value):
        vars(module).pop("forward", None)
        if value != 2.0:
            module.forward = lambda x: x * value

    return lambda x: module(x), change


def _computed_tensor():
    held = types.SimpleNamespace(lr0=torch.ones(4))
    return (
        lambda x: x * getattr(held, f"lr{0}"),
        lambda value: setattr(held, "lr0", torch.full((4,), value)),
    )


def _computed_array():
    held = types.SimpleNamespace(lr0=np.ones(4))
    return lambda x: x * float(getattr(held, f"lr{0}")[0]), item_setter(held.lr0, 0)


@dataclasses.dataclass
class Options:
    gain: float = 2.0
    shift: float = 1.0


def _as_dict():
    held = Options()
    return lambda x: x * dataclasses.asdict(held)["shift"], setter(held, "shift")


def _as_tuple():
    held = Options()
    return lambda x: x * sum(dataclasses.astuple(held)), setter(held, "gain")


def _generated_equality():
    held, other = Options(), Options(shift=2.0)
    return lambda x: x * (2.0 if held == other else 3.0), setter(held, "shift")


def _order_of_a_dict():
    held = {"a": 1.0, "b": 2.0}

    def function(x):
        for value in held.values():
            x = x * 2 + value
        return x

    def change(value):
        first = "a" if value == 2.0 else "b"
        entries = dict(sorted(held.items(), key=lambda item: item[0] != first))
        if tuple(entries) != tuple(held):
            held.clear()
            held.update(entries)

    return function, change


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Listed(list):
    lr = 2.0


def _attribute_dict():
    held = Attributes(lr=2.0)
    return lambda x: x * held.lr, item_setter(held, "lr")


def _attribute_of_a_dict():
    held = Attributes()
    return lambda x: x * held.lr, setter(held)


def _class_attribute_of_a_list():
    held = Listed()
    return lambda x: x * held.lr, setter(Listed)


def _attribute_of_an_array():
    held = types.SimpleNamespace(array=wp.zeros(4, dtype=float, device="cpu"))
    return lambda x: x * held.array.lr, setter(held.array)


def _code_from_a_string():
    space = {"LR": 2.0}
    exec("def function(x): return x * LR", space)
    return space["function"], item_setter(space, "LR")


def _c_value():
    held = ctypes.c_float(2.0)
    return lambda x: x * held.value, setter(held, "value")


def _byte_array():
    held = bytearray([2])

    def change(value):
        held[0] = int(value)

    return lambda x: x * float(held[0]), change


def _array_module():
    held = array.array("d", [2.0])
    return lambda x: x * held[0], item_setter(held, 0)


def _vector():
    held = types.SimpleNamespace(gains=wp.vec3(1.0, 1.0, 2.0))
    return lambda x: x * float(held.gains[2]), item_setter(held.gains, 2)


def _attribute_of_a_tensor():
    x = torch.ones(4)
    return lambda y: y * x.lr, setter(x)


def _layer_norm():
    module = torch.nn.LayerNorm(4, elementwise_affine=False)
    return lambda x: module(x), setter(module, "eps")


def _decorated_module():
    module = torch.nn.Sequential(torch.nn.LayerNorm(4, elementwise_affine=False))
    return module, setter(module[0], "eps")


def _nested_module():
    norm = module = torch.nn.LayerNorm(4, elementwise_affine=False)
    for _ in range(5):
        module = torch.nn.Sequential(module)
    return lambda x: module(x), setter(norm, "eps")


def _forward_hook():
    module = torch.nn.Identity()
    handles = []

    def change(value):
        for handle in handles:
            handle.remove()
        handles[:] = [module.register_forward_hook(lambda m, i, o: o * value)]

    return lambda x: module(x), change


def _mode_of_a_module():
    module = torch.nn.Sequential(torch.nn.Threshold(0.5, 9.0), torch.nn.Dropout(1.0))
    return lambda x: module(x), lambda value: module.train(value == 5.0)


KINDS = [value for name, value in list(globals().items())
         if name.startswith("_") and isinstance(value, types.FunctionType)]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_a_host_value_in_an_unusual_place_is_recorded_again(kind):
    function, change = kind()
    try:
        change(2.0)
        step = graph(function)
        with torch.no_grad():
            for value in (2.0, 2.0, 2.0, 5.0, 5.0, 2.0):
                change(value)
                assert torch.equal(step(X), function(X))
            change(2.0)
            assert not torch.equal(function(X), _after(change, 5.0, function))
    finally:
        change(2.0)


def _after(change, value, function):
    change(value)
    return function(X)


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not _forward_hook],
                         ids=lambda kind: kind.__name__.strip("_"))  # fmt: skip
def test_an_unchanged_one_is_recorded_once(kind):
    function, change = kind()
    change(2.0)
    step = graph(function)
    with torch.no_grad():
        step(X)
        first = step._call.last
        step(X)
    assert first is not None
    assert step._call.last is first


PAIRS = {
    "number in a tuple": (lambda x, t: x * t[0], (2,), (2.0,)),
    "zero in a tuple": (lambda x, t: x * t[0], (0.0,), (-0.0,)),
    "zero of numpy": (lambda x, t: x * float(t), np.float32(0.0), np.float32(-0.0)),
    "key of a dict": (
        lambda x, t: x * (2 if type(next(iter(t))) is bool else 3),
        {1: 0},
        {True: 0},
    ),
    "vector": (lambda x, t: x * t[0], wp.vec2(1.0, 2.0), wp.vec2(3.0, 2.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_arguments_that_compare_equal_are_told_apart(name):
    function, first, second = PAIRS[name]
    step = graph(function)
    x = torch.arange(1, 5)
    for argument in (first, second, first, second):
        got, expected = step(x, argument), function(x, argument)
        assert got.dtype == expected.dtype
        assert torch.equal(torch.signbit(got), torch.signbit(expected))
        assert torch.equal(got, expected)


def test_a_vector_changed_in_place_is_seen_as_an_argument():
    gains = wp.vec2(1.0, 2.0)
    step = graph(lambda x, gains: x * gains[0])
    for value in (1.0, 1.0, 4.0):
        gains[0] = value
        assert torch.equal(step(X, gains), X * value)


def test_an_attribute_of_a_tensor_argument_is_seen():
    x = torch.ones(3)
    step = graph(lambda x: x * x.gain)
    for value in (2.0, 2.0, 5.0):
        x.gain = value
        assert step(x).tolist() == [value] * 3


@wp.struct
class Settings:
    k: float
    a: wp.array(dtype=float)


@pytest.mark.parametrize("as_argument", [True, False])
def test_fields_of_a_struct_are_seen(as_argument):
    held = Settings()
    held.k = 2.0
    held.a = wp.ones(4, dtype=float, device="cpu")
    other = wp.full(4, 3.0, dtype=float, device="cpu")
    y = wp.zeros(4, dtype=float, device="cpu")

    def run(given):
        inputs = [given.a, given.k, y]
        wp.launch(kernels.scale, dim=4, inputs=inputs, device="cpu")

    step = graph(run if as_argument else lambda: run(held))
    args = (held,) if as_argument else ()
    for value, values in ((2.0, held.a), (2.0, held.a), (5.0, held.a), (5.0, other)):
        held.k, held.a = value, values
        step(*args)
        assert y.numpy().tolist() == [value * (3.0 if values is other else 1.0)] * 4


def test_the_rate_and_the_gradient_of_an_optimizer_are_seen():
    results = []
    for decorate in (lambda function: function, graph):
        p = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([p], lr=0.1)
        step = decorate(lambda optimizer=optimizer: optimizer.step())
        for i in range(5):
            p.grad = torch.full((4,), 1.0 + i // 2)
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + i // 3)
            step()
        results.append(p.detach().clone())
    assert torch.equal(*results)


def test_a_new_gradient_array_is_seen():
    x = wp.ones(4, dtype=float, device="cpu", requires_grad=True)
    y = wp.zeros(4, dtype=float, device="cpu")
    step = graph(lambda x: wp.launch(kernels.scale, 4, [x.grad, 2.0, y], device="cpu"))
    for value in (1.0, 1.0, 3.0):
        if value == 3.0:
            x.grad = wp.zeros(4, dtype=float, device="cpu")
        x.grad.fill_(value)
        step(x)
        assert y.numpy().tolist() == [2.0 * value] * 4


def test_a_container_too_large_to_watch_is_refused():
    held = [1.0] * 70_000
    with pytest.raises(ks.NotReplayable, match="too large to watch"):
        graph(lambda x: x * held[3])(X)


def test_a_module_loaded_by_the_function_itself_is_guarded(tmp_path, monkeypatch):
    (tmp_path / "loaded_inside.py").write_text("lr = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def function(x):
        import loaded_inside

        return x * loaded_inside.lr

    step = graph(function)
    try:
        assert torch.equal(step(X), X * 2.0)
        sys.modules["loaded_inside"].lr = 5.0
        assert torch.equal(step(X), X * 5.0)
    finally:
        sys.modules.pop("loaded_inside", None)


# --- what a replay would not do again ------------------------------------------------------------


LOG = []


def _counter():
    counter = itertools.count()
    return lambda x: x * next(counter)


def _iterator():
    values = iter([1.0, 2.0, 3.0])
    return lambda x: x * next(values)


def _generator():
    values = (float(i) for i in range(100))
    return lambda x: x * next(values)


def _iterator_in_attribute():
    holder = types.SimpleNamespace(values=iter([1.0, 2.0]))
    return lambda x: x * next(holder.values)


@pytest.mark.parametrize("make", [_counter, _iterator, _generator, _iterator_in_attribute])
def test_an_iterator_from_outside_is_refused(make):
    with pytest.raises(ks.NotReplayable, match="can advance a"):
        graph(make())(X)


def test_iterators_of_the_function_itself_are_its_own():
    step = graph(lambda x: x * sum(itertools.islice(itertools.count(), 4)))
    for count in range(3):
        assert torch.equal(step(X + count), (X + count) * 6)


def test_a_list_that_grows_with_each_call_is_refused():
    def function(x):
        LOG.append(1)
        return x + 1

    LOG.clear()
    step = graph(function)
    with pytest.raises(ks.NotReplayable, match=r"changes list\.length"):
        for _ in range(8):
            step(X)
    assert len(LOG) < 8


def test_a_numpy_array_that_is_too_large_to_compare_is_refused():
    held = types.SimpleNamespace(values=np.ones(3_000_000))
    with pytest.raises(ks.NotReplayable, match="too large"):
        graph(lambda x: x * float(held.values[0]))(X)


# --- results -------------------------------------------------------------------------------------


def test_a_result_on_a_new_warp_array_is_that_of_its_own_call():
    def function(x):
        made = wp.zeros(4, dtype=float, device="cpu")
        both = wp.to_torch(made)
        both += x
        return both, both[1:3]

    step = graph(function)
    results = [step(X + count) for count in range(5)]
    for count, (whole, part) in enumerate(results):
        assert torch.equal(whole, X + count)
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert torch.equal(part, whole[1:3])


def test_a_view_of_memory_from_outside_stays_one():
    array = wp.zeros(4, dtype=float, device="cpu")

    def function(x):
        view = wp.to_torch(array)
        view += x
        return view

    step = graph(function)
    for _ in range(4):
        result = step(X)
    assert result.data_ptr() == array.ptr
    assert torch.equal(result, X * 4)


def test_a_container_from_outside_is_returned_as_itself():
    holder = types.SimpleNamespace(buffers=[torch.zeros(4)])

    def function(x):
        holder.buffers[0].add_(x)
        return holder.buffers

    step = graph(function)
    for _ in range(4):
        assert step(X) is holder.buffers
    assert torch.equal(holder.buffers[0], X * 4)


def test_a_container_argument_is_that_of_its_own_call():
    step = graph(lambda batch: (batch["x"].mul_(2.0), batch)[1])
    for count in range(4):
        batch = {"x": X + count}
        assert torch.equal(step(batch)["x"], (X + count) * 2)
        assert torch.equal(batch["x"], (X + count) * 2)
