"""Arguments and results of a recorded function, taken apart into arrays and everything else."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import warp

from kscheduler.access import READ_WRITE, Access
from kscheduler.errors import MixedDevices, NotReplayable
from kscheduler.guards import is_scalar
from kscheduler.intercept.host_memory import PRIVATE_MARK
from kscheduler.intercept.torch_access import tensor_access
from kscheduler.native import array_access
from kscheduler.spaces import own_dict

__all__ = [
    "Arguments",
    "containers",
    "flatten",
    "given_attributes",
    "leaf_range",
    "modes_key",
    "take_apart",
]


@dataclasses.dataclass(slots=True)
class Arguments:
    """A call's arguments.

    Attributes:
        key: Equal for calls that one recording can serve: structure, scalars, identities of other
            objects, and shape, strides, dtype and device of arrays.
        leaves: The arrays, in order.
        objects: Every other object, held so that its identity stays unique.
    """

    key: tuple[Any, ...]
    leaves: list[Any]
    objects: list[Any]


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Takes a call's arguments apart. Raises MixedDevices if arrays lie on several devices."""
    leaves: list[Any] = []
    objects: list[Any] = []
    key = (_key(args, leaves, objects), _key(kwargs, leaves, objects))
    devices = {str(leaf.device) for leaf in leaves}
    if len(devices) > 1:
        raise MixedDevices(
            f"the arguments lie on {', '.join(sorted(devices))}; one recorded function works on "
            "one device: move them to one before the call"
        )
    return Arguments((*key, _aliasing(leaves)), leaves, objects)


def _key(value: Any, leaves: list[Any] | None, objects: list[Any]) -> Any:
    """The key of one value; without `leaves`, arrays in it count by identity."""
    if leaves is None and isinstance(value, (torch.Tensor, warp.array)):
        objects.append(value)
        return "object", id(value)
    if isinstance(value, torch.Tensor):
        assert leaves is not None
        leaves.append(value)
        return (
            "tensor", type(value), value.dtype, value.shape, value.stride(), value.device,
            value.requires_grad, _beside(value, objects),
        )  # fmt: skip
    if isinstance(value, warp.array):
        assert leaves is not None
        leaves.append(value)
        return (
            "array", value.dtype, value.shape, value.strides, str(value.device),
            value.requires_grad, _beside(value, objects),
        )  # fmt: skip
    if is_scalar(value):
        return _scalar_key(value)
    if type(value) in (list, tuple):
        return type(value), tuple([_key(item, leaves, objects) for item in value])
    if type(value) is dict:
        return dict, tuple([(_name_key(k), _key(v, leaves, objects)) for k, v in value.items()])
    objects.append(value)
    return "object", id(value)


def _scalar_key(value: Any) -> Any:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0, also inside tuples."""
    if isinstance(value, tuple):
        return type(value), tuple([_scalar_key(item) for item in value])
    if isinstance(value, frozenset):
        return frozenset, frozenset([_scalar_key(item) for item in value])
    is_number = isinstance(value, (float, complex, np.generic))
    return "value", type(value), repr(value) if is_number else value


def _name_key(name: Any) -> Any:
    return name if type(name) is str else (type(name), _scalar_key(name))


def _beside(array: Any, objects: list[Any]) -> Any:
    """What hangs on an array: its gradient, and attributes that the user gave a tensor."""
    gradient = array._grad
    if gradient is not None:
        objects.append(gradient)
    own = given_attributes(array)
    named = [(name, _key(value, None, objects)) for name, value in own.items()] if own else ()
    return None if gradient is None else id(gradient), tuple(named)


@functools.cache
def _warp_attributes() -> frozenset[str]:
    """What Warp's own arrays keep in their dict."""
    plain = warp.zeros((2, 2), dtype=float, device="cpu", requires_grad=True)
    wrapped = warp.from_torch(torch.zeros(2))
    given = warp.array([1.0, 2.0], dtype=float, device="cpu")
    plain.__ctype__()
    arrays = (plain, plain[0], wrapped, given, plain.flatten(), plain.grad)
    names: set[str] = {"_ctype", "ctype", "_tensor", "_ref", "_grad", "grad", "deleter", "pinned"}
    names.add(PRIVATE_MARK)
    for array in arrays:
        names |= vars(array).keys()
    return frozenset(names)


