"""Clips: what ships, what is refused, what is imported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fighter_env import anatomy
from fighter_env.clips import BUILT_IN, Clip, load_clip, save_clip
from fighter_env.clips.__main__ import with_hand
from fighter_env.clips.bvh import import_bvh, read_bvh
from fighter_env.clips.deepmimic import import_deepmimic
from fighter_env.clips.generate import make_clips
from fighter_env.clips.retarget import POINTS, clip_from_points
from fighter_env.errors import ClipError

MOTIONS = Path(__file__).parents[3] / "shared" / "motions"
recorded = pytest.mark.skipif(not MOTIONS.is_dir(), reason="recorded motions are not at hand")


def lengths(clip):
    """Distance of each segment from its parent, shape (T, 12)."""
    names = [segment.name for segment in anatomy.BODIES]
    parents = [names.index(segment.parent) for segment in anatomy.BODIES[1:]]
    return np.linalg.norm(clip.pos[:, 1:] - clip.pos[:, parents], axis=-1)


OFFSETS = np.array([np.linalg.norm(segment.offset) for segment in anatomy.BODIES[1:]])


def test_shipped_clips_are_what_the_generator_makes():
    for made in make_clips(("jab", "uppercut")):
        stored = load_clip(made.name)
        assert (stored.fps, stored.hand, stored.impact) == (made.fps, made.hand, made.impact)
        np.testing.assert_allclose(stored.pos, made.pos, atol=1e-3)


@pytest.mark.parametrize("name", BUILT_IN)
def test_clip_keeps_the_body_together(name):
    clip = load_clip(name)
    np.testing.assert_allclose(
        lengths(clip), np.broadcast_to(OFFSETS, lengths(clip).shape), atol=1e-4
    )
    np.testing.assert_allclose(np.linalg.norm(clip.quat, axis=-1), 1.0, atol=1e-5)
    step = np.linalg.norm(np.diff(clip.glove(), axis=0), axis=1)
    assert step.max() * clip.fps < 8.0  # a fist is not faster


@pytest.mark.parametrize("name", BUILT_IN[1:])
def test_punch_goes_out_and_comes_home(name):
    clip = load_clip(name)
    glove = clip.glove()
    assert glove[clip.impact, 0] - glove[0, 0] > 0.15
    np.testing.assert_allclose(glove[-1], glove[0], atol=5e-3)


def test_file_with_other_content_than_its_hash_is_refused(tmp_path):
    path = save_clip(load_clip("jab"), tmp_path)
    with np.load(path) as stored:
        parts = dict(stored)
    parts["pos"] = parts["pos"] + 0.01
    np.savez(path, **parts)
    with pytest.raises(ClipError, match="hash"):
        load_clip("jab", tmp_path)


def test_clip_with_missing_segments_is_refused():
    jab = load_clip("jab")
    with pytest.raises(ClipError, match="right_foot"):
        Clip("short", jab.pos[:, :12], jab.quat[:, :12], 100.0)


def test_points_with_a_missing_joint_are_refused():
    points = {name: np.zeros((3, 3)) for name in POINTS if name != "left_knee"}
    with pytest.raises(ClipError, match="left_knee"):
        clip_from_points("x", points, 30.0, "")


def test_broken_files_are_refused(tmp_path):
    bvh = tmp_path / "a.bvh"
    bvh.write_text("HIERARCHY\nROOT Hips\n{\nOFFSET 0 0 0\nCHANNELS 3 Zrotation\n")
    with pytest.raises(ClipError, match="BVH"):
        read_bvh(bvh)
    mimic = tmp_path / "a.txt"
    mimic.write_text(json.dumps({"Frames": [[0.1] * 12] * 3}))
    with pytest.raises(ClipError, match="44"):
        import_deepmimic(mimic, "a")


def test_bvh_of_a_still_figure_gives_an_upright_body(tmp_path):
    path = tmp_path / "still.bvh"
    path.write_text(STILL_BVH)
    clip = import_bvh(path, "still")
    assert clip.fps == pytest.approx(50.0)
    np.testing.assert_allclose(lengths(clip), np.broadcast_to(OFFSETS, (3, 12)), atol=1e-4)
    names = [segment.name for segment in anatomy.BODIES]
    assert clip.pos[0, names.index("head"), 2] > clip.pos[0, names.index("pelvis"), 2] + 0.5
    assert clip.pos[0, names.index("left_upper_arm"), 1] > 0.1
    assert clip.pos[0, names.index("left_foot"), 2] == pytest.approx(anatomy.SOLE_DEPTH, abs=1e-3)


@recorded
def test_recorded_boxer_is_imported_with_his_punch():
    clip = with_hand(import_bvh(MOTIONS / "Boxing_Toes.bvh", "boxer", start=5.0, end=7.0), "left")
    np.testing.assert_allclose(
        lengths(clip), np.broadcast_to(OFFSETS, lengths(clip).shape), atol=1e-4
    )
    speed = np.linalg.norm(np.diff(clip.glove(), axis=0), axis=1) * clip.fps
    assert 5.0 < speed.max() < 12.0


@recorded
def test_recorded_punch_is_imported_with_and_without_its_travel():
    path = MOTIONS / "humanoid3d_punch.txt"
    kept, still = import_deepmimic(path, "p", keep_root=True), import_deepmimic(path, "p")

    def travel(clip):
        return float(np.linalg.norm(clip.pos[-1, 0, :2] - clip.pos[0, 0, :2]))

    assert travel(kept) > 1.5
    assert travel(still) < 0.6
    feet = [index for index, segment in enumerate(anatomy.BODIES) if "foot" in segment.name]
    assert 0.0 < kept.pos[:, feet, 2].min() < 0.12


def _limb(name, offsets, children=""):
    """A BVH chain."""
    if not offsets:
        return children
    (joint, offset), *rest = offsets
    inner = _limb(name, rest, children)
    end = inner or "End Site\n{\nOFFSET 0 0 0.1\n}\n"
    return (
        f"JOINT {joint}\n{{\nOFFSET {offset}\nCHANNELS 3 Zrotation Xrotation Yrotation\n{end}}}\n"
    )


def _still_bvh():
    arms = "".join(
        _limb(
            side,
            [
                (f"{side}Shoulder", f"{sign * 18} 40 0"),
                (f"{side}Elbow", f"{sign * 28} 0 0"),
                (f"{side}Wrist", f"{sign * 25} 0 0"),
            ],
        )
        for side, sign in (("Left", 1), ("Right", -1))
    )
    legs = "".join(
        _limb(
            side,
            [
                (f"{side}Hip", f"{sign * 9} 0 0"),
                (f"{side}Knee", "0 -43 0"),
                (f"{side}Ankle", "0 -43 0"),
                (f"{side}Toes", "0 -6 15"),
            ],
        )
        for side, sign in (("Left", 1), ("Right", -1))
    )
    neck = _limb("", [("Neck", "0 50 0"), ("Head", "0 10 0")])
    row = " ".join(["0 93 0"] + ["0"] * (3 * 17))
    return (
        "HIERARCHY\nROOT Hips\n{\nOFFSET 0 0 0\n"
        "CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation\n"
        f"{neck}{arms}{legs}}}\nMOTION\nFrames: 3\nFrame Time: 0.02\n{row}\n{row}\n{row}\n"
    )


STILL_BVH = _still_bvh()
