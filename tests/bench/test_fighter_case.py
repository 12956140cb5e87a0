"""The case env/fighter: parts made by hand give the bits of program order and leave no trace."""

import pytest

import fighter_env.env as environment
from bench.arms import Arm, find_strategy
from bench.cases import Program, find_case
from bench.errors import UnusableOptionError
from bench.measure import unequal_arrays


@pytest.fixture(scope="module")
def program():
    """Two worlds: one restarts, one is punched at, within a few steps."""
    return Program(find_case("env/fighter"), 2, steps=12)


def run(program, step):
    program.restore()
    outputs = None
    for index in range(12):
        program.load_action(index)
        outputs = step()
    return program.snapshot(outputs)


def test_captured_halves_of_a_substep_give_the_bits_of_program_order(program):
    expected = run(program, program.step)
    captured = Arm(find_strategy("warp-graph")).prepare(program)
    assert unequal_arrays(expected, run(program, captured)) == []
    assert not {"solve", "derive"} & set(vars(program.task.env.physics))


def test_replaced_functions_are_called_and_put_back(program):
    called = []

    def watched(part):
        def call(*args, **kwargs):
            called.append(part.__name__)
            return part(*args, **kwargs)

        return call

    before = environment.observe
    expected = run(program, program.step)
    assert unequal_arrays(expected, run(program, program.task.by_parts(torch_part=watched))) == []
    assert {"observe", "reward_terms", "weigh", "remember", "advance"} <= set(called)
    assert environment.observe is before
    assert "remember" not in vars(program.task.env.sight)


def test_other_frame_skip_is_refused():
    with pytest.raises(UnusableOptionError, match="substeps of its own"):
        Program(find_case("env/fighter"), 2, frame_skip=4)
