"""What a torch op touches: schema, corrections, ranges, and ops that tell the host something."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kscheduler.access import READ, READ_WRITE, WRITE, Access, overlaps
from kscheduler.intercept import torch_access
from kscheduler.intercept.torch_access import (
    DEFAULT_GENERATOR,
    is_host_read,
    is_random,
    is_view,
    op_accesses,
    storage_access,
    tensor_access,
    trust_schema,
)

aten = torch.ops.aten


def span(tensor: torch.Tensor, mode: int) -> Access:
    """A contiguous tensor's bytes, computed apart from the code under test."""
    return Access(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.itemsize, mode)


def touched(tensor: torch.Tensor) -> set[int]:
    """Every byte of a small view, element by element."""
    base, item = tensor.untyped_storage().data_ptr(), tensor.itemsize
    if tensor.numel() == 0:
        return set()
    offsets = [tensor.storage_offset()]
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = [offset + step * stride for offset in offsets for step in range(size)]
    return {base + offset * item + byte for offset in offsets for byte in range(item)}


def bytes_of(access: Access) -> set[int]:
    if access.pitch == 0:
        return set(range(access.start, access.end))
    return {
        byte
        for start in range(access.start, access.end, access.pitch)
        for byte in range(start, min(start + access.width, access.end))
    }


# --- ranges of tensors ---------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=3),
    strides=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    offset=st.integers(0, 5),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
def test_tensor_access_covers_every_byte(shape, strides, offset, dtype):
    base = torch.zeros(200, dtype=dtype)
    tensor = base.as_strided(shape, strides[: len(shape)], offset)
    access = tensor_access(tensor, READ)
    assert touched(tensor) <= bytes_of(access)
    assert access.start >= base.data_ptr() or access.start == access.end
    if touched(tensor):
        assert access.end == max(touched(tensor)) + 1
        assert access.start == min(touched(tensor))


def test_columns_are_disjoint_and_rows_too():
    a = torch.zeros(8, 6)
    left, right, low, high = a[:, 0:3], a[:, 3:6], a[:4], a[4:]
    assert not overlaps(tensor_access(left, WRITE), tensor_access(right, WRITE))
    assert not overlaps(tensor_access(low, WRITE), tensor_access(high, WRITE))
    assert overlaps(tensor_access(left, WRITE), tensor_access(a, READ))


def test_expanded_tensor_is_one_element():
    b = torch.ones(1).expand(4, 4)
    assert tensor_access(b, READ) == span(torch.as_strided(b, (1,), (1,)), READ)


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.zeros(8)[3:3], torch.zeros(0, 3)])
def test_empty_tensors_touch_nothing(tensor):
    access = tensor_access(tensor, WRITE)
    assert access.start == access.end
    assert op_accesses(aten.add_.Tensor, (tensor, 1)) == []


def test_a_view_never_reaches_past_its_storage():
    base = torch.zeros(2, 6)
    access = tensor_access(base[:, 3:], WRITE)
    assert (access.start - base.data_ptr(), access.end - base.data_ptr()) == (12, 48)
    whole = storage_access(base[:, 3:], READ)
    assert (whole.start, whole.end) == (base.data_ptr(), base.data_ptr() + 48)


# --- modes by schema -----------------------------------------------------------------------------

