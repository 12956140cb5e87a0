"""Host accesses that the dispatcher never shows: each reports, and nothing stays behind."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.utils.dlpack
import warp as wp
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kscheduler.access import READ, READ_WRITE
from kscheduler.intercept import host_reads
from kscheduler.intercept.host_reads import HostReads, unreported
from kscheduler.intercept.torch_access import is_host_read, storage_access, tensor_access
from kscheduler.intercept.torch_ops import TorchInterceptor


class Reports:
    """A sink that remembers (what, access, exported)."""

    def __init__(self) -> None:
        self.all: list[tuple] = []

    def host_read(self, access, what, exported=False) -> None:
        self.all.append((what, access, exported))

    @property
    def names(self) -> list[str]:
        return [what for what, _, _ in self.all]


REPLACED = [(holder, name) for holder, name, _ in host_reads._replacements()]


def attributes() -> list:
    return [vars(holder).get(name) for holder, name in REPLACED]


@pytest.fixture(autouse=True)
def nothing_stays():
    before = attributes()
    yield
    assert attributes() == before


@pytest.fixture
def reports() -> Reports:
    return Reports()


def tensor() -> torch.Tensor:
    return torch.arange(8.0).view(2, 4)[:, 1:3]


# --- one report per entry point ------------------------------------------------------------------

READS = {
    "Tensor.__repr__": [str, repr, lambda x: f"{x}", lambda x: torch.nn.Parameter(x).__repr__()],
    "Tensor.tolist": [lambda x: x.tolist()],
    "Tensor.__reduce_ex__": [
        pickle.dumps,
        lambda x: torch.save(x, io.BytesIO()),
        copy.copy,
    ],
    "Tensor.__deepcopy__": [copy.deepcopy],
    "Tensor.item": [lambda x: x[0, 0].item(), lambda x: f"{x[0, 0]:.2f}"],
    "Tensor.__float__": [lambda x: float(x[0, 0])],
    "Tensor.__int__": [lambda x: int(x[0, 0])],
    "Tensor.__bool__": [lambda x: bool(x[0, 0]), lambda x: 1 if x[0, 0] else 2],
    "Tensor.__index__": [lambda x: range(x[0, 0].long())],
    "Tensor.__complex__": [lambda x: complex(x[0, 0])],
}
EXPORTS = {
    "Tensor.numpy": [lambda x: x.numpy()],
    "Tensor.__array__": [np.asarray, np.array, lambda x: x.__array__()],
    "Tensor.data_ptr": [lambda x: x.data_ptr()],
    "Tensor.const_data_ptr": [lambda x: x.const_data_ptr()],
    "Tensor.__dlpack__": [np.from_dlpack, lambda x: x.__dlpack__()],
    "Tensor.storage": [lambda x: x.storage()],
    "Tensor.untyped_storage": [lambda x: x.untyped_storage(), lambda x: x._typed_storage()],
    "to_dlpack": [torch.utils.dlpack.to_dlpack, torch.to_dlpack, torch._C._to_dlpack],
    "Tensor.share_memory_": [lambda x: x.clone().share_memory_()],
}


def cases(table: dict) -> list:
    return [
        pytest.param(name, function, id=f"{name}-{number}")
        for name, functions in table.items()
        for number, function in enumerate(functions)
    ]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(("name", "function"), cases(READS))
def test_reads_are_reported_once_with_the_bytes_of_the_view(reports, name, function):
    x = tensor()
    with HostReads(reports):
        function(x)
    ((what, access, exported),) = set(reports.all)
    assert what == name
    assert not exported
    expected = {tensor_access(y, READ) for y in (x, x[0, 0])}
    assert access in expected or name == "Tensor.__index__"
    assert access.mode == READ


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:.*to_dlpack")
@pytest.mark.parametrize(("name", "function"), cases(EXPORTS))
def test_exports_are_reported_once_with_the_whole_storage(reports, name, function):
    x = tensor()
    # Looked up anew, since the table was made before the attributes were replaced.
    if name == "to_dlpack":
        holder = {"to_dlpack": torch.utils.dlpack, "_to_dlpack": torch._C}[function.__name__]
        with HostReads(reports):
            getattr(holder, function.__name__)(x)
        name = function.__name__
    else:
        with HostReads(reports):
            function(x)
    ((what, access, exported),) = set(reports.all)
    assert what == name
    assert exported
    assert access.mode == READ_WRITE
    if name != "Tensor.share_memory_":
        assert access == storage_access(x, READ_WRITE)


def test_updates_by_a_users_function(reports):
    x, y = tensor(), tensor()
    with HostReads(reports):
        x.apply_(lambda value: value + 1)
        x.map_(y, lambda a, b: a + b)
        x.map2_(y, y, lambda a, b, c: a)
    assert set(reports.names) == {"Tensor.apply_", "Tensor.map_", "Tensor.map2_"}
    assert ("Tensor.apply_", tensor_access(x, READ_WRITE), False) in reports.all
    assert ("Tensor.map_", tensor_access(y, READ), False) in reports.all


def test_scalars_read_while_a_tensor_is_built(reports):
    # Here PyTorch reads 0-d tensors with the dispatch modes switched off.
    a, b = torch.tensor(2.0), torch.tensor(3)
    with HostReads(reports):
        for build in (
            lambda: torch.tensor([a, a]),
            lambda: torch.as_tensor([a]),
            lambda: torch.asarray([a]),
            lambda: a.new_tensor([a]),
            lambda: torch.FloatTensor([a]),
            lambda: torch.tensor([[a], [a]]),
            lambda: torch.tensor([b]),
        ):
            reports.all.clear()
            build()
            assert reports.all
            assert {access for _, access, _ in reports.all} <= {
                tensor_access(a, READ),
                tensor_access(b, READ),
            }


def test_indices_read_by_composite_functions(reports):
    x, where = torch.arange(6.0), torch.tensor([2, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 2, 1), torch.tensor([2, 1]), batch_first=True
    )
    gru = torch.nn.GRU(1, 1)
    with HostReads(reports):
        torch.tensor_split(x, where)
        x.tensor_split(where)
        assert reports.all.count(("tensor_split", tensor_access(where, READ), False)) == 1
        assert ("Tensor.tensor_split", tensor_access(where, READ), False) in reports.all
        reports.all.clear()
        gru(packed)
    assert ("gru", tensor_access(packed.batch_sizes, READ), False) in reports.all


def test_memory_exchanged_behind_the_dispatcher(reports):
    x, y = torch.ones(3), torch.zeros(3)
    before = storage_access(x, READ_WRITE)
    with HostReads(reports):
        assert x.data.tolist() == [1, 1, 1]
        reports.all.clear()
        x.data = y
        torch.utils.swap_tensors(torch.ones(2), torch.ones(2))
    assert reports.all[0] == ("Tensor.data =", before, False)
    assert reports.names.count("swap_tensors") == 2
    assert x.data_ptr() == y.data_ptr()


def test_memory_that_the_host_holds_from_the_start(reports):
    array = np.zeros(3, dtype=np.float32)
    with HostReads(reports):
        made = [torch.from_numpy(array), torch.as_tensor(array), torch.asarray(array)]
        buffer = torch.frombuffer(bytearray(12), dtype=torch.float32)
        torch.as_tensor([1.0, 2.0])
        torch.as_tensor(made[0])
    shared = storage_access(made[0], READ_WRITE)
    assert reports.all == [
        ("torch.from_numpy", shared, True),
        ("torch.as_tensor", shared, True),
        ("torch.asarray", shared, True),
        ("torch.frombuffer", storage_access(buffer, READ_WRITE), True),
    ]


def test_sparse_tensors_have_no_range(reports):
    with HostReads(reports):
        str(torch.eye(2).to_sparse())
    assert reports.all[0][:2] == ("Tensor.__repr__", None)


def test_a_refused_export_is_not_reported(reports):
    with HostReads(reports):
        assert not hasattr(torch.ones(2), "__cuda_array_interface__")
    assert reports.all == []


def test_the_c_exchange_table_is_hidden(reports):
    had_one = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    with HostReads(reports):
        assert not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert hasattr(torch.Tensor, "__dlpack_c_exchange_api__") == had_one


# --- Warp ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def array():
    return wp.array(np.arange(6, dtype=np.float32), device="cpu")


def test_warp_arrays(reports, array):
    span = (array.ptr, array.ptr + 24)
    for name, function, exported in (
        ("wp.array.numpy", lambda: array.numpy(), True),
        ("wp.array.list", lambda: array.list(), False),
        ("wp.array.__str__", lambda: str(array), False),
        ("wp.array.__array_interface__", lambda: np.asarray(array), True),
        ("wp.array.__dlpack__", lambda: np.from_dlpack(array), True),
        ("wp.array.cptr", lambda: array.cptr(), True),
        ("to_dlpack", lambda: wp.to_dlpack(array), True),
    ):
        reports.all.clear()
        with HostReads(reports):
            function()
        ((what, access, was_exported),) = set(reports.all)
        assert (what, was_exported) == (name, exported)
        assert (access.start, access.end) == span


def test_wrapping_is_not_reading(reports, array):
    x = torch.ones(4)
    with HostReads(reports):
        wrapped = wp.from_torch(x)
        unwrapped = wp.to_torch(array)
        aliases = torch.from_dlpack(x), torch.from_dlpack(array), wp.from_dlpack(x)
    assert reports.all == []
    assert wrapped.ptr == x.data_ptr()
    assert unwrapped.data_ptr() == array.ptr
    assert aliases[0].data_ptr() == x.data_ptr()


# --- scope ---------------------------------------------------------------------------------------


def test_other_threads_pass_straight_through(reports):
    seen = []

    def work():
        x = torch.ones(2)
        seen.append((x.tolist(), str(x), x.numpy().sum(), float(x[0]), bool(x.data_ptr())))

    with HostReads(reports):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [([1, 1], "tensor([1., 1.])", 2, 1, True)]
    assert reports.all == []


def test_nested_ones_report_to_the_inner_sink(reports):
    inner = Reports()
    x = torch.ones(2)
    with HostReads(reports):
        with HostReads(inner):
            x.tolist()
        with unreported():
            x.tolist()
        x.numpy()
    assert inner.names == ["Tensor.tolist"]
    assert reports.names == ["Tensor.numpy"]


def test_everything_is_put_back_when_the_body_or_the_sink_raises():
    class RefusedError(Exception):
        pass

    class Refusing:
        def host_read(self, access, what, exported=False):
            raise RefusedError

    before = attributes()
    with pytest.raises(RefusedError), HostReads(Refusing()):
        torch.ones(2).tolist()
    assert attributes() == before


def test_names_and_documentation_stay(reports):
    before = (torch.Tensor.tolist.__name__, torch.Tensor.tolist.__doc__)
    with HostReads(reports):
        assert (torch.Tensor.tolist.__name__, torch.Tensor.tolist.__doc__) == before


def test_results_are_those_of_the_originals(reports):
    x = torch.arange(4.0)
    data = pickle.dumps(x)
    with HostReads(reports):
        assert str(x) == "tensor([0., 1., 2., 3.])"
        assert torch.equal(pickle.loads(data), x)
        assert torch.equal(copy.deepcopy(x), x)
        y = x.numpy()
        y[0] = 7
    assert x[0] == 7


# --- together with the interceptor ---------------------------------------------------------------


class Everything(Reports):
    """A sink for ops and host reads that keeps the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self.fences: list[str] = []
        self.order: list[str] = []

    def torch_op(self, func, args, kwargs):
        self.order.append(func.name())
        return func(*args, **kwargs)

    def wants_ops(self) -> bool:
        return True

    def fence(self, reason: str) -> None:
        self.fences.append(reason)

    def host_read(self, access, what, exported=False) -> None:
        super().host_read(access, what, exported)
        self.order.append(what)


