"""Which value of a recording a tensor stands for.

A tensor met while recording is an *input*, a *result*, a *view* of one of those, or a *constant*:
everything that existed before and is not an input. The first three have a slot. Matching is by
object, then by storage and geometry, since PyTorch often hands out another object for the same
view, and some views (`Tensor.data`) are made without a dispatched op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kscheduler.access import WRITE
from kscheduler.errors import NotReplayable, StaleArgument
from kscheduler.intercept.torch_access import storage_access, tensor_access
from kscheduler.intercept.user_line import user_line

__all__ = [
    "INPUT",
    "RESULT",
    "VIEW",
    "Call",
    "Ref",
    "Slot",
    "SlotTable",
    "as_strided_like",
    "has_memory",
    "shared_bytes",
    "tensors_in",
]

INPUT, RESULT, VIEW = "input", "result", "view"
_data_ptr = torch._C.TensorBase.data_ptr
_untyped_storage = torch._C.TensorBase.untyped_storage


class Ref(int):
    """A slot's number in the place of a tensor."""


class Call(NamedTuple):
    """A recorded call, its tensors replaced by `Ref` where they have a slot.

    `result` has the structure of what the call returned, with a `Ref` for each tensor that the call
    gives a slot its value, and None for everything else.
    """

    func: Any
    args: tuple
    kwargs: dict[str, Any]
    result: Any


@dataclass(slots=True)
class Slot:
    """One value of the recording.

    Attributes:
        kind: `INPUT`, `RESULT` or `VIEW`.
        tensor: The recorded value.
        owner: The slot that the storage came with: its own for inputs and results.
        call: What makes a view; None for others.
    """

    kind: str
    tensor: Tensor
    owner: int
    call: Call | None = None


