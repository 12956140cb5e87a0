"""Films: what is missing is said before anything is simulated."""

from __future__ import annotations

import sys

import pytest

from fighter_env import __main__ as command
from fighter_env import film
from fighter_env.errors import ConfigError


@pytest.fixture
def no_scene(monkeypatch):
    """Fails the test when a fight is set up."""
    monkeypatch.setattr(film, "_scene", lambda *_: pytest.fail("simulated first"))


def test_film_without_its_package_is_refused_before_it_is_simulated(
    no_scene, monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match="imageio-ffmpeg"):
        film.render(tmp_path / "a.mp4")
    monkeypatch.setattr(sys, "argv", ["fighter_env", "render", "--out", str(tmp_path / "a.mp4")])
    with pytest.raises(SystemExit):
        command.main()
    assert "kscheduler[render]" in " ".join(capsys.readouterr().err.split())


def test_other_endings_are_refused_before_anything_is_simulated(no_scene, tmp_path):
    with pytest.raises(ConfigError, match=r"\.png or \.mp4"):
        film.render(tmp_path / "a.gif")
