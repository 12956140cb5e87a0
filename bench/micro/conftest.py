"""Programs for the microbenchmarks: `pytest bench/micro`."""

import pytest
import torch
import warp as wp

from bench.cases import Program, find_case

TINY_LAUNCHES = 100


@wp.kernel(enable_backward=False)
def add_one(values: wp.array(dtype=float)):
    index = wp.tid()
    values[index] = values[index] + 1.0


@pytest.fixture(autouse=True)
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny():
    """A function of `TINY_LAUNCHES` launches of one element each, on eight arrays in turn."""
    arrays = [wp.zeros(1, dtype=float, device="cpu") for _ in range(8)]

    def run():
        for index in range(TINY_LAUNCHES):
            wp.launch(add_one, dim=1, inputs=[arrays[index % 8]], device="cpu")

    run()
    return run


@pytest.fixture(scope="session")
def half_cheetah():
    """A physics step of 16 worlds; kernels are loaded."""
    program = Program(find_case("physics/half_cheetah"), 16)
    program.load_action(0)
    program.step()
    program.restore()
    return program
