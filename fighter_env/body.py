"""Builds the model: our muscle fighter, the opponent's mocap segments, a hanging bag, a spot.

The model is generated with MjSpec from the tables in `anatomy` alone: no file and no mesh is read.
Both physics run the model that `build_model` returns; `describe` gives what a fingerprint hashes.

Collisions: the floor meets our body; our gloves and forearms meet our trunk, head and other arm;
the opponent's trunk, head, gloves and forearms meet our body; the bag meets our body. All pairs are
planes, spheres, capsules or foot boxes on the plane, which have closed-form contacts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mujoco
import numpy as np

from fighter_env import anatomy

__all__ = [
    "BAG_HEIGHT",
    "MOCAP",
    "SENSORS",
    "TIMESTEP",
    "build_model",
    "build_spec",
    "describe",
    "guard_pose",
    "place_leg",
]

TIMESTEP = 0.004
SOLVER_ITERATIONS = 20
LINESEARCH_ITERATIONS = 20
MUSCLE = {
    "timeconst": [0.01, 0.04],
    "tausmooth": 0.0,
    "range": [0.75, 1.05],
    "scale": 200.0,
    "lmin": 0.5,
    "lmax": 1.6,
    "vmax": 4.0,
    "fpmax": 1.3,
    "fvmax": 1.2,
}
FLOOR, CORE, ARM, OPPONENT, BAG, SHIN = 1, 2, 4, 8, 16, 32
BAG_HEIGHT = 2.3
BAG_KG = 30.0
BAG_RADIUS = 0.17
BAG_ENDS = (-0.65, -1.35)

OPPONENT_BODIES = tuple(f"opponent_{segment.name}" for segment in anatomy.BODIES)
MOCAP = (*OPPONENT_BODIES, "bag_anchor", "spot")
SITES = {
    "eye": ("head", anatomy.EYE),
    "head_centre": ("head", anatomy.HEAD_CENTRE),
    "left_glove": ("left_forearm", (0.0, 0.0, -anatomy.GLOVE_REACH)),
    "right_glove": ("right_forearm", (0.0, 0.0, -anatomy.GLOVE_REACH)),
    "left_sole": ("left_foot", (0.065, 0.0, -anatomy.SOLE_DEPTH)),
    "right_sole": ("right_foot", (0.065, 0.0, -anatomy.SOLE_DEPTH)),
}
# The stance of the findings: feet 0.34 m apart sideways and 0.26 m fore and aft, rear foot out.
GUARD = {
    "spine_yaw": -0.25,
    "spine_pitch": 0.10,
    "neck_yaw": 0.25,
    "neck_pitch": 0.05,
    "left_shoulder_flex": 1.10,
    "left_shoulder_abduct": 0.15,
    "left_shoulder_inward": 0.35,
    "left_elbow": 2.05,
    "right_shoulder_flex": 0.95,
    "right_shoulder_abduct": 0.15,
    "right_shoulder_inward": 0.70,
    "right_elbow": 2.20,
}
STANCE = {"left": (0.18, 0.17, 0.0), "right": (-0.08, -0.17, -0.5)}  # sole x, y, yaw
PELVIS_HEIGHT = 0.86

# name, MuJoCo sensor, object type, object, dimension; the order is the order in `sensordata`.
_FRAME = (
    ("pos", mujoco.mjtSensor.mjSENS_FRAMEPOS, 3),
    ("quat", mujoco.mjtSensor.mjSENS_FRAMEQUAT, 4),
    ("linvel", mujoco.mjtSensor.mjSENS_FRAMELINVEL, 3),
    ("angvel", mujoco.mjtSensor.mjSENS_FRAMEANGVEL, 3),
)


def _sensor_rows() -> list[tuple[str, Any, Any, str, int]]:
    frame, site = mujoco.mjtObj.mjOBJ_XBODY, mujoco.mjtObj.mjOBJ_SITE
    body = mujoco.mjtObj.mjOBJ_BODY
    rows = []
    for part, kind, width in _FRAME:
        for segment in anatomy.BODIES:
            rows.append((f"{segment.name}_{part}", kind, frame, segment.name, width))
    for name in SITES:
        rows.append((f"{name}_pos", mujoco.mjtSensor.mjSENS_FRAMEPOS, site, name, 3))
    for name in ("head_centre", "left_glove", "right_glove"):
        rows.append((f"{name}_linvel", mujoco.mjtSensor.mjSENS_FRAMELINVEL, site, name, 3))
    rows.append(("com_pos", mujoco.mjtSensor.mjSENS_SUBTREECOM, body, "pelvis", 3))
    rows.append(("com_linvel", mujoco.mjtSensor.mjSENS_SUBTREELINVEL, body, "pelvis", 3))
    # The pose is that of the bag's frame at its hinge, the velocity that of its middle.
    rows.append(("bag_pos", mujoco.mjtSensor.mjSENS_FRAMEPOS, frame, "bag", 3))
    rows.append(("bag_quat", mujoco.mjtSensor.mjSENS_FRAMEQUAT, frame, "bag", 4))
    rows.append(("bag_linvel", mujoco.mjtSensor.mjSENS_FRAMELINVEL, body, "bag", 3))
    rows += [
        (f"{side}_foot_force", mujoco.mjtSensor.mjSENS_TOUCH, site, f"{side}_foot_touch", 1)
        for side in ("left", "right")
    ]
    return rows


SENSORS = tuple((name, width) for name, _, _, _, width in _sensor_rows())


def _capsule(parent: Any, name: str, shape: anatomy.Shape, **fields: Any) -> None:
    if any(shape.half):
        parent.add_geom(
            name=name,
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=shape.start,
            size=shape.half,
            **fields,
        )
    elif shape.start == shape.end:
        parent.add_geom(
            name=name,
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            pos=shape.start,
            size=[shape.radius, 0, 0],
            **fields,
        )
    else:
        parent.add_geom(
            name=name,
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=[*shape.start, *shape.end],
            size=[shape.radius, 0, 0],
            **fields,
        )


def _own_bits(name: str) -> tuple[int, int]:
    """Contact type and affinity of one of our shapes."""
    if "glove" in name or "forearm" in name:
        return ARM, FLOOR | CORE | ARM | OPPONENT | BAG
    if name in ("pelvis", "torso", "head") or "upper_arm" in name:
        return CORE, FLOOR | OPPONENT | BAG
    if "shin" in name:
        return SHIN, FLOOR | BAG | SHIN
    if "foot" in name:
        return 0, FLOOR
    return 0, FLOOR | BAG


def _inertial(segment: anatomy.Segment) -> dict[str, Any]:
    """Mass, centre and inertia of a segment: its first shape as a solid of the segment's mass."""
    shape = next(s for s in anatomy.SHAPES if s.body == segment.name)
    start, end = np.array(shape.start), np.array(shape.end)
    span, radius = np.abs(end - start), max(shape.radius, 0.03)
    half = np.array(shape.half) if any(shape.half) else span / 2 + radius * 0.8
    square = (2 * half) ** 2 / 12 * segment.mass
    centre = (start + end) / 2
    if "forearm" in segment.name:  # the glove pulls the centre towards the fist
        centre = np.array([0.0, 0.0, -0.19])
        square[:2] = segment.mass * 0.105**2
    return {
        "mass": segment.mass,
        "ipos": centre.tolist(),
        "inertia": [
            float(square[1] + square[2]),
            float(square[0] + square[2]),
            float(square[0] + square[1]),
        ],
        "explicitinertial": True,
    }


