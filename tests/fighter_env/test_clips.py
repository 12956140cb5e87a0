"""Clips: what ships, what is refused, what is imported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fighter_env import anatomy
from fighter_env.clips import BUILT_IN, Clip, load_clip, save_clip
from fighter_env.clips.__main__ import with_hand
from fighter_env.clips.bvh import _find, import_bvh, read_bvh
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


def renamed(names, prefix=""):
    """The still figure with other names: {ours: theirs}."""
    text = STILL_BVH
    for ours, theirs in names.items():
        text = text.replace(f" {ours}\n", f" {prefix}{theirs}\n")
    return text


MIXAMO = {
    "Shoulder": "Arm",
    "Elbow": "ForeArm",
    "Wrist": "Hand",
    "Hip": "UpLeg",
    "Knee": "Leg",
    "Ankle": "Foot",
    "Toes": "ToeBase",
}
MIXAMO = {f"{s}{a}": f"{s}{b}" for s in ("Left", "Right") for a, b in MIXAMO.items()}
PLAIN = {name: name for name in ("Hips", "Neck", "Head")}


def test_shoulder_beside_an_arm_is_the_collar_bone(tmp_path):
    text = renamed(MIXAMO | PLAIN)
    for side, sign in (("Left", 1), ("Right", -1)):
        arm = f"JOINT {side}Arm\n{{\nOFFSET {sign * 18} 40 0\n"
        collar = f"JOINT {side}Shoulder\n{{\nOFFSET {sign * 4} 44 0\nCHANNELS 0\n"
        assert arm in text
        before, after = text.split(arm)
        depth, at = 1, 0
        while depth:
            depth += {"{": 1, "}": -1}.get(after[at], 0)
            at += 1
        inner = f"JOINT {side}Arm\n{{\nOFFSET {sign * 14} -4 0\n{after[:at]}}}\n"
        text = before + collar + inner + after[at:]
    (tmp_path / "a.bvh").write_text(text)
    (tmp_path / "b.bvh").write_text(STILL_BVH)
    joints, *_ = read_bvh(tmp_path / "a.bvh")
    names = [joint.name for joint in joints]
    assert _find(joints, "left", "shoulder") == names.index("LeftArm")
    assert _find(joints, "right", "shoulder") == names.index("RightArm")
    found = import_bvh(tmp_path / "a.bvh", "x")
    np.testing.assert_allclose(found.pos, import_bvh(tmp_path / "b.bvh", "x").pos, atol=1e-5)


@pytest.mark.parametrize("prefix", ["", "mixamorig:", "Bip01_"])
def test_joints_are_found_behind_a_prefix(tmp_path, prefix):
    (tmp_path / "a.bvh").write_text(renamed(MIXAMO | PLAIN, prefix))
    (tmp_path / "b.bvh").write_text(STILL_BVH)
    found = import_bvh(tmp_path / "a.bvh", "x")
    np.testing.assert_allclose(found.pos, import_bvh(tmp_path / "b.bvh", "x").pos, atol=1e-5)


def test_pelvis_is_not_taken_for_a_left_hip(tmp_path):
    (tmp_path / "a.bvh").write_text(renamed({"Hips": "Pelvis"}))
    joints, *_ = read_bvh(tmp_path / "a.bvh")
    assert joints[_find(joints, "", "pelvis")].name == "Pelvis"
    assert joints[_find(joints, "left", "hip")].name == "LeftHip"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Time: 0.02", "Time: 0", "frame time"),
        ("Time: 0.02", "Time: nan", "frame time"),
        ("Time: 0.02", "Time: -0.02", "frame time"),
        ("Time: 0.02", "Time: 1e-9", "frame time"),
        ("Frames: 3", "Frames: 0", "0 frames"),
        ("Frames: 3", "Frames: -1", "-1 frames"),
        ("Frames: 3", "Frames: 9", "complete"),
        ("0 93 0", "nan 93 0", "finite"),
        ("Zrotation", "Wrotation", "wrotation"),
        ("Zrotation", "Zscale", "zscale"),
        ("0 -43 0", "0 0 0", "legs"),
    ],
)
def test_bvh_with_a_broken_value_is_refused(tmp_path, old, new, words):
    assert old in STILL_BVH
    (tmp_path / "a.bvh").write_text(STILL_BVH.replace(old, new))
    with pytest.raises(ClipError, match=words):
        import_bvh(tmp_path / "a.bvh", "x")


@pytest.mark.parametrize(
    ("start", "end"), [(1.0, 0.5), (-0.1, 1.0), (float("nan"), 1.0), (9.0, 10.0), (0.0, 0.004)]
)
def test_span_without_motion_is_refused(tmp_path, start, end):
    (tmp_path / "a.bvh").write_text(STILL_BVH)
    with pytest.raises(ClipError, match=r"start|fewer than 2 frames"):
        import_bvh(tmp_path / "a.bvh", "x", start=start, end=end)


def test_binary_and_missing_motions_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path / "a", tmp_path / "none"):
        with pytest.raises(ClipError):
            read_bvh(path)
        with pytest.raises(ClipError):
            import_deepmimic(path, "x")


@pytest.mark.parametrize("value", [0.0, float("nan"), -0.1, float("inf")])
def test_deepmimic_with_a_broken_duration_is_refused(tmp_path, value):
    row = [value, 0, 0.9, 0, *[1, 0, 0, 0] * 10]
    (tmp_path / "a").write_text(json.dumps({"Frames": [row] * 4}))
    with pytest.raises(ClipError, match="last"):
        import_deepmimic(tmp_path / "a", "x")


def test_files_that_hold_no_clip_are_refused(tmp_path):
    jab = load_clip("jab")
    parts = {"pos": jab.pos, "quat": jab.quat, "fps": jab.fps, "hand": "left", "impact": 1}
    parts |= {"source": "", "sha256": ""}
    (tmp_path / "text.npz").write_text("no clip")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04" + bytes(40))
    np.savez(tmp_path / "fps.npz", **parts | {"fps": np.array([1.0, 2.0])})
    np.savez(tmp_path / "words.npz", **parts | {"pos": np.full((9, 13, 3), "a")})
    np.savez(tmp_path / "hand.npz", **parts | {"hand": "foot"})
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ClipError):
            load_clip(path.stem, tmp_path)


def test_clip_with_impossible_values_is_refused():
    jab = load_clip("jab")
    for fps in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ClipError, match="fps"):
            Clip("x", jab.pos, jab.quat, fps)
    with pytest.raises(ClipError, match="quaternion"):
        Clip("x", jab.pos, 0.0 * jab.quat, 100.0)
    with pytest.raises(ClipError, match="hand"):
        Clip("x", jab.pos, jab.quat, 100.0, "foot")
