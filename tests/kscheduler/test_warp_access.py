"""Each way of reaching memory from a Warp kernel is seen, and nothing more is declared."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest
import warp as wp
import warp._src.context as context
from access_audit import AccessAudit

from kscheduler.errors import UnsupportedVersion
from kscheduler.intercept import versions, warp_access
from kscheduler.intercept.warp_flow import summarise_module
from kscheduler.intercept.warp_source import parse_module

# Per argument: r read, w write, rw both, - neither (or a scalar); ! opaque.
EXPECTED = {
    "plain": "r w",
    "write_constant": "w",
    "in_place": "rw",
    "add_assign": "r rw",
    "atomic_sum": "r rw",
    "atomic_claim": "rw w",
    "view_written_by_function": "r w",
    "view_written_two_deep": "r w",
    "slice_is_a_view": "r w",
    "one_function_two_roles": "r rw w",
    "several_results": "r w w",
    "shape_only": "- w",
    "null_check_only": "- w",
    "unused_argument": "- w -",
    "unused_by_function": "r - w",
    "branch_picks_array": "w w -",
    "branch_picks_source": "r r w -",
    "loop_swaps_arrays": "w w -",
    "function_returns_array": "w w -",
    "struct_with_arrays": "rw w",
    "struct_with_a_handle": "-! w",
    "struct_in_array_with_arrays": "r! w",
    "struct_arrays_unused": "- w",
    "struct_in_array_writes_through": "rw! r",
    "struct_of_numbers": "- r w",
    "local_struct_of_arrays": "w w",
    "indexed": "r! w",
    "component_of_vector": "w r",
    "component_of_matrix": "rw r",
    "field_of_struct": "w r",
    "field_of_struct_read": "r w",
    "array_from_address": "-! w",
    "address_taken": "rw! w",
    "generic": "r w",
    "reads_sorted": "r w",
    "prints": "r",
    "native_snippet": "rw rw",
    "written_through_reference": "r w",
    "static_condition": "r w -",
    "mesh_query": "-! r w",
    "mesh_query_by_array": "r! r w",
    "bvh_query": "-! w",
    "grid_query": "-! r w",
    "number_of_64_bits": "- w",
    "tile_copy": "r w",
    "tile_atomic": "r rw",
    "tile_product": "r r w",
}
TILES = {"tile_copy", "tile_atomic", "tile_product"}
ATOMICS = {"add_assign", "atomic_sum", "atomic_claim", "component_of_matrix", "tile_atomic"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KSCHEDULER_CACHE_DIR", str(tmp_path / "cache"))
    warp_access.forget()
    yield tmp_path / "cache"
    warp_access.forget()


@pytest.fixture(scope="module")
def cpu():
    wp.overload(kernels.generic, [wp.array(dtype=wp.int16), wp.array(dtype=wp.int16)])
    return wp.get_device("cpu")


def load(kernel, device):
    """(launchable kernel, its loaded module)."""
    if kernel.is_generic:
        kernel = next(iter(kernel.overloads.values()))
    return kernel, kernel.module.load(device, 1)


def in_letters(access):
    letters = ("-", "r", "w", "rw")
    return " ".join(
        letters[mode] + "!" * opaque
        for mode, opaque in zip(access.modes, access.opaque, strict=True)
    )


def test_every_kernel_of_the_library_has_an_expectation():
    library = {name for name, one in vars(kernels).items() if isinstance(one, wp.Kernel)}
    assert library == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_accesses_of(name, cpu):
    access = warp_access.kernel_access(*load(getattr(kernels, name), cpu))
    assert in_letters(access) == EXPECTED[name]
    assert access.uses_tiles == (name in TILES)
    assert access.atomics == (name in ATOMICS)
    assert not access.hidden
    assert warp_access.failures == {}


@pytest.mark.parametrize("make", [kernels.make_closure, kernels.make_static])
def test_kernels_of_one_name_are_kept_apart(make, cpu):
    first, second = (load(make(choice), cpu) for choice in (True, False))
    assert first[0].key == second[0].key
    assert in_letters(warp_access.kernel_access(*first)) == "w -"
    assert in_letters(warp_access.kernel_access(*second)) == "- w"


def test_cuda_source_gives_the_same_accesses(cpu):
    module = kernels.plain.module
    options = module.resolve_options(wp.config, 256)
    results = [
        warp_access._analyse(
            context.ModuleBuilder(module, options | {"output_arch": arch}, target=device).codegen(
                device
            )
        )
        for device, arch in (("cpu", None), ("cuda", 80))
    ]
    assert results[0] == results[1]
    assert len(results[0]["kernels"]) == len(EXPECTED) - len(TILES)


def test_line_directives_change_nothing(cpu):
    module = kernels.plain.module
    options = module.resolve_options(wp.config, 1) | {"output_arch": None}
    plain, marked = (
        context.ModuleBuilder(module, options | {"lineinfo": lineinfo}, target="cpu").codegen("cpu")
        for lineinfo in (False, True)
    )
    assert "#line" in marked
    assert warp_access._analyse(plain) == warp_access._analyse(marked)


def test_what_warp_itself_marks_is_declared(cpu):
    """Warp's own flags miss accesses, but what they contain must be in the result."""
    module = kernels.plain.module
    options = module.resolve_options(wp.config, 1) | {"output_arch": None}
    builder = context.ModuleBuilder(
        module, options | {"verify_autograd_array_access": True}, target="cpu"
    )
    module_exec = module.load(cpu, 1)
    marked = 0
    for kernel in builder.kernels:
        modes = warp_access.kernel_access(kernel, module_exec).modes
        for arg, mode in zip(kernel.adj.args, modes, strict=True):
            marks = arg.is_read | arg.is_write << 1
            if kernel is kernels.written_through_reference:
                marks &= ~1  # a subscript passed as a reference is taken for a read
            if wp._src.types.is_array(arg.type):
                assert mode & marks == marks, (kernel.key, arg.label)
                marked += marks != 0
    assert marked > len(EXPECTED)