def _add_fighter(spec: Any) -> None:
    made: dict[str, Any] = {"": spec.worldbody}
    colour = {"glove": [0.15, 0.25, 0.75, 1.0], "head": [0.86, 0.70, 0.58, 1.0]}
    for segment in anatomy.BODIES:
        body = made[segment.parent].add_body(
            name=segment.name, pos=segment.offset, **_inertial(segment)
        )
        made[segment.name] = body
        if not segment.parent:
            body.add_freejoint(name="root")
        for hinge in anatomy.HINGES:
            if hinge.body == segment.name:
                body.add_joint(
                    name=hinge.name,
                    type=mujoco.mjtJoint.mjJNT_HINGE,
                    axis=hinge.axis,
                    range=[hinge.low, hinge.high],
                    limited=mujoco.mjtLimited.mjLIMITED_TRUE,
                    damping=[1.0 if hinge.stiffness > 100 else 0.4, 0, 0],
                    armature=0.02 if hinge.stiffness > 100 else 0.01,
                )
        for shape in anatomy.SHAPES:
            if shape.body == segment.name:
                kind, affinity = _own_bits(shape.name)
                rgba = next((c for k, c in colour.items() if k in shape.name), None)
                _capsule(
                    body,
                    shape.name,
                    shape,
                    contype=kind,
                    conaffinity=affinity,
                    friction=[1.0, 0.005, 0.0001],
                    rgba=rgba or [0.55, 0.60, 0.68, 1.0],
                    group=1,
                )
    made["head"].add_geom(
        name="neck",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0, 0, -0.04, 0.01, 0, 0.10],
        size=[0.045, 0, 0],
        contype=0,
        conaffinity=0,
        rgba=colour["head"],
        group=1,
    )
    for name, (body_name, pos) in SITES.items():
        made[body_name].add_site(name=name, pos=pos, size=[0.01, 0, 0], group=4)
    for side in ("left", "right"):
        made[f"{side}_foot"].add_site(
            name=f"{side}_foot_touch",
            pos=[0.065, 0.0, -anatomy.SOLE_DEPTH + 0.01],
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[0.14, 0.06, 0.03],
            group=4,
        )