x, y, z = torch.ones(4), torch.ones(4), torch.ones(4)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "expected"),
    [
        (aten.add.Tensor, (x, y), {}, [span(x, READ), span(y, READ)]),
        (aten.add.Tensor, (x, 2), {}, [span(x, READ)]),
        (aten.add_.Tensor, (x, y), {}, [span(x, READ_WRITE), span(y, READ)]),
        (aten.add.out, (x, y), {"out": z}, [span(x, READ), span(y, READ), span(z, READ_WRITE)]),
        (aten.cat.default, ([x, y], 0), {}, [span(x, READ), span(y, READ)]),
        (aten._foreach_add_.List, ([x, y], [z, z]), {}, [
            span(x, READ_WRITE), span(y, READ_WRITE), span(z, READ), span(z, READ)]),
        (aten.clamp.Tensor, (x, None, y), {}, [span(x, READ), span(y, READ)]),
        (aten.clamp.Tensor, (x,), {"max": y}, [span(x, READ), span(y, READ)]),
        (aten.index.Tensor, (x, [None, y.long()]), {}, None),
        (aten.zeros.default, ([3],), {}, []),
        (aten.copy_.default, (x, y), {}, [span(x, READ_WRITE), span(y, READ)]),
        (aten.sort.values, (x,), {"values": y, "indices": z}, [
            span(x, READ), span(y, READ_WRITE), span(z, READ_WRITE)]),
    ],
)  # fmt: skip
def test_modes_follow_the_schema(func, args, kwargs, expected):
    if expected is None:
        index = args[1][1]
        expected = [span(args[0], READ), span(index, READ)]
    assert op_accesses(func, args, kwargs) == expected


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.view.default, (x, [2, 2])),
        (aten.slice.Tensor, (x, 0, 1, 2)),
        (aten.detach.default, (x,)),
        (aten.as_strided.default, (x, [2], [2])),
        (aten.split.Tensor, (x, 2)),
        (aten._unsafe_view.default, (x, [2, 2])),
        (aten.expand.default, (x, [3, 4])),
        (aten.is_pinned.default, (x,)),
        (aten.unbind.int, (x,)),
        (aten.narrow.default, (x, 0, 0, 2)),
    ],
)
def test_views_and_questions_touch_nothing(func, args):
    assert is_view(func)
    assert op_accesses(func, args) == []


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.reshape.default, (x.expand(2, 4), [8])),
        (aten.contiguous.default, (x[::2],)),
        (aten.to.dtype, (x, torch.float64)),
        (aten.clone.default, (x,)),
    ],
)
def test_ops_that_may_copy_read(func, args):
    assert not is_view(func)
    assert op_accesses(func, args) == [tensor_access(args[0], READ)]


@pytest.mark.parametrize("func", [aten.index_put_.default, aten._index_put_impl_.default])
def test_scatter_takes_the_whole_span(func):
    base = torch.zeros(4, 6)
    target = base[:, 0:3]
    first = op_accesses(func, (target, [torch.tensor([0])], torch.ones(3)))[0]
    assert first == Access(first.start, base.data_ptr() + 4 * 84 // 4, READ_WRITE)
    assert first.pitch == 0


@pytest.mark.parametrize("func", [aten.resize_.default, aten.set_.source_Tensor])
def test_ops_that_exchange_memory_take_the_whole_storage(func):
    base = torch.zeros(8)
    args = (base[:2], [1]) if func is aten.resize_.default else (base[:2], torch.zeros(1))
    assert storage_access(base, READ_WRITE) in op_accesses(func, args)


# --- known liars and unknown ops -----------------------------------------------------------------


def test_batch_norm_writes_its_statistics_when_training():
    mean, var = torch.zeros(3), torch.ones(3)
    args = (torch.ones(2, 3), None, None, mean, var)
    training = op_accesses(aten.native_batch_norm.default, (*args, True, 0.1, 1e-5))
    assert training[1:] == [span(mean, READ_WRITE), span(var, READ_WRITE)]
    inference = op_accesses(aten.native_batch_norm.default, (*args, False, 0.1, 1e-5))
    assert inference[1:] == [span(mean, READ), span(var, READ)]


def changed_tensors(func, args, kwargs) -> list[torch.Tensor]:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    func(*args, **kwargs)
    return [t for t, b in zip(tensors, before, strict=True) if not torch.equal(t, b)]


NORMS = [
    (aten.native_batch_norm.default, (True, 0.1, 1e-5)),
    (aten.native_batch_norm.default, (False, 0.1, 1e-5)),
    (aten._native_batch_norm_legit.default, (True, 0.1, 1e-5)),
    (aten._batch_norm_with_update.default, (0.1, 1e-5)),
    (aten._batch_norm_no_update.default, (0.1, 1e-5)),
    (aten._native_batch_norm_legit_functional.default, (True, 0.1, 1e-5)),
    (aten.batch_norm.default, (True, 0.1, 1e-5, False)),
    (aten._batch_norm_impl_index.default, (True, 0.1, 1e-5, False)),
    (aten.instance_norm.default, (True, 0.1, 1e-5, False)),
]


@pytest.mark.parametrize(("func", "rest"), NORMS)
def test_every_norm_writes_only_what_is_told(func, rest):
    """Against the bytes that really change, whatever the schema says."""
    args = (torch.randn(4, 3, 5), torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3))
    args = (*args, *rest)
    told = {access.start for access in op_accesses(func, args, {}) if access.mode & WRITE}
    for tensor in changed_tensors(func, args, {}):
        assert tensor.data_ptr() in told


def test_update_stats_are_told():
    mean, var = torch.zeros(3), torch.ones(3)
    func, args = aten.batch_norm_update_stats.default, (torch.randn(4, 3), mean, var, 0.1)
    told = {access.start for access in op_accesses(func, args) if access.mode & WRITE}
    changed = changed_tensors(func, args, {})
    assert len(changed) == 2
    assert {tensor.data_ptr() for tensor in changed} <= told