def test_launches_do_what_is_declared(cpu):
    """Runs the kernels that take only arrays of numbers; see `AccessAudit`."""
    generator = np.random.default_rng(0)
    with AccessAudit() as audit:
        for name in EXPECTED:
            kernel, module_exec = load(getattr(kernels, name), cpu)
            if any(warp_access.kernel_access(kernel, module_exec).opaque):
                continue
            arguments = []
            for arg in kernel.adj.args:
                if wp._src.types.matches_array_class(arg.type, wp.array):
                    shape = (8,) * arg.type.ndim
                    raw = generator.integers(1, 4, 8**arg.type.ndim * 64).astype(np.float32)
                    items = wp.zeros(shape, dtype=arg.type.dtype, device=cpu)
                    span = items.capacity // 4
                    wp.copy(
                        wp.array(ptr=items.ptr, shape=span, dtype=float, device=cpu),
                        wp.array(raw[:span], dtype=float, device=cpu),
                    )
                    arguments.append(items)
                elif arg.type in (int, wp.int32):
                    arguments.append(3)
                elif arg.type in (float, wp.float32):
                    arguments.append(0.5)
            if len(arguments) == len(kernel.adj.args):
                wp.launch(kernel, dim=4, inputs=arguments, device=cpu, block_dim=1)
    assert audit.faults == []
    assert len(audit.launches) > 25
    assert audit.replaced > 25


def test_inexact_reads_count_arrays_that_are_never_dereferenced(cpu, monkeypatch):
    monkeypatch.setattr(warp_access, "EXACT_READS", False)
    access = warp_access.kernel_access(*load(kernels.unused_argument, cpu))
    assert in_letters(access) == "r w -"


def test_analysis_leaves_warp_as_it_was(cpu):
    kernel, module_exec = load(kernels.view_written_two_deep, cpu)

    def state():
        adjoint = {name: id(value) for name, value in vars(kernel.adj).items()}
        hashers = {dim: hasher.get_hash() for dim, hasher in kernel.module.hashers.items()}
        files = sorted(os.listdir(Path(module_exec.binary_path).parent))
        return kernel.hash, adjoint, hashers, dict(kernel.module.execs), files

    before = state()
    warp_access.kernel_access(kernel, module_exec)
    assert state() == before


# Results on disk


def stored_files(cache):
    return sorted(cache.glob("*/*.json"))