def _add_muscles(spec: Any) -> None:
    for hinge in anatomy.HINGES:
        for sign, tag, torque in (
            (1.0, "minus", hinge.torque_minus),
            (-1.0, "plus", hinge.torque_plus),
        ):
            muscle = spec.add_actuator(
                name=f"{hinge.name}_{tag}",
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                target=hinge.name,
                gear=[sign, 0, 0, 0, 0, 0],
                ctrllimited=mujoco.mjtLimited.mjLIMITED_TRUE,
                ctrlrange=[0.0, 1.0],
            )
            muscle.set_to_muscle(force=float(torque), **MUSCLE)
            muscle.lengthrange = [hinge.low, hinge.high] if sign > 0 else [-hinge.high, -hinge.low]


def _add_surroundings(spec: Any) -> None:
    world = spec.worldbody
    world.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[20, 20, 0.1],
        contype=FLOOR,
        conaffinity=0,
        friction=[1.0, 0.005, 0.0001],
        priority=1,
        material="floor",
    )
    world.add_light(pos=[0, 0, 5], dir=[0, 0, -1], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    for segment in anatomy.BODIES:
        body = world.add_body(name=f"opponent_{segment.name}", mocap=True, pos=[30.0, 0.0, 1.0])
        for shape in anatomy.SHAPES:
            if shape.body == segment.name:
                touches = any(part in shape.name for part in ("glove", "forearm", "torso", "head"))
                _capsule(
                    body,
                    f"opponent_{shape.name}",
                    shape,
                    contype=OPPONENT if touches else 0,
                    conaffinity=0,
                    rgba=[0.85, 0.12, 0.10, 1.0],
                    group=3,
                )
    anchor = world.add_body(name="bag_anchor", mocap=True, pos=[34.0, 0.0, BAG_HEIGHT])
    bag = anchor.add_body(name="bag")
    for name, axis in (("bag_swing_x", [1.0, 0.0, 0.0]), ("bag_swing_y", [0.0, 1.0, 0.0])):
        bag.add_joint(
            name=name,
            type=mujoco.mjtJoint.mjJNT_HINGE,
            axis=axis,
            range=[-1.2, 1.2],
            limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            damping=[6.0, 0, 0],
        )
    bag.add_geom(
        name="bag",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0, 0, BAG_ENDS[0], 0, 0, BAG_ENDS[1]],
        size=[BAG_RADIUS, 0, 0],
        mass=BAG_KG,
        contype=BAG,
        conaffinity=0,
        rgba=[0.25, 0.18, 0.15, 1.0],
    )
    bag.add_geom(
        name="bag_rope",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0, 0, 0, 0, 0, -0.6],
        size=[0.01, 0, 0],
        mass=0.1,
        contype=0,
        conaffinity=0,
    )
    spot = world.add_body(name="spot", mocap=True, pos=[38.0, 0.0, 0.0])
    spot.add_geom(
        name="spot",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=[0.25, 0.002, 0],
        contype=0,
        conaffinity=0,
        rgba=[0.15, 0.65, 0.25, 0.8],
    )


