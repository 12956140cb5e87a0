"""Settings that cannot be used are refused with their name and what would be right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fighter_env import FighterConfig, FighterError, only
from fighter_env.baselines import make_baseline
from fighter_env.body import build_model
from fighter_env.clips import load_clip
from fighter_env.config import (
    EpisodeConfig,
    OpponentConfig,
    PhysicsConfig,
    RandomConfig,
    SightConfig,
    TaskConfig,
)
from fighter_env.errors import ClipError, ConfigError, FingerprintError
from fighter_env.fingerprint import compare, fingerprint


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (FighterConfig(action="torque"), "targets"),
        (FighterConfig(tasks=TaskConfig(ratios=(0.5, 0.5, 0.5, 0.0, 0.0))), "sum to 1"),
        (FighterConfig(tasks=TaskConfig(ratios=(1.0,))), "one share for each"),
        (FighterConfig(sight=SightConfig(delay=0.03)), "multiple of the control step"),
        (FighterConfig(sight=SightConfig(rays=0)), r"sight\.rays"),
        (FighterConfig(sight=SightConfig(field_of_view=0.0)), "field_of_view"),
        (FighterConfig(opponent=OpponentConfig(rest=(2.0, 1.0))), r"opponent\.rest"),
        (FighterConfig(opponent=OpponentConfig(weights=(1.0,))), "one weight"),
        (FighterConfig(physics=PhysicsConfig(substeps=0)), "substeps"),
        (FighterConfig(physics=PhysicsConfig(substeps=2.5)), r"physics\.substeps.*whole"),
        (FighterConfig(physics=PhysicsConfig(nconmax=1.5)), r"physics\.nconmax.*whole"),
        (FighterConfig(physics=PhysicsConfig(njmax=0)), r"physics\.njmax"),
        (FighterConfig(physics=PhysicsConfig(threads=-1)), r"physics\.threads"),
        (FighterConfig(first_world=-1), "first_world"),
        (FighterConfig(sight=SightConfig(rays=1.5)), r"sight\.rays.*whole"),
        (FighterConfig(sight=SightConfig(seen_share=0.0)), r"sight\.seen_share"),
        (FighterConfig(sight=SightConfig(seen_share=1.1)), r"sight\.seen_share"),
        (FighterConfig(sight=SightConfig(longest_age=0.1)), r"sight\.longest_age"),
        (FighterConfig(sight=SightConfig(delay=-0.1)), r"sight\.delay"),
        (FighterConfig(opponent=OpponentConfig(speed=(0.0, 1.0))), r"opponent\.speed"),
        (FighterConfig(opponent=OpponentConfig(rest=(1.0, 2.0, 3.0))), r"opponent\.rest"),
        (FighterConfig(opponent=OpponentConfig(rest=(1.0,))), r"opponent\.rest"),
        (FighterConfig(episode=EpisodeConfig(seconds=0.01)), r"episode\.seconds"),
        (FighterConfig(random=RandomConfig(action_delay=1.5)), r"action_delay.*whole"),
        (FighterConfig(random=RandomConfig(action_delay=-1)), "action_delay"),
        (FighterConfig(random=RandomConfig(mass=(0.0, 1.0))), r"random\.mass"),
        (FighterConfig(tasks=TaskConfig(push_seconds=0.0)), r"tasks\.push_seconds"),
        (FighterConfig(tasks=TaskConfig(push_seconds=-0.1)), r"tasks\.push_seconds"),
        (FighterConfig(tasks=TaskConfig(ratios=(float("nan"), 1.0, 0, 0, 0))), r"tasks\.ratios"),
    ],
)
def test_unusable_setting_is_refused_by_name(config, words):
    with pytest.raises(ConfigError, match=words):
        config.check()


def test_default_settings_are_usable():
    FighterConfig().check()


def test_unknown_task_clip_and_baseline_are_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="opponent, block, walk, bag, push"):
        only("dance")
    with pytest.raises(ClipError, match="jab"):
        load_clip("headbutt")
    with pytest.raises(ConfigError, match="posture, guard, random"):
        make_baseline("best", None)
    assert issubclass(ConfigError, FighterError)


def prints(config=None, model=None):
    clips = [load_clip(name) for name in ("guard_idle", "jab")]
    return fingerprint(model or build_model(), clips, config or FighterConfig())


def test_fingerprint_names_what_changed():
    first = prints()
    assert first == prints()
    model = build_model()
    model.jnt_range[model.joint("left_ankle_flex").id, 1] += 0.2
    changed = prints(model=model)
    assert {k for k in first if first[k] != changed[k]} == {"all", "body.jnt_range"}
    config = replace(FighterConfig(), tasks=replace(TaskConfig(), walk_speed=0.9))
    with pytest.raises(FingerprintError, match=r"config\.tasks\.walk_speed"):
        compare(first, prints(config))


def test_fingerprint_does_not_care_about_threads_or_numbering():
    config = FighterConfig(physics=PhysicsConfig(threads=7), first_world=8)
    compare(prints(), prints(config))