@pytest.fixture(scope="module")
def custom_op():
    with torch.library._scoped_library("kscheduler_access_test", "FRAGMENT") as library:
        library.define("silent(Tensor x, Tensor[] more, Tensor? no=None, *, float f=1) -> ()")
        library.define("declared(Tensor x, Tensor(a!) y) -> ()")
        yield torch.ops.kscheduler_access_test


def test_a_custom_op_writes_whole_storages(custom_op):
    base = torch.zeros(8)
    accesses = op_accesses(custom_op.silent.default, (base[2:4], [x, y]), {"f": 2.0})
    assert accesses == [
        storage_access(base, READ_WRITE), span(x, READ_WRITE), span(y, READ_WRITE)
    ]  # fmt: skip


def test_a_custom_op_without_memory_may_touch_anything(custom_op):
    assert op_accesses(custom_op.silent.default, (torch.empty(0), [])) is None


def test_a_declared_custom_op_is_believed(custom_op):
    func = custom_op.declared.default
    assert op_accesses(func, (x, y)) == [span(x, READ_WRITE), span(y, READ_WRITE)]
    trust_schema("kscheduler_access_test::declared")
    assert op_accesses(func, (x, y)) == [span(x, READ), span(y, READ_WRITE)]


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


class Plain(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        lambda: Wrapper(torch.ones(3)),
    ],
)
def test_tensors_without_plain_memory_are_unknown(make):
    tensor = make()
    assert op_accesses(aten.add.Tensor, (torch.ones(3), tensor)) is None
    assert op_accesses(aten.cat.default, ([torch.ones(3), tensor],)) is None
    with pytest.raises(RuntimeError, match="byte range"):
        tensor_access(tensor, READ)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_covered_or_unknown():
    tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    accesses = op_accesses(aten.neg.default, (tensor,))
    assert accesses is None or accesses[0].end - accesses[0].start >= 20


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert op_accesses(aten.add.Tensor, (torch.ones(3, device="meta"), 1)) == []
    with FakeTensorMode():
        assert op_accesses(aten.neg.default, (torch.ones(3),)) is None


def test_parameters_and_plain_subclasses_have_memory():
    parameter = torch.nn.Parameter(torch.ones(3))
    plain = torch.ones(3).as_subclass(Plain)
    assert op_accesses(aten.neg.default, (parameter,)) == [span(parameter, READ)]
    assert op_accesses(aten.neg.default, (plain,)) == [span(plain, READ)]


def test_higher_order_ops_are_unknown():
    assert op_accesses(torch.ops.higher_order.cond, ()) is None
    assert not is_view(torch.ops.higher_order.cond)
    assert not is_host_read(torch.ops.higher_order.cond)
    assert is_random(torch.ops.higher_order.cond) is None


# --- host reads and random ops -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("func", "args", "expected"),
    [
        (aten._local_scalar_dense.default, (x,), True),
        (aten.nonzero.default, (x,), True),
        (aten.masked_select.default, (x, x > 0), True),
        (aten._unique2.default, (x,), True),
        (aten.equal.default, (x, y), True),
        (aten.bincount.default, (x.long(),), True),
        (aten.is_nonzero.default, (x,), True),
        (aten.index.Tensor, (x, [x > 0]), True),
        (aten.index.Tensor, (x, [x.to(torch.uint8)]), True),
        (aten.index.Tensor, (x, [x.long()]), False),
        (aten.index.Tensor, (torch.ones(2, 2), [None, x.long()]), False),
        (aten.index_put_.default, (x, [x > 0], y), False),
        (aten.add.Tensor, (x, y), False),
        (aten.is_pinned.default, (x,), False),
        (aten.sort.default, (x,), False),
    ],
)
def test_host_reads(func, args, expected):
    assert is_host_read(func, args) is expected


def test_random_ops_name_their_generator():
    generator = torch.Generator()
    assert is_random(aten.rand.default, ([3],)) is DEFAULT_GENERATOR
    assert is_random(aten.rand.generator, ([3],), {"generator": generator}) is generator
    assert is_random(aten.rand.generator, ([3],), {"generator": None}) is DEFAULT_GENERATOR
    assert is_random(aten.bernoulli_.float, (x, 0.5), {"generator": generator}) is generator
    assert is_random(aten.native_dropout.default, (x, 0.5, True)) is DEFAULT_GENERATOR
    assert is_random(aten.multinomial.default, (x, 1)) is DEFAULT_GENERATOR
    assert is_random(aten.add.Tensor, (x, y)) is None


