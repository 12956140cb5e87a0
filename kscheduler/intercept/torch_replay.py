"""Records torch ops once and calls them again, functionally, with other inputs.

`TorchTape` guarantees, for a function whose ops it recorded: replaying all nodes in any order that
keeps the conflicts of their accesses gives bit for bit what the function would give, for other
inputs of the same geometry and for whatever its constants hold now. Results are new tensors each
time, so that values of earlier replays never change; in-place ops act on the value bound in this
replay; random ops draw again. What cannot be repeated raises `NotReplayable`.

Not seen: that the function seeds a generator before its first draw; whoever records refuses that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kscheduler.access import READ_WRITE, WRITE, Access
from kscheduler.errors import NotReplayable, StaleArgument
from kscheduler.intercept.current import entered
from kscheduler.intercept.torch_access import (
    is_host_read,
    is_random,
    is_trusted,
    is_view,
    op_accesses,
    storage_access,
    tensor_access,
)
from kscheduler.intercept.torch_code import generate
from kscheduler.intercept.torch_outputs import Outputs
from kscheduler.intercept.torch_slots import (
    INPUT,
    RESULT,
    VIEW,
    Call,
    Ref,
    SlotTable,
    has_memory,
    shared_bytes,
    tensors_in,
)
from kscheduler.intercept.user_line import user_line

__all__ = ["TorchNode", "TorchTape"]

_data_ptr = torch._C.TensorBase.data_ptr
_untyped_storage = torch._C.TensorBase.untyped_storage
_aten = torch.ops.aten
_MAX_GENERATORS = 64


@dataclass(frozen=True, slots=True)
class TorchNode:
    """One recorded op.

    Attributes:
        name: Qualified name, such as ``"aten::add.Tensor"``.
        accesses: What it touched when recorded, results included; None when that is unknown.
        index: Its position, for `TorchTape.run`.
    """

    name: str
    accesses: tuple[Access, ...] | None
    index: int


class TorchTape:
    """A sequence of recorded torch ops."""

    def __init__(self) -> None:
        self._table = SlotTable()
        self._nodes: list[TorchNode] = []
        self._calls: list[Call] = []
        self._inputs: list[Ref] = []
        self._bound: tuple[int, ...] = ()
        self._pinned: set[int] = set()
        self._owned: set[int] = set()  # constants that are handed out as copies
        self._is_inference = torch.is_inference_mode_enabled()
        self._inference: dict[int, bool] = {}  # of nodes that ran in the other mode
        self._tokens = torch.empty(_MAX_GENERATORS, dtype=torch.uint8)
        self._generators: dict[torch.Generator, tuple[Tensor, Access]] = {}
        self._remember(torch.default_generator)
        self._functions: list[Any] = []
        self._makers: dict[int, Any] = {}
        self._generated: dict[bool, tuple[list[Any], dict[int, Any]]] = {}

    # --- recording ---------------------------------------------------------------------------

    def bind_inputs(self, tensors: Sequence[Tensor]) -> None:
        """Declare the tensors that replays may exchange.

        Args:
            tensors: The tensor arguments of the recorded call, in order; one may occur twice.

        Raises:
            NotReplayable: Two different ones share memory, so that a write to one would have to be
                told from a write to the other.
        """
        for tensor in tensors:
            known = self._table.is_known(tensor)
            slot = self._table.find(tensor) if known else self._table.add(INPUT, tensor)
            assert slot is not None
            self._inputs.append(slot)
        distinct = [self._table.slots[slot].tensor for slot in dict.fromkeys(self._inputs)]
        shared = shared_bytes(distinct)
        if shared:
            raise NotReplayable(
                f"tensor arguments {shared[0]} and {shared[1]} of the recorded function share "
                "memory; pass one of them, or copies"
            )
        self._bound = tuple(_data_ptr(self._table.slots[slot].tensor) for slot in self._inputs)

    def op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an op, append what a replay has to do for it, and return its result.

        Raises:
            NotReplayable: A replay could not repeat it; the message names the op and the line.
        """
        self._refuse(func, args, kwargs)
        self._generated.clear()
        if torch.Tag.inplace_view in func.tags:
            return self._change_view(func, args, kwargs)
        if func is _aten.lift_fresh.default and self._is_new_data(args[0]):
            # `torch.tensor(...)`: every call of the function makes another one.
            return self._record(_aten.clone.default, (args[0].clone(),), {})
        return self._record(func, args, kwargs)

    @property
    def nodes(self) -> list[TorchNode]:
        """The recorded ops in program order. Views are not among them."""
        return self._nodes

    def pin(self, used: Iterable[Access | int | torch.UntypedStorage]) -> None:
        """Keep results at the addresses that somebody else's recorded tasks hold.

        A replay then copies the new value of such a result into the recorded tensor and goes on
        with that. Inputs are not pinned: whoever holds their addresses rebinds them.

        Args:
            used: Byte ranges, addresses, or storages.
        """
        ranges = [_byte_range(item) for item in used]
        for number, slot in enumerate(self._table.slots):
            if slot.owner != number or slot.kind is INPUT or not has_memory(slot.tensor):
                continue
            own = storage_access(slot.tensor, READ_WRITE)
            if not any(start < own.end and own.start < end for start, end in ranges):
                continue
            if slot.kind is VIEW:
                raise NotReplayable("memory inside a sparse tensor is used by a recorded kernel")
            self._pinned.add(number)
        self._generated.clear()

    # --- replaying ---------------------------------------------------------------------------

    def begin_replay(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The values that one replay starts with.

        Args:
            inputs: One tensor per bound input, of its shape, strides, dtype and device.

        Raises:
            StaleArgument: An input does not fit, or a constant has moved since the recording.
        """
        if torch.is_inference_mode_enabled() is not self._is_inference:
            raise StaleArgument("inference mode is another one than when recorded")
        self._table.check_constants()
        self._generate(self._is_plain(inputs))
        values: list[Any] = [None] * len(self._table.slots)
        for slot, tensor in zip(self._inputs, inputs, strict=True):
            self._check_input(slot, tensor, values[slot])
            values[slot] = tensor
        bound = tuple(map(_data_ptr, inputs))
        if bound != self._bound:
            self._check_aliases([values[slot] for slot in dict.fromkeys(self._inputs)])
            self._bound = bound
        return values

    def run(self, values: list[Any], index: int) -> None:
        """Call one node, after every earlier one that it conflicts with."""
        self._functions[index](values)

    def is_recorded_memory(self, tensor: Tensor) -> bool:
        """Whether a tensor's memory is an input's or was made by a recorded op."""
        return self._table.is_recorded_memory(tensor)

    def constant_memory(self) -> list[Access]:
        """The memory of the tensors that every replay uses where they lie."""
        constants = [tensor for tensor, _ in self._table.constants.values()]
        return [tensor_access(tensor, READ_WRITE) for tensor in constants if has_memory(tensor)]

    def watch(self, tensor: Tensor) -> None:
        """Makes a replay stale once this tensor, which the program can read, has changed its look.

        Its memory, shape, strides and `requires_grad` count, its contents do not.
        """
        self._table.watch(tensor)

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that recorded ops draw from, besides the default one."""
        return [known for known in self._generators if known is not torch.default_generator]

    def own(self, tensor: Tensor) -> None:
        """Says that a constant lies in memory that the function itself has allocated.

        As a result it is handed out as a copy, since the next replay writes there again.
        """
        self._owned.add(id(tensor))

    def recorded_values(self) -> list[Any]:
        """The values of the recording itself, for `outputs`."""
        return [slot.tensor for slot in self._table.slots]

    def outputs(self, values: list[Any], structure: Any) -> Any:
        """The function's return value.

        Args:
            values: Of a replay that has run all nodes, or `recorded_values()`.
            structure: What the function returned when it was recorded: tensors, Python values, Warp
                and NumPy arrays, and tuples, lists, dicts and named tuples of those.

        Returns:
            The same structure with this replay's tensors. A pinned result is copied, so that the
            next replay leaves it alone.

        Raises:
            NotReplayable: The structure holds an object that might hide tensors.
        """
        value_of = partial(self._value, values)
        return Outputs(self._table, self._pinned, value_of, self._owned).rebuild(structure)

    # --- recording, in detail ------------------------------------------------------------------

    def _refuse(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            raise NotReplayable(
                f"{func} at {user_line()} is a higher-order op, which runs Python functions; use "
                "strategy='stream'"
            )
        if is_host_read(func, args):
            raise NotReplayable(
                f"{func} at {user_line()} gives the host a value or a shape that depends on data, "
                "at which a replay would not look again. Keep it on the device, move it out of the "
                "recorded function, or use strategy='stream'"
            )
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((args, kwargs))):
            raise NotReplayable(
                f"{func} at {user_line()} takes a tensor that requires grad; record under "
                "torch.no_grad(), or use strategy='stream'"
            )

    def _record(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        frozen_args = tuple(self._table.freeze(args))
        frozen_kwargs = self._table.freeze(kwargs)
        accesses = op_accesses(func, args, kwargs)
        generator = self._generator(func, args, kwargs)
        result, is_opaque = _call(func, args, kwargs)
        if generator is not None:
            accesses = None if accesses is None else [*accesses, self._remember(generator)]
        given = {id(tensor) for tensor in tensors_in((args, kwargs))}
        new = [tensor for tensor in tensors_in(result) if id(tensor) not in given]
        fresh = [tensor for tensor in new if self._is_fresh(tensor)]
        aliases = [tensor for tensor in new if not self._is_fresh(tensor)]
        repeats = bool(fresh) or generator is not None or is_opaque or _writes(func)
        made = {id(tensor): self._table.add(RESULT, tensor) for tensor in fresh}
        call = Call(func, frozen_args, frozen_kwargs, None)
        if repeats:
            self._alias_by_geometry(aliases)
            call = call._replace(result=_structure(result, made))
            if accesses is not None and not is_opaque:
                accesses += [tensor_access(t, WRITE) for t in fresh if has_memory(t)]
            known = accesses is not None and not is_opaque and all(map(has_memory, fresh))
            self._append(call, tuple(accesses or ()) if known else None)
        else:
            self._alias_by_call(aliases, result, call)
        return result

    def _append(self, call: Call, accesses: tuple[Access, ...] | None) -> None:
        index = len(self._nodes)
        self._nodes.append(TorchNode(call.func.name(), accesses, index))
        self._calls.append(call)
        if torch.is_inference_mode_enabled() is not self._is_inference:
            self._inference[index] = not self._is_inference

    def _is_fresh(self, tensor: Tensor) -> bool:
        """Whether a result has memory of its own that a replay has to fill."""
        if not has_memory(tensor):
            return True
        if not tensor.numel() or self._table.is_constant_memory(tensor):
            return False
        return not self._table.is_recorded_memory(tensor)

    def _alias_by_call(self, aliases: list[Tensor], result: Any, call: Call) -> None:
        """Views whose call is repeated where one of them is needed."""
        made = {}
        for tensor in aliases:
            if has_memory(tensor) and not self._table.is_recorded_memory(tensor):
                self._table.add_constant(tensor)
            else:
                made[id(tensor)] = self._table.add(VIEW, tensor)
        call = call._replace(result=_structure(result, made))
        for slot in made.values():
            self._table.slots[slot].call = call

    def _alias_by_geometry(self, aliases: list[Tensor]) -> None:
        """Views whose call must not be repeated, as it also does something else."""
        for tensor in aliases:
            if not self._table.is_recorded_memory(tensor):
                self._table.add_constant(tensor)
            elif not self._table.is_known(tensor):
                self._table.add_strided_view(tensor)

    def _change_view(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An op such as `t_`, which turns a tensor into a view of what it was."""
        tensor = args[0]
        slot = self._table.find(tensor)
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        pure = getattr(getattr(_aten, name, None), func._overloadname, None)
        if slot is None or slot in self._inputs or not is_view(pure):
            raise NotReplayable(
                f"{func} at {user_line()} changes the shape or memory of a tensor in place; make a "
                "new view instead, or use strategy='stream'"
            )
        self._table.rename(tensor, _aten.alias.default(tensor))
        frozen = self._table.freeze(args[1:])
        result = func(*args, **kwargs)
        view = self._table.add(VIEW, tensor)
        call = Call(pure, (slot, *frozen), self._table.freeze(kwargs), view)
        self._table.slots[view].call = call
        return result

    def _is_new_data(self, tensor: Tensor) -> bool:
        """Whether `lift_fresh` was given memory that PyTorch made, not a NumPy array's."""
        return (
            has_memory(tensor)
            and not self._table.is_known(tensor)
            and not self._table.is_recorded_memory(tensor)
            and _untyped_storage(tensor).resizable()
        )

    def _generator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Generator | None:
        """The generator that an op is about to draw from, in the state the last draw left."""
        generator = is_random(func, args, kwargs)
        if generator is None:
            return None
        if not isinstance(generator, torch.Generator):
            generator = torch.default_generator
        known = self._generators.get(generator)
        if known is not None and not torch.equal(known[0], generator.get_state()):
            raise NotReplayable(
                f"the generator of {func} at {user_line()} was seeded or advanced by something "
                "else than a torch op of the recorded function; do that outside of it"
            )
        return generator

    def _remember(self, generator: torch.Generator) -> Access:
        """The access that keeps the draws of one generator in order."""
        known = self._generators.get(generator)
        if known is None:
            token = _data_ptr(self._tokens) + len(self._generators) % _MAX_GENERATORS
            access = Access(token, token + 1, READ_WRITE)
        else:
            access = known[1]
        self._generators[generator] = (generator.get_state(), access)
        return access

    # --- replaying, in detail ------------------------------------------------------------------

    def _is_plain(self, inputs: Sequence[Tensor]) -> bool:
        """Whether neither autocast nor autograd would act on the replayed ops."""
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return False
        if not torch.is_grad_enabled():
            return True
        constants = (tensor for tensor, _ in self._table.constants.values())
        return not any(tensor.requires_grad for tensor in (*inputs, *constants))

    def _generate(self, is_plain: bool) -> None:
        if is_plain not in self._generated:
            self._generated[is_plain] = generate(
                self._calls, self._table.slots, self._pinned, self._inference, is_plain
            )
        self._functions, self._makers = self._generated[is_plain]

    def _check_input(self, slot: int, tensor: Tensor, bound: Tensor | None) -> None:
        if bound is not None and bound is not tensor:
            raise StaleArgument("arguments that were one tensor when recorded are two now")
        recorded = self._table.slots[slot].tensor
        if tensor is recorded or (
            tensor.shape == recorded.shape
            and tensor.dtype is recorded.dtype
            and tensor.stride() == recorded.stride()
            and tensor.device == recorded.device
        ):
            return
        raise StaleArgument(
            f"tensor argument {self._inputs.index(Ref(slot))} is {_describe(tensor)}, but was "
            f"{_describe(recorded)} when recorded"
        )

    def _check_aliases(self, inputs: list[Tensor]) -> None:
        constants = [tensor for tensor, _ in self._table.constants.values()]
        shared = shared_bytes(inputs, constants)
        if shared is None:
            return
        other = f"argument {shared[1]}"
        if shared[1] >= len(inputs):
            other = "a tensor that the recorded function uses otherwise"
        raise StaleArgument(f"tensor argument {shared[0]} shares memory with {other}; pass a copy")

    def _value(self, values: list[Any], slot: Ref) -> Tensor:
        if slot >= len(values):  # a view that only the return value has
            self._generated.clear()
            self._generate(is_plain=True)
            values += [None] * (len(self._table.slots) - len(values))
        if values[slot] is None:
            with torch.no_grad():
                self._makers[slot](values)
        return values[slot]


def _call(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Run an op; also whether it may do more than its arguments show.

    The kernel of an untrusted op may launch tasks of its own. A replay calls all of it again, so
    those must not be recorded one by one.
    """
    if is_trusted(func):
        return func(*args, **kwargs), False
    with entered(None):
        return func(*args, **kwargs), True


def _structure(value: Any, slots: dict[int, Ref]) -> Any:
    """A result with `Ref` for the tensors that have a slot in `slots`, None for all else."""
    if isinstance(value, (list, tuple)):
        return [_structure(item, slots) for item in value]
    return slots.get(id(value)) if isinstance(value, Tensor) else None


def _writes(func: Any) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def _byte_range(item: Access | int | torch.UntypedStorage) -> tuple[int, int]:
    if isinstance(item, Access):
        return item.start, item.end
    address = item if isinstance(item, int) else item.data_ptr()
    return address, address + 1


def _describe(tensor: Tensor) -> str:
    shape, strides = tuple(tensor.shape), tensor.stride()
    return f"{tensor.dtype} of shape {shape} and strides {strides} on {tensor.device}"
