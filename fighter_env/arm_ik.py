"""Batched inverse kinematics of both arms: damped least squares in one Warp kernel.

One thread fits one arm: four hinges (three at the shoulder, one at the elbow) to the place of the
glove's centre, within the joint limits, with a pull towards a rest pose in the direction that does
not move the glove. Worlds outside the mask keep the angles they had. There is no host read.
"""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from fighter_env import anatomy, body
from fighter_env.devices import warp_device

__all__ = ["ARM_HINGES", "ArmSolver"]

wp.set_module_options({"enable_backward": False})

ARM_HINGES = tuple(
    f"{side}_{joint}"
    for side in ("left", "right")
    for joint in ("shoulder_flex", "shoulder_abduct", "shoulder_inward", "elbow")
)
vec4 = wp.types.vector(length=4, dtype=wp.float32)


@wp.func
def _turn(axis: wp.vec3, angle: float) -> wp.quat:
    return wp.quat_from_axis_angle(axis, angle)


@wp.kernel
def fit_arms(
    # In:
    mask_in: wp.array[wp.bool],
    torso_pos_in: wp.array2d[float],
    torso_quat_in: wp.array2d[float],
    target_in: wp.array3d[float],
    axis_in: wp.array2d[wp.vec3],
    shoulder_in: wp.array[wp.vec3],
    low_in: wp.array2d[float],
    high_in: wp.array2d[float],
    rest_in: wp.array2d[float],
    upper_arm: float,
    reach: float,
    damping: float,
    iterations: int,
    # Out:
    angle_out: wp.array3d[float],
    error_out: wp.array2d[float],
):
    """Fits arm `arm` of world `world`; dim (N, 2)."""
    world, arm = wp.tid()
    if not mask_in[world]:
        return
    base = wp.quat(
        torso_quat_in[world, 1],
        torso_quat_in[world, 2],
        torso_quat_in[world, 3],
        torso_quat_in[world, 0],
    )
    origin = wp.vec3(torso_pos_in[world, 0], torso_pos_in[world, 1], torso_pos_in[world, 2])
    target = wp.vec3(target_in[world, arm, 0], target_in[world, arm, 1], target_in[world, arm, 2])
    shoulder = origin + wp.quat_rotate(base, shoulder_in[arm])
    down = wp.vec3(0.0, 0.0, -1.0)
    q = vec4()
    for j in range(4):
        q[j] = rest_in[arm, j]
    miss = wp.float32(0.0)
    for iteration in range(iterations + 1):
        r1 = base * _turn(axis_in[arm, 0], q[0])
        r2 = r1 * _turn(axis_in[arm, 1], q[1])
        r3 = r2 * _turn(axis_in[arm, 2], q[2])
        elbow = shoulder + wp.quat_rotate(r3, down) * upper_arm
        r4 = r3 * _turn(axis_in[arm, 3], q[3])
        glove = elbow + wp.quat_rotate(r4, down) * reach
        error = target - glove
        miss = wp.length(error)
        if iteration < iterations:
            arm_vec = glove - shoulder
            j0 = wp.cross(wp.quat_rotate(base, axis_in[arm, 0]), arm_vec)
            j1 = wp.cross(wp.quat_rotate(r1, axis_in[arm, 1]), arm_vec)
            j2 = wp.cross(wp.quat_rotate(r2, axis_in[arm, 2]), arm_vec)
            j3 = wp.cross(wp.quat_rotate(r3, axis_in[arm, 3]), glove - elbow)
            gram = wp.outer(j0, j0) + wp.outer(j1, j1) + wp.outer(j2, j2) + wp.outer(j3, j3)
            weight = damping * damping + 0.02 * miss * miss
            gram += wp.identity(n=3, dtype=float) * weight
            inverse = wp.inverse(gram)
            # Rest pull, less what of it would move the glove.
            pull = vec4()
            for j in range(4):
                pull[j] = 0.1 * (rest_in[arm, j] - q[j])
            moved = j0 * pull[0] + j1 * pull[1] + j2 * pull[2] + j3 * pull[3]
            solved = inverse * (error - moved)
            q[0] += wp.clamp(wp.dot(j0, solved) + pull[0], -0.4, 0.4)
            q[1] += wp.clamp(wp.dot(j1, solved) + pull[1], -0.4, 0.4)
            q[2] += wp.clamp(wp.dot(j2, solved) + pull[2], -0.4, 0.4)
            q[3] += wp.clamp(wp.dot(j3, solved) + pull[3], -0.4, 0.4)
            for j in range(4):
                q[j] = wp.clamp(q[j], low_in[arm, j], high_in[arm, j])
    for j in range(4):
        angle_out[world, arm, j] = q[j]
    error_out[world, arm] = miss


