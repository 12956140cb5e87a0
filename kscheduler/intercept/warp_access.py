"""What each argument of a compiled Warp kernel is used for: read, written, both, or not at all.

Warp keeps the C++ that it generated next to the binary that it compiled from it. That text, and not
the Python function or its annotations, is what runs, so it is what is analysed (`warp_flow`):
nothing in Warp is rebuilt, changed or even called for it. A module is analysed once, and the result
is kept in memory and on disk under the module's hash, so that kernels of one name in different
versions or closures are never mixed up.

Guarantee: an access that a launch makes is in the result. Where the analysis is not possible the
result is the weakest one (everything read and written, opaque, hidden) and `failures` says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kscheduler.access import READ, READ_WRITE, WRITE
from kscheduler.intercept.versions import require_warp
from kscheduler.intercept.warp_flow import summarise_module
from kscheduler.intercept.warp_source import Types, parse_module
from kscheduler.intercept.warp_summary import Summary

__all__ = ["EXACT_READS", "KernelAccess", "failures", "forget", "kernel_access"]

# False: an array argument that the kernel never dereferences counts as read all the same. Looked at
# when a module is first met; call `forget` after changing it.
EXACT_READS = True

# Why a kernel's accesses are the weakest ones, by its mangled name; under "cache" why results are
# not kept on disk. Shown in the report.
failures: dict[str, str] = {}

_BINARY_SUFFIX = re.compile(r"(?:\.cpu[0-9a-f]+)?\.o$|\.sm\w+\.(?:ptx|cubin)$")
_TILES = re.compile(r"tile_(?!shared_storage_t)\w*(?:_t\b| *[<(])|block_shared")


class KernelAccess(NamedTuple):
    """Accesses of one compiled kernel.

    Args:
        modes: Per argument, in the order of the kernel's signature: `READ`, `WRITE` or
            `READ_WRITE`; 0 for a scalar, and for an array that is proved never to be dereferenced.
            That of a struct is the one of all arrays in its fields together.
        opaque: Per argument: it leads to more memory than its array header, or the headers in the
            fields of a struct, describe (indices of an indexed array, arrays in the elements of an
            array, the object behind a handle). That memory may be read and written. May be true
            where the mode is 0: a handle is a scalar.
        uses_tiles: A kernel of this module uses tiles. Warp keeps a static pointer per module for
            them, so that no two kernels of the module may overlap.
        atomics: The kernel uses atomics.
        hidden: The kernel may touch memory that no argument leads to.
    """

    modes: tuple[int, ...]
    opaque: tuple[bool, ...]
    uses_tiles: bool
    atomics: bool
    hidden: bool = False


_Labelled = tuple[tuple[str, ...], KernelAccess]
_known: dict[tuple[bytes, bool, str], _Labelled] = {}


def kernel_access(kernel: Any, module_exec: Any) -> KernelAccess:
    """The accesses of a kernel, as compiled in a loaded module.

    Args:
        kernel: A `warp.Kernel`, of a generic kernel the overload that is launched.
        module_exec: The `ModuleExec` that the launch uses.

    Returns:
        Its accesses; the weakest ones where it could not be analysed, with the reason in
        `failures`.

    Raises:
        UnsupportedVersion: Warp is of a version whose generated code this release does not know.
    """
    name = module_exec.get_kernel_mangled_name(kernel)
    key = (module_exec.module_hash, module_exec.device.is_cpu, name)
    found = _known.get(key)
    if found is None:
        found = _known[key] = _look_up(kernel, module_exec, name)
    return found[1]


def forget() -> None:
    """Drop all results kept in memory, and the reasons in `failures`."""
    _known.clear()
    failures.clear()


def _look_up(kernel: Any, module_exec: Any, name: str) -> _Labelled:
    labels = tuple(arg.label for arg in kernel.adj.args)
    reason = ""
    if kernel.module.options["strip_hash"]:
        reason = "the module's name has no hash (strip_hash), so its source may be of another build"
    else:
        try:
            module = _load_module(module_exec)
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            reason = f"its generated source could not be analysed ({type(error).__name__}: {error})"
        else:
            is_cpu = module_exec.device.is_cpu
            for other, found in module.items():
                _known[module_exec.module_hash, is_cpu, other] = found
            if name not in module:
                reason = "it is not in the generated source of its module"
            elif module[name][0] != labels:
                reason = "its arguments are not those in the generated source of its module"
            else:
                return module[name]
    failures[name] = reason
    return labels, _weakest(kernel)


def _weakest(kernel: Any) -> KernelAccess:
    from warp._src.codegen import Struct
    from warp._src.types import is_array

    modes = tuple(
        READ_WRITE if is_array(arg.type) or isinstance(arg.type, Struct) else 0
        for arg in kernel.adj.args
    )
    return KernelAccess(modes, (True,) * len(modes), uses_tiles=True, atomics=True, hidden=True)


def _load_module(module_exec: Any) -> dict[str, _Labelled]:
    device = "cpu" if module_exec.device.is_cpu else "cuda"
    module = f"{module_exec.module_hash.hex()}-{device}"
    path = f"{_cache_directory(os.environ.get('KSCHEDULER_CACHE_DIR', ''))}/{module}.json"
    stored = _read_cache(path, module)
    if stored is None:
        stored = _analyse(_source_path(module_exec).read_text(encoding="utf-8"))
        _write_cache(path, {"module": module, **stored})
    return {name: _labelled(entry, stored["uses_tiles"]) for name, entry in stored["kernels"]}


def _source_path(module_exec: Any) -> Path:
    if module_exec.binary_path is None:
        raise ValueError("the module was loaded without a path")
    binary = Path(module_exec.binary_path)
    suffix = ".cpp" if module_exec.device.is_cpu else ".cu"
    return binary.with_name(_BINARY_SUFFIX.sub("", binary.name) + suffix)


def _labelled(entry: list[Any], uses_tiles: bool) -> _Labelled:
    labels, modes, arrays, opaque, atomics, hidden = entry
    if not EXACT_READS:
        modes = [mode or READ * is_array for mode, is_array in zip(modes, arrays, strict=True)]
    flags = tuple(bool(flag) for flag in opaque)
    return tuple(labels), KernelAccess(
        tuple(modes), flags, bool(uses_tiles), bool(atomics), bool(hidden)
    )


# Analysis of one module


def _analyse(text: str) -> dict[str, Any]:
    """The result for a module in its stored form."""
    types, functions = parse_module(text)
    summaries = [one for one in summarise_module(types, functions) if one.is_kernel]
    return {
        "uses_tiles": _TILES.search(text) is not None,
        "kernels": [(one.name, _entry(types, one)) for one in summaries],
    }


def _entry(types: Types, summary: Summary) -> list[Any]:
    labels, modes, arrays, opaque = [], [], [], []
    handles = [types.holds_handle(ctype) for _, ctype in summary.parameters]
    # A handle that came in no argument is a constant of the kernel.
    hidden = summary.hidden or (summary.handles and not any(handles))
    for index, (name, ctype) in enumerate(summary.parameters):
        mode = READ * (summary.reads >> index & 1) | WRITE * (summary.writes >> index & 1)
        unseen = mode != 0 and not types.is_listed(ctype)
        labels.append(name.removeprefix("var_"))
        modes.append(mode)
        arrays.append(int(types.is_carrier(ctype)))
        opaque.append(
            int(
                unseen
                or bool(summary.opaque >> index & 1)
                or (summary.handles and handles[index])
                or hidden
            )
        )
    return [labels, modes, arrays, opaque, int(summary.atomics), int(hidden)]


# Results on disk


@lru_cache(maxsize=4)
def _cache_directory(chosen: str) -> str:
    """Where results are kept: a new place for every version of Warp and of the analysis."""
    root = Path(chosen) if chosen else Path.home() / ".cache" / "kscheduler"
    analysis = hashlib.sha256()
    for part in ("source", "builtins", "summary", "flow", "access"):
        analysis.update(Path(__file__).with_name(f"warp_{part}.py").read_bytes())
    return str(root / f"{require_warp()}-{analysis.hexdigest()[:12]}")


def _read_cache(path: str, module: str) -> dict[str, Any] | None:
    """The stored result, or None where there is none that can be trusted."""
    try:
        with open(path, "rb") as file:
            stored = json.loads(file.read())
        if stored["module"] != module or not isinstance(stored["uses_tiles"], bool):
            return None
        for name, (labels, modes, arrays, opaque, _, _) in stored["kernels"]:
            sizes = {len(labels), len(modes), len(arrays), len(opaque)}
            if not isinstance(name, str) or len(sizes) != 1 or not set(modes) <= {0, 1, 2, 3}:
                return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return dict(stored)


def _write_cache(path: str, stored: dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(stored, file)
        os.replace(temporary, path)
    except OSError as error:
        failures["cache"] = f"results of the access analysis are not kept on disk: {error}"
