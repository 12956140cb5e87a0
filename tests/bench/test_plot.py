"""The timeline: one row per stream, a readable PNG."""

from matplotlib import image

from bench.plot import plot_timeline
from kscheduler.trace import TraceEvent


def test_timeline_is_a_png_with_a_bar_per_stream(tmp_path):
    events = [TraceEvent(f"kernel {i % 30}", i % 2, 10.0 * i, 18.0) for i in range(100)]
    path = tmp_path / "timeline.png"
    plot_timeline(events, "one step", path)
    pixels = image.imread(path)[:, :, :3]
    assert pixels.shape[1] > 1000
    coloured = (abs(pixels - pixels.mean(axis=2, keepdims=True)).max(axis=2) > 0.1).any(axis=1)
    bars = [run for run in _runs(coloured) if run > 40]
    assert len(bars) == 2


def test_timeline_of_one_instant_task_is_drawn(tmp_path):
    path = tmp_path / "timeline.png"
    plot_timeline([TraceEvent("noop", 0, 5.0, 0.0)], "one step", path)
    assert path.stat().st_size > 1000


def _runs(flags):
    """Lengths of the stretches of True."""
    lengths, length = [], 0
    for flag in [*flags, False]:
        if flag:
            length += 1
        elif length:
            lengths.append(length)
            length = 0
    return lengths
