"""What a PyTorch op touches, told before it runs.

`op_accesses` reads the op's schema once and keeps what it learned, then turns the tensor arguments
of every call into byte ranges. Guarantee: each byte that the op may read or write of its tensor
arguments lies in a returned access of that mode, or the answer is None (unknown: wait for
everything). Schemas are believed for `aten` and `prims` only, and corrected by a table of ops known
to write more than they say; an op of any other namespace counts as a writer of the whole storage of
every tensor it is given, until `trust_schema` declares it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kscheduler.access import READ, READ_WRITE, Access, strided_access

__all__ = [
    "DEFAULT_GENERATOR",
    "Generatorlike",
    "is_host_read",
    "is_random",
    "is_trusted",
    "is_view",
    "op_accesses",
    "storage_access",
    "tensor_access",
    "trust_schema",
]

_data_ptr = torch._C.TensorBase.data_ptr
_untyped_storage = torch._C.TensorBase.untyped_storage
_storage_ptr = torch.UntypedStorage.data_ptr
_strided = torch.strided
_new = tuple.__new__


class Generatorlike:
    """Stands for "the default generator" where an op draws without naming one."""

    def __repr__(self) -> str:
        return "DEFAULT_GENERATOR"


DEFAULT_GENERATOR: Final = Generatorlike()


def _aten(names: str) -> frozenset[str]:
    return frozenset("aten::" + name for name in names.split())


# Running statistics that the schema calls inputs; written when the named flag argument is true
# ("" = always).
_RUNNING = ("running_mean", "running_var")
_LIARS: dict[str, tuple[tuple[str, ...], str]] = {
    "aten::batch_norm": (_RUNNING, "training"),
    "aten::_batch_norm_impl_index": (_RUNNING, "training"),
    "aten::native_batch_norm": (_RUNNING, "training"),
    "aten::cudnn_batch_norm": (_RUNNING, "training"),
    "aten::miopen_batch_norm": (_RUNNING, "training"),
    "aten::instance_norm": (_RUNNING, "use_input_stats"),
    "aten::batch_norm_update_stats": (_RUNNING, ""),
    "aten::batch_norm_gather_stats": (_RUNNING, ""),
    "aten::batch_norm_gather_stats_with_counts": (_RUNNING, ""),
}

# Ops that give a tensor other memory: whoever still uses the old memory has to be done.
_RETARGETS = _aten("set_ set_data resize_ resize_as_ _resize_output_ resize_as_sparse_")

# Ops that store through indices. Their targets keep the plain span, never rows of it.
_SCATTERS = _aten(
    "index_put_ _index_put_impl_ index_put scatter_ scatter scatter_add_ scatter_add "
    "scatter_reduce_ scatter_reduce index_add_ index_copy_ index_fill_ index_reduce_ "
    "masked_scatter_ masked_fill_ put_ embedding_renorm_"
)

# Composite ops that never copy; every other composite op with an aliasing result may read.
_COMPOSITE_VIEWS = _aten(
    "unflatten view_as expand_as broadcast_to narrow chunk tensor_split vsplit hsplit dsplit "
    "split moveaxis movedim swapaxes swapdims numpy_T mT linalg_diagonal"
)

# Give the host a value although no tag says so.
_HOST_VALUES = _aten("is_nonzero _choose_qparams_per_tensor fbgemm_linear_quantize_weight")

_TRUSTED_NAMESPACES = frozenset(("aten", "prims"))
_trusted_ops: set[str] = set()


class _Argument(NamedTuple):
    """One tensor argument of an op: where it stands and how it is used."""

    position: int
    name: str
    is_list: bool
    mode: int
    whole_span: bool


class _OpInfo(NamedTuple):
    """What the schema of one op says, in the form that `op_accesses` needs."""

    tensors: tuple[_Argument, ...]
    touches_nothing: bool
    is_exceptional: bool
    whole_storages: bool
    is_host_read: bool
    has_mask_index: bool
    is_random: bool
    generator: tuple[int, str] | None
    liar_flag: tuple[int, str] | None
    liar_arguments: tuple[str, ...]


_NUMBERS = frozenset((int, float, bool, complex, type(None)))
_infos: dict[Any, _OpInfo] = {}
_plain_types: dict[type, bool] = {Tensor: True, torch.nn.Parameter: True}


def op_accesses(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> list[Access] | None:
    """The bytes that an op is about to read and write of its tensor arguments.

    Args:
        func: The `torch._ops.OpOverload` that is about to run.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        One access per tensor that holds bytes, in argument order; empty for a view, which touches
        nothing; None when the op or a tensor cannot be seen through (sparse, nested, quantised,
        tensor subclasses, higher-order ops).
    """
    info = _infos.get(func)
    if info is None:
        if not isinstance(func, torch._ops.OpOverload):
            return None
        info = _infos[func] = _read_schema(func)
    if info.touches_nothing:
        return []
    tensors = info.tensors
    if info.is_exceptional:
        if info.whole_storages:
            return _whole_storages(tensors, args, kwargs)
        tensors = _with_liars(info, args, kwargs)
    accesses: list[Access] = []
    count = len(args)
    for position, name, is_list, mode, whole_span in tensors:
        if position < count:
            value = args[position]
        elif kwargs and name in kwargs:
            value = kwargs[name]
        else:
            continue
        if is_list:
            for tensor in value or ():
                if not _add(accesses, tensor, mode, whole_span):
                    return None
            continue
        kind = type(value)
        if kind in _NUMBERS:
            continue
        # The usual case is written out: this runs for every op while a task is in flight.
        if kind in _plain_types and value.layout is _strided and value.is_contiguous():
            if value.is_quantized:
                return None
            start = _data_ptr(value)
            if start:
                accesses.append(_new(Access, (start, start + value.nbytes, mode, 0, 0)))
        elif not _add(accesses, value, mode, whole_span):
            return None
    return accesses


def tensor_access(tensor: Tensor, mode: int) -> Access:
    """The bytes of one strided tensor or view.

    Args:
        tensor: Any strided tensor; empty and stride-0 views are exact, a view that overlaps itself
            counts with its whole span.
        mode: `READ`, `WRITE` or `READ_WRITE`.

    Returns:
        The access; one that touches nothing for an empty tensor or one without memory (meta).

    Raises:
        RuntimeError: The tensor has no strided memory (sparse, nested, wrapper subclass).
    """
    access = _strided_tensor_access(tensor, mode)
    if access is None:
        raise RuntimeError(f"a {type(tensor).__name__} of layout {tensor.layout} has no byte range")
    return access


def storage_access(tensor: Tensor, mode: int) -> Access:
    """The whole storage behind a tensor, whatever part of it the tensor shows."""
    storage = _untyped_storage(tensor)
    start = _storage_ptr(storage)
    return Access(start, start + (storage.nbytes() if start else 0), mode)


def is_host_read(func: Any, args: Sequence[Any] = ()) -> bool:
    """Whether an op gives the host a value, or a result whose shape depends on data.

    Args:
        func: The op.
        args: Its positional arguments; they tell a boolean-mask index from an integer one.
    """
    info = _info(func)
    if info is None:
        return False
    if info.has_mask_index:
        return any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return info.is_host_read


def is_random(
    func: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> torch.Generator | Generatorlike | None:
    """The generator that an op draws from.

    Returns:
        The generator given, `DEFAULT_GENERATOR` when the op draws without one, None when it draws
        nothing.
    """
    info = _info(func)
    if info is None:
        return None
    if info.generator is not None:
        given = _argument(args, kwargs, *info.generator)
        if given is not None:
            return given
    return DEFAULT_GENERATOR if info.is_random else None


def is_view(func: Any) -> bool:
    """Whether an op touches no data: it makes a view, or asks for a shape."""
    info = _info(func)
    return info is not None and info.touches_nothing


def is_trusted(func: Any) -> bool:
    """Whether the schema of an op is believed."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return func.namespace in _TRUSTED_NAMESPACES or func._schema.name in _trusted_ops