class ArmSolver:
    """Fits both arms of every world that asks for it.

    Args:
        num_envs: Worlds N.
        device: Torch device.
        iterations: Steps of damped least squares.

    Attributes:
        angles: The last fit (rad), shape (N, 2, 4), in the order of `ARM_HINGES`.
        error: Distance between glove and target after the last fit (m), shape (N, 2).
        targets: Glove centres asked for, in the world frame (m), shape (N, 2, 3).
        mask: Worlds to fit, bool, shape (N,).
    """

    def __init__(self, num_envs: int, device: torch.device, iterations: int = 40) -> None:
        hinge = {h.name: h for h in anatomy.HINGES}
        offset = {s.name: s.offset for s in anatomy.BODIES}
        rows = [[hinge[name] for name in ARM_HINGES[4 * arm : 4 * arm + 4]] for arm in (0, 1)]
        self._device = warp_device(device)
        self._iterations = iterations
        self.angles = torch.zeros(num_envs, 2, 4, device=device)
        self.error = torch.zeros(num_envs, 2, device=device)
        self.targets = torch.zeros(num_envs, 2, 3, device=device)
        self.mask = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._pos = torch.zeros(num_envs, 3, device=device)
        self._quat = torch.zeros(num_envs, 4, device=device)
        rest = [[body.GUARD[h.name] for h in row] for row in rows]
        self.angles.copy_(torch.tensor(rest))
        with wp.ScopedDevice(self._device):
            self._constants = [
                wp.array([[wp.vec3(*h.axis) for h in row] for row in rows], dtype=wp.vec3),
                wp.array(
                    [wp.vec3(*offset[f"{side}_upper_arm"]) for side in ("left", "right")],
                    dtype=wp.vec3,
                ),
                wp.array([[h.low for h in row] for row in rows], dtype=float),
                wp.array([[h.high for h in row] for row in rows], dtype=float),
                wp.array(rest, dtype=float),
            ]
        self._views = [
            wp.from_torch(value)
            for value in (self.mask, self._pos, self._quat, self.targets, self.angles, self.error)
        ]

    def fit(self, mask: Tensor, torso_pos: Tensor, torso_quat: Tensor, targets: Tensor) -> None:
        """Fits the worlds of `mask`; the results are in `angles` and `error`.

        Args:
            mask: Worlds to fit, bool, shape (N,).
            torso_pos: Origin of the torso (m), shape (N, 3).
            torso_quat: Orientation of the torso, shape (N, 4).
            targets: Places for the two glove centres in the world frame (m), shape (N, 2, 3).
        """
        self.mask.copy_(mask)
        self._pos.copy_(torso_pos)
        self._quat.copy_(torso_quat)
        self.targets.copy_(targets)
        mask_in, pos, quat, target, angle, error = self._views
        wp.launch(
            fit_arms,
            dim=(self.mask.shape[0], 2),
            inputs=[
                mask_in,
                pos,
                quat,
                target,
                *self._constants,
                anatomy.UPPER_ARM,
                anatomy.GLOVE_REACH,
                0.01,
                self._iterations,
            ],
            outputs=[angle, error],
            device=self._device,
        )
