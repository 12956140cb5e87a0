"""The window as its user sees it: options, misuse, nesting, and what is left when it closes."""

import os
import threading

import kernels_runtime as kernels
import pytest
import torch
import warp as wp
from warp._src import context

import kscheduler as ks
from kscheduler import errors
from kscheduler.intercept.current import current_sink

N = 64


def zeros():
    return wp.zeros(N, dtype=float, device="cpu")


def add(x, value):
    wp.launch(kernels.add, dim=N, inputs=[x, value], device="cpu")


def patched_attributes():
    """Everything that an open window replaces, as it is now."""
    return {
        "wp.launch": wp.launch,
        "wp.copy": wp.copy,
        "wp.capture_while": wp.capture_while,
        "wp.synchronize": wp.synchronize,
        "invoke": context.invoke,
        "launch": context.launch,
        "Launch.launch": context.Launch.launch,
        "core": context.runtime.core,
        "memset": context.runtime.cpu_device.memset,
        "array.numpy": wp.array.numpy,
        "array.fill_": wp.array.fill_,
        "Tensor.numpy": torch.Tensor.numpy,
        "Tensor.tolist": torch.Tensor.tolist,
        "os.fork": os.fork,
    }


def test_public_names_are_these():
    assert ks.__all__ == [
        "Error",
        "InvalidOption",
        "MixedDevices",
        "NotReplayable",
        "Report",
        "StaleArgument",
        "UndeclaredAccess",
        "UnsupportedVersion",
        "WindowError",
        "audit",
        "kernel",
        "verify",
        "window",
    ]
    assert set(errors.__all__) < set(ks.__all__)
    assert len(set(ks.__all__) - set(errors.__all__)) <= 5
    assert all(hasattr(ks, name) for name in ks.__all__)


def test_every_error_derives_from_the_base():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), ks.Error)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 0}, "size=0 must be a whole number from 1 to 4096"),
        ({"size": 4097}, "size=4097 must be a whole number from 1 to 4096"),
        ({"size": 1.5}, "size=1.5 must be"),
        ({"size": True}, "size=True must be"),
        ({"streams": 0}, "streams=0 must be a whole number from 1 to 63"),
        ({"streams": -1}, "streams=-1 must be"),
        ({"streams": "two"}, "streams='two' must be"),
        ({"strategy": "fast"}, "strategy='fast' does not exist; choose one of serial, stream"),
        ({"strategy": None}, "strategy=None does not exist"),
    ],
)
def test_wrong_options_are_refused_in_words(options, text):
    with pytest.raises(errors.InvalidOption) as caught:
        ks.window(**options)
    assert text in str(caught.value)
    assert isinstance(caught.value, ks.Error)


@pytest.mark.parametrize("strategy", ["graph", "compile"])
def test_strategies_that_call_again_are_refused_as_context_managers(strategy):
    window = ks.window(strategy=strategy)
    with pytest.raises(errors.InvalidOption, match="use it as a decorator"):
        window.__enter__()
    assert current_sink() is None


def test_only_functions_are_decorated():
    with pytest.raises(errors.InvalidOption, match="decorates functions, not int"):
        ks.window()(3)


def test_a_window_is_entered_once_at_a_time():
    x = zeros()
    window = ks.window(streams=2)
    with window:
        add(x, 1.0)
        with pytest.raises(ks.WindowError, match="open already"):
            window.__enter__()
        add(x, 1.0)
    assert (x.numpy() == 2.0).all()
    with window:  # once closed it can be used again
        add(x, 1.0)
    assert window.report.tasks == 1
    assert (x.numpy() == 3.0).all()


def test_a_window_is_left_by_the_thread_that_entered_it():
    window = ks.window(streams=2)
    caught = []

    def leave():
        try:
            window.__exit__(None, None, None)
        except ks.WindowError as error:
            caught.append(str(error))

    with window:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(caught) == 1
    assert "entered by another thread" in caught[0]


def test_leaving_a_window_that_was_not_entered_is_refused():
    with pytest.raises(ks.WindowError, match="not at all"):
        ks.window().__exit__(None, None, None)


def test_another_thread_cannot_enter_an_open_window():
    window = ks.window(streams=2)
    caught = []

    def enter():
        try:
            window.__enter__()
        except ks.WindowError as error:
            caught.append(error)

    with window:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_launches_of_other_threads_go_their_ordinary_way():
    x, y = zeros(), zeros()
    with ks.window(streams=2) as window:
        thread = threading.Thread(target=add, args=(y, 5.0))
        thread.start()
        thread.join()
        assert (y.numpy() == 5.0).all()
        add(x, 1.0)
    assert window.report.tasks == 1
    assert (x.numpy() == 1.0).all()


def test_windows_of_two_threads_do_not_meet():
    arrays = [zeros(), zeros()]
    reports = [None, None]

    def work(index):
        with ks.window(streams=2) as window:
            for _ in range(50 * (index + 1)):
                add(arrays[index], 1.0)
        reports[index] = window.report

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.tasks for report in reports] == [50, 100]
    assert (arrays[0].numpy() == 50.0).all()
    assert (arrays[1].numpy() == 100.0).all()