def test_next_lookup_needs_no_source(cpu, own_cache, monkeypatch):
    kernel, module_exec = load(kernels.in_place, cpu)
    first = warp_access.kernel_access(kernel, module_exec)
    assert len(stored_files(own_cache)) == 1
    warp_access.forget()
    monkeypatch.setattr(warp_access, "_source_path", lambda module_exec: Path("/nowhere"))
    assert warp_access.kernel_access(kernel, module_exec) == first
    assert warp_access.failures == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"module": "another", "uses_tiles": false, "kernels": []}',
        b'{"module": "MODULE", "uses_tiles": 0, "kernels": []}',
        b'{"module":"MODULE","uses_tiles":true,"kernels":[["k",[["x"],[9],[1],[0],0,0]]]}',
        b'{"module":"MODULE","uses_tiles":true,"kernels":[["k",[["x"],[],[1],[0],0,0]]]}',
        b'{"module":"MODULE","uses_tiles":true,"kernels":[["k",[]]]}',
    ],
)
def test_bad_file_is_ignored_and_written_again(cpu, own_cache, content):
    kernel, module_exec = load(kernels.in_place, cpu)
    first = warp_access.kernel_access(kernel, module_exec)
    (file,) = stored_files(own_cache)
    good = file.read_bytes()
    file.write_bytes(content.replace(b"MODULE", file.stem.encode()))
    warp_access.forget()
    assert warp_access.kernel_access(kernel, module_exec) == first
    assert json.loads(file.read_bytes()) == json.loads(good)
    assert warp_access.failures == {}