def trust_schema(name: str) -> None:
    """Declare that a custom op writes exactly what its schema says.

    Args:
        name: Qualified name without overload, such as ``"mylib::advance"``.
    """
    _trusted_ops.add(name)
    for func in [func for func in _infos if func._schema.name == name]:
        del _infos[func]


def _info(func: Any) -> _OpInfo | None:
    info = _infos.get(func)
    if info is None and isinstance(func, torch._ops.OpOverload):
        info = _infos[func] = _read_schema(func)
    return info


def _read_schema(func: Any) -> _OpInfo:
    schema = func._schema
    name = schema.name
    trusted = is_trusted(func)
    liar_arguments, flag = _LIARS.get(name, ((), ""))
    tensors, generator, liar_flag, writes = [], None, None, False
    for index, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        if argument.name == flag:
            liar_flag = (index, flag)
        if "Generator" in kind:
            generator = (index, argument.name)
        if "Tensor" not in kind:
            continue
        written = argument.alias_info is not None and argument.alias_info.is_write
        writes |= written
        mode = READ_WRITE if written else READ
        whole_span = written and name in _SCATTERS
        tensors.append(_Argument(index, argument.name, "List" in kind, mode, whole_span))
    tags = func.tags
    gives_value = torch.Tag.data_dependent_output in tags or name in _HOST_VALUES
    host_read = gives_value or torch.Tag.dynamic_output_shape in tags
    retargets = name in _RETARGETS
    return _OpInfo(
        tensors=tuple(tensors),
        touches_nothing=trusted and not writes and not host_read and _only_looks(func),
        is_exceptional=not trusted or retargets or bool(liar_arguments),
        whole_storages=not trusted or retargets,
        is_host_read=host_read,
        has_mask_index=name == "aten::index",
        is_random=torch.Tag.nondeterministic_seeded in tags or generator is not None,
        generator=generator,
        liar_flag=liar_flag,
        liar_arguments=liar_arguments,
    )