def test_report_is_there_after_the_end_only():
    window = ks.window(streams=2)
    with pytest.raises(ks.WindowError, match="once the window is closed"):
        _ = window.report
    with window, pytest.raises(ks.WindowError, match="once the window is closed"):
        _ = window.report
    assert window.report.tasks == 0
    assert window.report.fences == {"window_exit": 1}


class CustomError(Exception):
    pass


def add_and_raise(window, x, times, error):
    with window:
        for _ in range(times):
            add(x, 1.0)
        raise error


def test_an_exception_reaches_the_caller_unchanged():
    before = patched_attributes()
    x = zeros()
    error = CustomError("mine")
    window = ks.window(streams=2)
    with pytest.raises(CustomError) as caught:
        add_and_raise(window, x, 40, error)
    assert caught.value is error
    assert error.__context__ is None
    assert (x.numpy() == 40.0).all()  # what was submitted is finished
    assert patched_attributes() == before
    assert current_sink() is None
    assert window.report.tasks == 40
    with ks.window(streams=2) as following:
        add(x, 1.0)
    assert following.report.tasks == 1
    assert (x.numpy() == 41.0).all()


def test_keyboard_interrupt_leaves_nothing_behind():
    before = patched_attributes()
    x = zeros()
    with pytest.raises(KeyboardInterrupt):
        add_and_raise(ks.window(streams=2), x, 1, KeyboardInterrupt())
    assert patched_attributes() == before
    assert (x.numpy() == 1.0).all()


@pytest.mark.parametrize("strategy", ["stream", "graph", "auto", "serial"])
def test_an_exception_in_a_decorated_function_is_its_own(strategy):
    before = patched_attributes()
    x = zeros()

    @ks.window(streams=2, strategy=strategy)
    def step(fails):
        add(x, 1.0)
        if fails:
            raise CustomError("mine")
        return 3

    with pytest.raises(CustomError, match="mine"):
        step(True)
    assert patched_attributes() == before
    assert (x.numpy() == 1.0).all()
    for _ in range(3):
        assert step(False) == 3
    assert (x.numpy() == 4.0).all()


def test_an_open_window_patches_and_a_closed_one_does_not():
    before = patched_attributes()
    with ks.window(streams=2):
        assert wp.launch is not before["wp.launch"]
        with ks.window():
            pass
        assert wp.launch is not before["wp.launch"]
    assert patched_attributes() == before


def test_importing_patches_nothing():
    assert wp.launch.__module__ == "warp._src.context"
    assert context.invoke.__module__ == "warp._src.context"


def test_nested_windows_share_their_streams_and_count_their_own_tasks():
    x, y = zeros(), zeros()
    with ks.window(streams=2) as outer:
        add(x, 1.0)
        add(x, 1.0)
        with ks.window(streams=4, size=1) as inner:
            add(y, 1.0)
            add(x, 1.0)
            add(x, 1.0)
        add(y, 1.0)
    assert inner.report.tasks == 3
    assert outer.report.tasks == 6
    assert (x.numpy() == 4.0).all()
    assert (y.numpy() == 2.0).all()


def test_serial_windows_intercept_nothing():
    x = zeros()
    before = patched_attributes()
    with ks.window(strategy="serial") as window:
        assert patched_attributes() == before
        add(x, 1.0)
    assert window.report.strategy == "serial"
    assert "nothing is intercepted" in str(window.report)


def test_serial_inside_a_stream_waits_for_it():
    x = zeros()
    with ks.window(streams=2) as outer:
        add(x, 1.0)
        with ks.window(strategy="serial"):
            assert outer._scope.sink.core.in_flight == 0
            add(x, 1.0)
    assert (x.numpy() == 2.0).all()


def test_a_fork_inside_a_window_is_refused():
    with ks.window(streams=2), pytest.raises(ks.WindowError, match="fork before the window"):
        os.fork()


def test_wrong_arguments_of_a_launch_raise_as_without_a_window():
    x = zeros()
    with pytest.raises(Exception) as plain:  # noqa: PT011 (compared below)
        wp.launch(kernels.add, dim=N, inputs=[x], device="cpu")
    with ks.window(streams=2):
        add(x, 1.0)
        add(x, 1.0)  # prepared by now
        with pytest.raises(type(plain.value)) as inside:
            wp.launch(kernels.add, dim=N, inputs=[x], device="cpu")
        add(x, 1.0)
    assert str(inside.value) == str(plain.value)
    assert (x.numpy() == 3.0).all()


def test_wrong_argument_types_raise_as_without_a_window():
    x = zeros()
    ints = wp.zeros(N, dtype=int, device="cpu")
    with pytest.raises(RuntimeError) as plain:
        wp.launch(kernels.add, dim=N, inputs=[ints, 1.0], device="cpu")
    with ks.window(streams=2):
        add(x, 1.0)
        add(x, 1.0)
        with pytest.raises(RuntimeError) as inside:
            wp.launch(kernels.add, dim=N, inputs=[ints, 1.0], device="cpu")
    assert str(inside.value) == str(plain.value)


def test_printed_report_names_counts_and_fences():
    x = zeros()
    with ks.window(streams=2) as window:
        add(x, 1.0)
        x.numpy()
        add(x, 1.0)
    text = str(window.report)
    assert "stream, 2 streams" in text
    assert "host_read" in text
    assert "window_exit" in text
