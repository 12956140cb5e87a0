"""Rebuilds the return value of a recorded function from the values of a replay.

Tensors with a slot are replaced, everything else stays what it was. A tensor whose memory the next
replay writes again (a pinned result) is handed out as a copy; tensors that shared memory still do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from kscheduler.errors import NotReplayable
from kscheduler.intercept.torch_slots import Ref, SlotTable, as_strided_like

__all__ = ["Outputs"]

_CONSTANT_TYPES = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice),
    *(torch.dtype, torch.device, torch.Size, torch.Generator),
)


class Outputs:
    """One rebuilding.

    Args:
        table: The recording's slots.
        pinned: Slots of results that stay at their recorded address.
        value_of: Gives the replay's value of a slot.
        owned: Ids of constants whose memory the next replay writes again.
    """

    def __init__(
        self,
        table: SlotTable,
        pinned: Collection[int],
        value_of: Callable[[Ref], Tensor],
        owned: Collection[int] = (),
    ) -> None:
        self._table = table
        self._pinned = pinned
        self._value_of = value_of
        self._owned = owned
        self._copies: dict[int, Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def rebuild(self, value: Any) -> Any:
        """A part of the recorded return value with this replay's tensors.

        Raises:
            NotReplayable: It is an object that might hide tensors.
        """
        if isinstance(value, Tensor):
            return self._tensor(value)
        kind = type(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*map(self.rebuild, value))
        if kind in (tuple, list):
            return kind(map(self.rebuild, value))
        if kind is dict:
            return {key: self.rebuild(item) for key, item in value.items()}
        if isinstance(value, _CONSTANT_TYPES) or kind.__module__.startswith(("warp.", "numpy")):
            return value
        raise NotReplayable(
            f"the recorded function returns a {kind.__qualname__}, which may hide tensors; return "
            "tensors, arrays, numbers, or tuples, lists and dicts of them"
        )

    def _tensor(self, tensor: Tensor) -> Tensor:
        slot = self._table.find(tensor)
        if slot is None:
            return self._copy_constant(tensor) if id(tensor) in self._owned else tensor
        owner = self._table.slots[slot].owner
        return self._copy(tensor, owner) if owner in self._pinned else self._value_of(slot)

    def _copy_constant(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start not in self._storages:
            self._storages[start] = storage.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return copy.set_(
            self._storages[start], tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def _copy(self, tensor: Tensor, owner: int) -> Tensor:
        base = self._table.slots[owner].tensor
        copy = self._copies.get(owner)
        if copy is None:
            shape, strides = base.size(), base.stride()
            copy = torch.empty_strided(shape, strides, dtype=base.dtype, device=base.device)
            self._copies[owner] = copy.copy_(base)
        if tensor is base:
            return copy
        if tensor.dtype is not base.dtype:
            return tensor.clone()
        skip = (tensor.data_ptr() - base.data_ptr()) // base.element_size()  # maybe no view of it
        return as_strided_like(copy, tensor.size(), tensor.stride(), skip)