class SlotTable:
    """All slots and constants of a recording."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.constants: dict[int, tuple[Tensor, int]] = {}
        self._watched: dict[int, tuple[Tensor, tuple, bool]] = {}
        self._constant_storages: set[int] = set()
        self._by_id: dict[int, int] = {}
        self._by_geometry: dict[tuple, int] = {}
        self._owners: dict[int, int] = {}
        self._made: list[tuple[int, int, int]] = []  # bytes of results, and their slots

    def add(self, kind: str, tensor: Tensor) -> Ref:
        """A new slot for a tensor."""
        slot = Ref(len(self.slots))
        owner: int = slot
        if has_memory(tensor):
            key = _storage_key(tensor)
            owner = self._owners.get(key, slot) if kind is VIEW else slot
            if kind is RESULT and tensor.numel():
                storage = storage_access(tensor, WRITE)
                self._made.append((storage.start, storage.end, slot))
            self._owners[key] = owner
            self._by_geometry[_geometry(tensor)] = slot
        self._by_id[id(tensor)] = slot
        self.slots.append(Slot(kind, tensor, owner))
        return slot

    def find(self, tensor: Tensor) -> Ref | None:
        """The slot that a tensor stands for; None for a constant, which is remembered.

        Raises:
            NotReplayable: It shares memory with an input or result, and nobody knows how it was
                made from that.
        """
        slot = self._by_id.get(id(tensor))
        if slot is None and has_memory(tensor):
            if not self.is_recorded_memory(tensor):
                maker = self._maker(tensor)
                if maker is not None:
                    return self._add_foreign_view(tensor, maker)
                self.add_constant(tensor)
                return None
            slot = self._by_geometry.get(_geometry(tensor))
            if slot is None:
                owner = self.slots[self._owners[_storage_key(tensor)]]
                if owner.kind is INPUT or owner.tensor.dtype is not tensor.dtype:
                    raise NotReplayable(
                        f"a tensor of shape {tuple(tensor.shape)} at {user_line()} shares memory "
                        "with an argument or result of the recorded function, but was not made "
                        "from it by a recorded op; make the view inside the function"
                    )
                return self.add_strided_view(tensor)
        return None if slot is None else Ref(slot)

    def _maker(self, tensor: Tensor) -> int | None:
        """The result in whose memory a tensor lies that came back from another framework."""
        address = _data_ptr(tensor) if tensor.numel() else 0
        for start, end, slot in self._made:
            if start <= address < end:
                return slot
        return None

    def _add_foreign_view(self, tensor: Tensor, owner: int) -> Ref:
        base = self.slots[owner].tensor
        skip, rest = divmod(_data_ptr(tensor) - _data_ptr(base), base.element_size())
        if rest or base.dtype is not tensor.dtype:
            raise NotReplayable(
                f"a tensor of {tensor.dtype} at {user_line()} lies in the memory of a result of "
                f"{base.dtype}, seen through another framework; convert it with torch instead"
            )
        self._owners[_storage_key(tensor)] = owner
        args = (Ref(owner), tensor.size(), tensor.stride(), skip)
        slot = self.add(VIEW, tensor)
        self.slots[slot].call = Call(as_strided_like, args, {}, slot)
        return slot

    def add_strided_view(self, tensor: Tensor) -> Ref:
        """A slot for a view that is described by its geometry alone."""
        owner = self._owners[_storage_key(tensor)]
        base = self.slots[owner].tensor
        skip = tensor.storage_offset() - base.storage_offset()
        args = (Ref(owner), tensor.size(), tensor.stride(), skip)
        slot = self.add(VIEW, tensor)
        self.slots[slot].call = Call(as_strided_like, args, {}, slot)
        return slot

    def add_constant(self, tensor: Tensor) -> None:
        """Remember a tensor that every replay uses where it lies."""
        if id(tensor) not in self.constants:
            self.constants[id(tensor)] = (tensor, _data_ptr(tensor))
            self._constant_storages.add(_storage_key(tensor))
            self._watched[id(tensor)] = (tensor, _look(tensor, False), False)

    def watch(self, tensor: Tensor) -> None:
        """Let a replay be stale once the tensor has other memory, or another shape."""
        self._watched[id(tensor)] = (tensor, _look(tensor, True), True)

    def is_recorded_memory(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of an input or result."""
        return tensor.numel() > 0 and _storage_key(tensor) in self._owners

    def is_constant_memory(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of a constant met before."""
        return _storage_key(tensor) in self._constant_storages

    def is_known(self, tensor: Tensor) -> bool:
        """Whether this very tensor was met before."""
        return id(tensor) in self._by_id or id(tensor) in self.constants

    def rename(self, tensor: Tensor, before: Tensor) -> None:
        """Let a slot's recorded tensor be `before`, as `tensor` is about to mean something else."""
        slot = self._by_id[id(tensor)]
        self.slots[slot].tensor = before
        self._by_id[id(before)] = slot

    def freeze(self, value: Any) -> Any:
        """A call's arguments with a `Ref` in place of each tensor that has a slot."""
        if isinstance(value, Tensor):
            slot = self.find(value)
            return value if slot is None else slot
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return [self.freeze(item) for item in value]
        if isinstance(value, dict):
            return {key: self.freeze(item) for key, item in value.items()}
        return value

    def check_constants(self) -> None:
        """Raise `StaleArgument` if a watched tensor is not what it was when it was recorded."""
        for tensor, look, with_grad in self._watched.values():
            if _look(tensor, with_grad) != look:
                raise StaleArgument(
                    f"a tensor of shape {tuple(tensor.shape)} that the recorded function uses has "
                    "other memory or another shape now (.data = ..., set_, resize_, t_), or "
                    "requires grad otherwise; record again"
                )


def as_strided_like(base: Tensor, shape: Sequence[int], strides: Sequence[int], skip: int) -> Any:
    """A view of `base`'s storage whose first element lies `skip` elements after that of `base`."""
    return torch.ops.aten.as_strided.default(base, shape, strides, base.storage_offset() + skip)


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is a plain piece of one storage."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def shared_bytes(
    tensors: Sequence[Tensor], others: Sequence[Tensor] = ()
) -> tuple[int, int] | None:
    """Positions of one of `tensors` and of another, in both lists together, that share bytes."""
    spans = []
    for position, tensor in enumerate((*tensors, *others)):
        if has_memory(tensor) and tensor.numel():
            access = tensor_access(tensor, WRITE)
            spans.append((access.start, access.end, position))
    spans.sort()
    is_own = [position < len(tensors) for _, _, position in spans]
    for index, (_, end, position) in enumerate(spans):
        for later in range(index + 1, len(spans)):
            if spans[later][0] >= end:
                break
            if is_own[index] or is_own[later]:
                return min(position, spans[later][2]), max(position, spans[later][2])
    return None


def _look(tensor: Tensor, with_grad: bool) -> tuple:
    """What a recording takes for granted of a tensor that is used where it lies."""
    requires_grad = with_grad and tensor.requires_grad
    if not has_memory(tensor):
        return (requires_grad,)
    return _data_ptr(tensor), tensor.size(), tensor.stride(), requires_grad


def _storage_key(tensor: Tensor) -> int:
    return _untyped_storage(tensor)._cdata


def _geometry(tensor: Tensor) -> tuple:
    return (
        _storage_key(tensor),
        tensor.storage_offset(),
        tensor.size(),
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