def given_attributes(array: Any) -> dict[str, Any]:
    """The attributes that the program has given a tensor or array."""
    own = own_dict(array)
    if not own or isinstance(array, torch.Tensor):
        return own
    if not isinstance(array, warp.array) or own.keys() <= _warp_attributes():
        return {}
    return {name: own[name] for name in own.keys() - _warp_attributes()}


def containers(value: Any) -> set[int]:
    """Ids of the lists, tuples and dicts that `flatten` looks into."""
    if type(value) not in (list, tuple, dict):
        return set()
    items = value.values() if type(value) is dict else value
    return {id(value)}.union(*(containers(item) for item in items))


def leaf_range(leaf: Any) -> Access:
    """The bytes of an array argument, gaps included."""
    if isinstance(leaf, torch.Tensor):
        access = tensor_access(leaf, READ_WRITE)
    elif not leaf.ptr:  # also an annotation, which has names for a shape
        return Access(0, 0, READ_WRITE)
    else:
        access = array_access(leaf.__ctype__(), warp.types.type_size_in_bytes(leaf.dtype), 3)
    return access._replace(mode=READ_WRITE, pitch=0, width=0)


def _aliasing(leaves: list[Any]) -> tuple[tuple[int, int, int], ...]:
    """Which arguments share memory, and at what distance."""
    if len(leaves) < 2:
        return ()
    ranges = [leaf_range(leaf) for leaf in leaves]
    return tuple(
        (i, j, b.start - a.start)
        for i, a in enumerate(ranges)
        for j, b in enumerate(ranges[:i])
        if a.start < b.end and b.start < a.end
    )


def modes_key() -> tuple[Any, ...]:
    """The torch modes that decide what an op does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )


def take_apart(
    result: Any, leaves: list[Any], is_known: Callable[[Any], bool], given: Sequence[Any] = ()
) -> Callable[[list[Any]], Any]:
    """Collects the tensors of a result and returns what builds an equal result from others.

    Args:
        result: What the recorded function returned.
        leaves: Receives its tensors.
        is_known: Whether an object existed outside of the call (the caller, an argument).
        given: The arrays among the arguments. What is returned takes those of its own call, after
            the tensors.

    Raises:
        NotReplayable: The result holds an object that a replay could not make again.
    """
    if isinstance(result, torch.Tensor):
        index = len(leaves)
        leaves.append(result)
        return lambda values: values[index]
    if is_scalar(result):
        return lambda values: result
    if isinstance(result, warp.array):
        return _take_array(result, is_known, given)
    if is_known(result):
        return lambda values: result
    if isinstance(result, dict) and type(result) is dict:
        makers = {k: take_apart(v, leaves, is_known, given) for k, v in result.items()}
        return lambda values: {k: make(values) for k, make in makers.items()}
    if isinstance(result, (list, tuple)):
        parts = [take_apart(item, leaves, is_known, given) for item in result]
        kind = type(result)
        if hasattr(result, "_fields"):
            return lambda values: kind(*[make(values) for make in parts])
        return lambda values: kind([make(values) for make in parts])
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return _take_dataclass_apart(result, leaves, is_known, given)
    raise NotReplayable(
        f"the function returns a new {type(result).__name__}, which a replay cannot make again; "
        "return tensors, numbers, or lists, tuples, dicts and dataclasses of them"
    )


def _take_array(
    array: Any, is_known: Callable[[Any], bool], given: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    for index, argument in enumerate(given):
        if argument is array:
            place = index - len(given)
            return lambda values: values[place]
    if is_known(array):
        return lambda values: array
    raise NotReplayable(
        f"the function returns a new Warp array of shape {array.shape}, whose memory a replay "
        "would fill again or leave behind; write into an array from outside, or return tensors"
    )


def _take_dataclass_apart(
    result: Any, leaves: list[Any], is_known: Callable[[Any], bool], given: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    """Like `take_apart`; `__init__` and `__post_init__` have run already and do not run again."""
    slots = [f.name for f in dataclasses.fields(result) if hasattr(result, f.name)]
    names = dict.fromkeys((*slots, *getattr(result, "__dict__", ())))
    makers = {name: take_apart(getattr(result, name), leaves, is_known, given) for name in names}
    kind = type(result)

    def build(values: list[Any]) -> Any:
        made = object.__new__(kind)
        for name, make in makers.items():
            object.__setattr__(made, name, make(values))
        return made

    return build