def test_printing_waits_for_its_tensor_only():
    sink = Everything()
    x = torch.ones(2)
    with HostReads(sink), TorchInterceptor(sink) as interceptor:
        interceptor.arm()
        str(x)
        x + 1
    assert sink.fences == []
    assert sink.order == ["Tensor.__repr__", "aten::add.Tensor"]


# Every way to the host that is known: the function mode below shows those that a dispatch mode
# misses, and each of these has to be reported by one or the other.
WAYS = [
    *(function for functions in READS.values() for function in functions),
    *(f for name, functions in EXPORTS.items() for f in functions if name != "to_dlpack"),
    lambda x: torch.utils.dlpack.to_dlpack(x),
    lambda x: x.apply_(lambda value: value),
    lambda x: x.map_(x, lambda a, b: a),
    lambda x: torch.tensor([x[0, 0], x[0, 0]]),
    lambda x: x.flatten().tensor_split(torch.tensor([1, 2])),
    lambda x: setattr(x, "data", torch.zeros(2, 2)),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x.flatten()[x[0, 0].long() :],
    lambda x: torch.equal(x, x),
    lambda x: torch.zeros(x[0, 0].long()),
    lambda x: next(iter(x[0])).item(),
    lambda x: 3.0 in x,
]


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, is_host_read(func, args)))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(WAYS)))
def test_no_way_to_the_host_is_missed(number):
    way = WAYS[number]
    dispatches, functions, sink = Dispatches(), Functions(), Everything()
    with dispatches:
        way(tensor())
    shown = any(is_read for _, is_read in dispatches.seen)
    with functions:
        way(tensor())
    with HostReads(sink):
        way(tensor())
    assert shown or sink.all, f"reported by nobody, though torch called {functions.seen}"


