"""Whole MuJoCo Warp programs, launch by launch: nothing undeclared is written or read."""

import os
from pathlib import Path

import gymnasium
import kernels
import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import warp as wp
from access_audit import AccessAudit

from kscheduler.access import READ, WRITE
from kscheduler.intercept import warp_access

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
EULER, RK4, IMPLICITFAST = (
    mujoco.mjtIntegrator.mjINT_EULER,
    mujoco.mjtIntegrator.mjINT_RK4,
    mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
)
CASES = [("ant", EULER, True), ("humanoid", IMPLICITFAST, False)]
if os.environ.get("KSCHEDULER_AUDIT_ALL"):
    CASES += [
        (name, integrator, conditional)
        for name in ("ant", "half_cheetah", "humanoid", "humanoidstandup", "walker2d", "pusher")
        for integrator in (EULER, RK4, IMPLICITFAST)
        for conditional in (True, False)
        if (name, integrator, conditional) not in CASES
    ]


def _load(name, integrator, conditional):
    model = mujoco.MjModel.from_xml_path(str(ASSETS / f"{name}.xml"))
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model.opt.integrator = integrator
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    while data.ncon == 0 and data.time < 2.0:
        mujoco.mj_step(model, data)
    device_model = mjw.put_model(model)
    device_model.opt.graph_conditional = conditional
    return device_model, mjw.put_data(model, data, nworld=3, nconmax=64, njmax=256)


def _run(model, data, steps, seed=0):
    """Steps with random controls from a random pose, rays, and a masked reset."""
    generator = np.random.default_rng(seed)
    contacts = 0
    pose = data.qpos.numpy()
    data.qpos.assign(pose + 0.05 * generator.standard_normal(pose.shape, dtype=np.float32))
    for _ in range(steps):
        data.ctrl.assign(generator.uniform(-1, 1, data.ctrl.shape).astype(np.float32))
        mjw.step(model, data)
        contacts += int(data.nacon.numpy()[0])
    starts = np.tile(np.array([0.0, 0.0, 3.0], np.float32), (3, 1, 1))
    directions = np.tile(np.array([0.0, 0.0, -1.0], np.float32), (3, 1, 1))
    mjw.ray(model, data, wp.array(starts, dtype=wp.vec3), wp.array(directions, dtype=wp.vec3))
    mjw.reset_data(model, data, reset=wp.array([True, False, True], dtype=bool))
    mjw.forward(model, data)
    return contacts


@pytest.mark.parametrize(("name", "integrator", "conditional"), CASES)
def test_no_undeclared_access_in_mujoco_warp(name, integrator, conditional):
    model, data = _load(name, integrator, conditional)
    with AccessAudit() as audit:
        contacts = _run(model, data, steps=4)
    assert audit.faults == []
    assert warp_access.failures == {}
    assert len(audit.accesses) > 50
    assert audit.replaced > 100
    assert contacts > 0


@pytest.mark.parametrize(
    ("modes", "fault"),
    [
        ((READ, WRITE), None),
        ((READ, READ), "writes y, which is not declared"),
        ((0, WRITE), "reads x, which is not declared"),
        ((WRITE, WRITE), "reads x, which is not declared"),
    ],
)
def test_audit_sees_a_false_declaration(monkeypatch, modes, fault):
    def declared(kernel, module_exec):
        return warp_access.kernel_access(kernel, module_exec)._replace(modes=modes)

    monkeypatch.setattr("access_audit.kernel_access", declared)
    x = wp.array(np.arange(4), dtype=float, device="cpu")
    y = wp.zeros(4, dtype=float, device="cpu")
    with AccessAudit() as audit:
        wp.launch(kernels.plain, dim=4, inputs=[x, y], device="cpu")
    assert [fault.partition(" ")[2].partition(":")[0] for fault in audit.faults] == (
        [fault] if fault else []
    )