# --- against what really happens -----------------------------------------------------------------


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


class Audit(torch.utils._python_dispatch.TorchDispatchMode):
    """Runs every op and compares the bytes that change with those told."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()
        self.undeclared: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        told = op_accesses(func, args, kwargs)
        tensors = []
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, torch.Tensor) and item.layout is torch.strided:
                    tensors.append(item)
        before = [snapshot(tensor) for tensor in tensors]
        result = func(*args, **kwargs)
        if told is None or torch.Tag.inplace_view in func.tags:
            return result
        self.ops.add(func.name())
        written = set().union(*(bytes_of(a) for a in told if a.mode & WRITE), set())
        for tensor, old in zip(tensors, before, strict=True):
            if not torch.equal(snapshot(tensor), old) and not touched(tensor) <= written:
                self.undeclared.append(func.name())
        return result


PROGRAMS = [
    lambda a, b, i: a.add_(b).mul_(2).sub_(b).div_(3),
    lambda a, b, i: a[:, 1:3].copy_(b[:, :2]),
    lambda a, b, i: a.t()[0].zero_(),
    lambda a, b, i: a.index_add_(0, i, b[i]).index_copy_(0, i, b[i]),
    lambda a, b, i: a.index_put_((i,), b[i], accumulate=True),
    lambda a, b, i: a.scatter_(0, i.view(1, -1), b).scatter_add_(0, i.view(1, -1), b),
    lambda a, b, i: a.scatter_reduce_(0, i.view(1, -1), b, "amax"),
    lambda a, b, i: a.masked_fill_(b > 0, 3).masked_scatter_(a > 1, b),
    lambda a, b, i: a.put_(i, b.flatten()[:3]).fill_diagonal_(4),
    lambda a, b, i: torch.addmm(a, b, b.t() @ b, out=a),
    lambda a, b, i: torch.sort(b, out=(a, torch.zeros(3, 4, dtype=torch.long))),
    lambda a, b, i: torch.topk(b, 2, out=(a[:, :2], torch.zeros(3, 2, dtype=torch.long))),
    lambda a, b, i: torch._foreach_lerp_([a, a[:1]], [b, b[:1]], 0.5),
    lambda a, b, i: torch._foreach_addcmul_([a], [b], [b], 2),
    lambda a, b, i: a.uniform_().normal_().bernoulli_(0.5).random_(3),
    lambda a, b, i: F.batch_norm(b, a[0, :4], a[1, :4].abs(), training=True),
    lambda a, b, i: F.batch_norm(b, a[0], a[1].abs(), training=False),
    lambda a, b, i: F.instance_norm(b[None], torch.zeros(3), torch.ones(3)),
    lambda a, b, i: F.embedding(i, a, max_norm=0.1),
    lambda a, b, i: F.rrelu(b, training=True),
    lambda a, b, i: F.dropout(b, 0.5),
    lambda a, b, i: torch.where(b > 0, a, b).cumsum(0).clamp_(min=b),
    lambda a, b, i: torch.linalg.solve(b[:, :3] + torch.eye(3), a),
    lambda a, b, i: torch.einsum("ij,ij->i", a, b).softmax(0),
    lambda a, b, i: a.clamp_(-1, 1).copysign_(b).lerp_(b, 0.1),
    lambda a, b, i: torch.nn.GRU(4, 2)(b[None]),
    lambda a, b, i: torch.histc(b, out=torch.zeros(100)),
    lambda a, b, i: torch.optim.Adam([a.requires_grad_()], foreach=True).step(),
]


@pytest.mark.parametrize("inference", [False, True])
def test_no_program_writes_more_than_told(inference):
    audit = Audit()
    for program in PROGRAMS:
        torch.manual_seed(0)
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        index = torch.tensor([2, 0, 1])
        with torch.no_grad(), torch.inference_mode(inference), audit:
            program(a, b, index)
    assert audit.undeclared == []
    assert len(audit.ops) >= 50


def test_the_audit_bites(monkeypatch):
    monkeypatch.setattr(torch_access, "_LIARS", {})
    monkeypatch.setattr(torch_access, "_infos", {})
    audit = Audit()
    with torch.no_grad(), audit:
        F.batch_norm(torch.randn(3, 4), torch.zeros(4), torch.ones(4), training=True)
    assert set(audit.undeclared) == {"aten::native_batch_norm"}