def _only_looks(func: Any) -> bool:
    """Whether an op that writes nothing also reads no data: a view, or a question about shapes."""
    schema = func._schema
    if not any("Tensor" in str(result.type) for result in schema.returns):
        return bool(schema.returns)
    if schema.name == "aten::_unsafe_view":
        return True
    if not all(result.alias_info is not None for result in schema.returns):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
    return not composite or schema.name in _COMPOSITE_VIEWS


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any] | None, index: int, name: str) -> Any:
    if index < len(args):
        return args[index]
    return kwargs.get(name) if kwargs else None


def _with_liars(
    info: _OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[_Argument, ...]:
    """The tensor arguments of an op with those marked as written that its schema keeps quiet."""
    if info.liar_flag is not None and not _argument(args, kwargs, *info.liar_flag):
        return info.tensors
    return tuple(
        argument._replace(mode=READ_WRITE) if argument.name in info.liar_arguments else argument
        for argument in info.tensors
    )


def _whole_storages(
    tensors: Sequence[_Argument], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> list[Access] | None:
    accesses = []
    for argument in tensors:
        value = _argument(args, kwargs, argument.position, argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, Tensor):
                continue
            if not _is_plain(tensor):
                return None
            access = storage_access(tensor, READ_WRITE)
            if access.start < access.end:
                accesses.append(access)
    return accesses or None  # an op without memory of its own may know of other memory


def _add(accesses: list[Access], value: Any, mode: int, whole_span: bool) -> bool:
    """Append the access of one argument; False when its memory is unknown."""
    if type(value) in _plain_types and value.layout is _strided and value.is_contiguous():
        if value.is_quantized:
            return False
        start = _data_ptr(value)
        if start:
            accesses.append(_new(Access, (start, start + value.nbytes, mode, 0, 0)))
        return True
    if not isinstance(value, Tensor):
        return True  # None for an optional tensor, a Python number in place of a tensor
    access = _strided_tensor_access(value, mode)
    if access is None:
        return False
    if access.start < access.end:
        accesses.append(Access(access.start, access.end, mode) if whole_span else access)
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its own: strided, no `__torch_dispatch__`, no side tables."""
    kind = type(tensor)
    if kind not in _plain_types:
        if not issubclass(kind, Tensor) or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return False
        _plain_types[kind] = True
    return tensor.layout is _strided and not tensor.is_quantized and not tensor.is_nested


def _strided_tensor_access(tensor: Tensor, mode: int) -> Access | None:
    """`tensor_access`, or None where it raises."""
    if not _is_plain(tensor):
        return None
    if tensor.device.type == "meta" or not tensor.nbytes:
        return Access(0, 0, mode)
    try:
        start = _data_ptr(tensor)
    except RuntimeError:  # a functorch or other C++ wrapper: it shows no memory of its own
        return None
    item = tensor.itemsize
    if tensor.is_contiguous():
        return _new(Access, (start, start + tensor.nbytes, mode, 0, 0))
    shape, strides = tensor.shape, tensor.stride()
    if len(shape) == 2 and strides[1] == 1 and strides[0] > shape[1] and shape[0] > 1:
        pitch, width = strides[0] * item, shape[1] * item
        end = start + (shape[0] - 1) * pitch + width
        return _new(Access, (start, end, mode, pitch, width))
    return strided_access(start, shape, [stride * item for stride in strides], item, mode)