def test_unwritable_disk_costs_the_cache_only(cpu, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KSCHEDULER_CACHE_DIR", str(tmp_path / "file"))
    access = warp_access.kernel_access(*load(kernels.in_place, cpu))
    assert in_letters(access) == EXPECTED["in_place"]
    assert list(warp_access.failures) == ["cache"]


def test_another_process_finds_the_results(cpu, own_cache):
    warp_access.kernel_access(*load(kernels.in_place, cpu))
    (file,) = stored_files(own_cache)
    before = file.stat().st_mtime_ns
    program = (
        "import warp as wp, kernels\n"
        "wp.init()\n"
        "from kscheduler.intercept import warp_access\n"
        "wp.overload(kernels.generic, [wp.array(dtype=wp.int16), wp.array(dtype=wp.int16)])\n"
        "warp_access._source_path = None\n"
        "module_exec = kernels.in_place.module.load('cpu', 1)\n"
        "assert warp_access.kernel_access(kernels.in_place, module_exec).modes == (3,)\n"
        "assert not warp_access.failures\n"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert file.stat().st_mtime_ns == before


# What cannot be analysed


def weakest(access):
    return access.uses_tiles and access.hidden and all(access.opaque)


def test_missing_source_gives_the_weakest_accesses(cpu, monkeypatch):
    kernel, module_exec = load(kernels.unused_argument, cpu)
    monkeypatch.setattr(warp_access, "_source_path", lambda module_exec: Path("/nowhere"))
    access = warp_access.kernel_access(kernel, module_exec)
    assert access.modes == (3, 3, 0)
    assert weakest(access)
    (reason,) = warp_access.failures.values()
    assert "FileNotFoundError" in reason


def test_source_of_another_kernel_gives_the_weakest_accesses(cpu, tmp_path, monkeypatch):
    kernel, module_exec = load(kernels.unused_argument, cpu)
    text = warp_access._source_path(module_exec).read_text(encoding="utf-8")
    name = module_exec.get_kernel_mangled_name(kernel)
    monkeypatch.setattr(warp_access, "_source_path", lambda module_exec: tmp_path / "x.cpp")
    for changed, reason in (
        (text.replace(name, "other_kernel"), "not in the generated source"),
        (
            text.replace("_wp_args->scale;", "_wp_args->size;").replace("var_scale", "var_size"),
            "arguments",
        ),
    ):
        warp_access.forget()
        shutil.rmtree(os.environ["KSCHEDULER_CACHE_DIR"], ignore_errors=True)
        (tmp_path / "x.cpp").write_text(changed, encoding="utf-8")
        assert weakest(warp_access.kernel_access(kernel, module_exec))
        assert reason in warp_access.failures[name]


def test_module_without_hash_in_its_name_is_not_trusted(cpu, monkeypatch):
    kernel, module_exec = load(kernels.plain, cpu)
    monkeypatch.setitem(kernel.module.options, "strip_hash", True)
    assert weakest(warp_access.kernel_access(kernel, module_exec))


def test_unknown_warp_is_refused(cpu, monkeypatch):
    monkeypatch.setattr(wp, "__version__", "1.20.0")
    warp_access._cache_directory.cache_clear()
    with pytest.raises(UnsupportedVersion, match=r"warp-lang~=1\.19\.0"):
        versions.require_warp()
    with pytest.raises(UnsupportedVersion):
        warp_access.kernel_access(*load(kernels.plain, cpu))


# Statements that are not understood

MODULE = """
struct wp_args_k_0123 {{
    wp::array_t<wp::float32> x;
    wp::array_t<wp::float32> y;
}};

template <bool wp_linear_contiguous>
static void k_0123_cpu_kernel_forward(
    wp::launch_bounds_t<1> dim,
    size_t task_index,
    wp_args_k_0123 *_wp_args)
{{
    //---------
    // argument vars
    wp::array_t<wp::float32> var_x = _wp_args->x;
    wp::array_t<wp::float32> var_y = _wp_args->y;
    //---------
    // primal vars
    wp::float32* var_0;
    wp::float32 var_1;
    wp::array_t<wp::float32> var_2;
    wp::int32 var_3;
    const wp::uint64 var_4 = 140ull;
    //---------
    // forward
    {statement}
}}
"""


@pytest.mark.parametrize(
    ("statement", "reads", "writes", "opaque"),
    [
        ("var_1 = wp::load(wp::address(var_x, var_3));", 0b01, 0b00, 0b00),
        ("var_1 = wp::a_new_builtin(var_x, var_3);", 0b01, 0b01, 0b00),
        ("var_1 = a_new_function_0(var_x, var_3);", 0b01, 0b01, 0b01),
        ("wp::adj_address(var_x, var_3, var_1);", 0b01, 0b01, 0b01),
        ("WP_NEW_MACRO(var_x, { var_3 }, [=] { return var_y; });", 0b11, 0b11, 0b11),
        ("var_0 = wp::a_new_builtin(var_x);\n    *var_0 = var_1;", 0b01, 0b01, 0b00),
        ("var_0 = var_y @ var_x;\n    *var_0 = var_1;", 0b11, 0b11, 0b11),
        ("var_2 = wp::a_new_builtin(var_x);\n    wp::array_store(var_2, var_3, var_1);", 1, 1, 0),
        ("var_2 = wp::copy(var_y);\n    wp::a_new_builtin(var_2);", 0b10, 0b10, 0b00),
        ("start_for_0:;\n    if (var_y) {\n    }\n    goto start_for_0;", 0b00, 0b00, 0b00),
    ],
)
def test_statement(statement, reads, writes, opaque):
    types, functions = parse_module(MODULE.format(statement=statement))
    (summary,) = summarise_module(types, functions)
    assert summary.is_kernel
    assert [name for name, _ in summary.parameters] == ["var_x", "var_y"]
    assert (summary.reads, summary.writes, summary.opaque) == (reads, writes, opaque)


@pytest.mark.parametrize(
    ("statement", "hidden"),
    [
        ("wp::array_store(var_x, var_3, var_4);", False),
        ("var_1 = wp::volume_lookup_f(var_4, var_3, var_3, var_3);", True),
        ("var_1 = wp::add(var_1, wp::mesh_get_something(var_4));", True),
        ("var_2 = wp::array_t<wp::float32>(var_4, var_3);", True),
        ("var_1 = elsewhere::lookup(var_3);", True),
        ("WP_DET_STORE_IF_ACTIVE(det_ctx, var_x, var_3, var_1);", True),
        ('printf("a::b %d", var_3);', False),
    ],
)
def test_memory_that_no_argument_leads_to(statement, hidden):
    ((_, (_, _, _, opaque, _, found)),) = warp_access._analyse(MODULE.format(statement=statement))[
        "kernels"
    ]
    assert bool(found) == hidden
    assert opaque == [int(hidden)] * 2