# Methods that need no data: shapes, flags, and things of Python.
REFUSALS = (TypeError, RuntimeError, ValueError, LookupError, AttributeError, AssertionError)
WITHOUT_DATA = {
    *("__len__", "__pos__", "_clear_non_serializable_cached_data", "_fix_weakref", "_is_view"),
    *("_is_zerotensor", "_rev_view_func_unsafe", "_use_count", "_view_func", "_view_func_unsafe"),
    *("dim", "dim_order", "element_size", "get_device", "ndimension", "nelement", "numel", "size"),
    *("is_complex", "is_conj", "is_contiguous", "is_distributed", "is_floating_point"),
    *("is_inference", "is_neg", "is_signed", "requires_grad_", "storage_offset", "stride"),
    # Those that give the tensor itself, as this one has the wanted form already.
    *("conj", "conj_physical", "contiguous", "cpu", "detach_", "flatten", "float", "positive"),
    *("resolve_conj", "resolve_neg", "to", "to_dense", "type", "type_as"),
}


@pytest.mark.filterwarnings("ignore")
def test_every_tensor_method_dispatches_is_reported_or_needs_no_data():
    silent = set()
    for name in sorted(set(dir(torch.Tensor)) - set(dir(object))):
        if not callable(getattr(torch.Tensor, name)):
            continue
        for arguments in ((), (torch.ones(4),), (0,), (2,)):
            dispatches, sink = Dispatches(), Everything()
            x = torch.arange(4.0)
            try:
                with HostReads(sink), dispatches:
                    result = getattr(x, name)(*arguments)
            except REFUSALS:  # not these arguments
                continue
            if not dispatches.seen and not sink.all and result is not NotImplemented:
                silent.add(name)
    assert silent <= WITHOUT_DATA, sorted(silent - WITHOUT_DATA)