def build_spec(*, timestep: float = TIMESTEP) -> Any:
    """The MjSpec of the whole scene, for those who want to add to it.

    Args:
        timestep: Length of one physics substep in seconds.
    """
    spec = mujoco.MjSpec()
    spec.modelname = "fighter"
    spec.compiler.degree = False
    spec.compiler.LRopt.mode = mujoco.mjtLRMode.mjLRMODE_NONE
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.iterations = SOLVER_ITERATIONS
    spec.option.ls_iterations = LINESEARCH_ITERATIONS
    # A broken world must reach us as it is; MuJoCo C would put it back to the start by itself.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1920, 1080
    spec.visual.quality.shadowsize, spec.visual.quality.offsamples = 2048, 4
    spec.stat.extent, spec.stat.center = 3.0, [0.4, 0.0, 1.0]
    spec.add_texture(
        name="floor",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.78, 0.80, 0.83],
        rgb2=[0.70, 0.72, 0.76],
        width=256,
        height=256,
    )
    floor = spec.add_material(name="floor", texrepeat=[20, 20], reflectance=0.0)
    floor.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.95, 0.96, 0.98],
        rgb2=[0.75, 0.80, 0.88],
        width=64,
        height=64,
    )
    _add_surroundings(spec)
    _add_fighter(spec)
    _add_muscles(spec)
    for name, kind, objtype, objname, _ in _sensor_rows():
        spec.add_sensor(name=name, type=kind, objtype=objtype, objname=objname)
    return spec


def build_model(*, timestep: float = TIMESTEP) -> Any:
    """A freshly compiled `mujoco.MjModel` of the scene, safe to change."""
    return build_spec(timestep=timestep).compile()


@cache
def guard_pose() -> tuple[float, ...]:
    """The joint positions (`nq` values) of the guard stance, feet flat on the floor."""
    model = build_model()
    data = mujoco.MjData(model)
    for name, value in GUARD.items():
        data.joint(name).qpos = value
    data.qpos[model.joint("root").qposadr[0] + 2] = PELVIS_HEIGHT
    for side, sole in STANCE.items():
        place_leg(model, data, side, sole)
    return tuple(float(value) for value in data.qpos)


def place_leg(model: Any, data: Any, side: str, sole: tuple[float, float, float]) -> None:
    """Puts one sole flat at (x, y, yaw) by damped Gauss-Newton on the six leg hinges."""
    names = [f"{side}_{joint}" for joint in _LEG]
    columns = [int(model.joint(name).dofadr[0]) for name in names]
    places = [int(model.joint(name).qposadr[0]) for name in names]
    data.qpos[places] = [0.0, 0.1, 0.4, 0.6, 0.2, 0.0]
    yaw = sole[2]
    wanted = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    site = model.site(f"{side}_sole").id
    jac_pos, jac_rot = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    for _ in range(60):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, jac_pos, jac_rot, site)
        turn = wanted @ data.site_xmat[site].reshape(3, 3).T
        spin = 0.5 * np.array(
            [turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]]
        )
        error = np.concatenate([np.array([sole[0], sole[1], 0.0]) - data.site_xpos[site], spin])
        jac = np.vstack([jac_pos, jac_rot])[:, columns]
        if np.abs(error).max() < 1e-10:
            return
        data.qpos[places] += jac.T @ np.linalg.solve(jac @ jac.T + 1e-6 * np.eye(6), error)


_LEG = ("hip_inward", "hip_abduct", "hip_flex", "knee", "ankle_flex", "ankle_roll")


def describe(model: Any) -> dict[str, list[float]]:
    """Every number of the model that changes how it moves, by field name."""
    return {name: np.asarray(getattr(model, name), float).ravel().tolist() for name in _DESCRIBED}


_DESCRIBED = (
    "body_mass",
    "body_inertia",
    "body_ipos",
    "body_pos",
    "jnt_axis",
    "jnt_range",
    "jnt_pos",
    "dof_damping",
    "dof_armature",
    "geom_size",
    "geom_pos",
    "geom_quat",
    "geom_type",
    "geom_contype",
    "geom_conaffinity",
    "geom_friction",
    "geom_solref",
    "geom_solimp",
    "actuator_gear",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_dynprm",
    "actuator_lengthrange",
    "actuator_ctrlrange",
    "site_pos",
    "sensor_objtype",
)
