"""One reading of the physics: the places, directions and speeds that sight, tasks, rewards and
observations share. Everything is float32 and belongs to one instant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fighter_env import layout, rotations
from fighter_env.physics import Physics

__all__ = ["Scene", "read_scene"]


@dataclass
class Scene:
    """The state of N worlds, in the world frame unless said otherwise.

    Attributes:
        qpos, qvel, act: Physics state, shapes (N, nq), (N, nv), (N, nu).
        pelvis, head: Pelvis and head centre (m), shape (N, 3).
        pelvis_quat, torso_quat: Orientations, shape (N, 4).
        heading: Unit vector of where the pelvis faces, shape (N, 2).
        up: World up in the pelvis frame, shape (N, 3).
        linvel: Velocity of the centre of mass (m/s), shape (N, 3).
        angvel: Turning speed of the pelvis in its own frame (rad/s), shape (N, 3).
        gloves, soles: Centres (m), shape (N, 2, 3).
        glove_speed: Velocities of the gloves (m/s), shape (N, 2, 3).
        capture: Capture point from the middle of the soles (m), shape (N, 2).
        foot_force: Ground force under each foot (N), shape (N, 2).
        bag: Middle of the bag (m), shape (N, 3).
        torso: Origin of the torso (m), shape (N, 3).
    """

    qpos: Tensor
    qvel: Tensor
    act: Tensor
    pelvis: Tensor
    head: Tensor
    torso: Tensor
    pelvis_quat: Tensor
    torso_quat: Tensor
    heading: Tensor
    up: Tensor
    linvel: Tensor
    angvel: Tensor
    gloves: Tensor
    glove_speed: Tensor
    soles: Tensor
    capture: Tensor
    foot_force: Tensor
    bag: Tensor

    def local(self, vector: Tensor) -> Tensor:
        """World vectors (N, 2 or 3), or (N, k, 2 or 3), in the heading frame."""
        heading = self.heading if vector.dim() == 2 else self.heading[:, None]
        return rotations.to_heading(heading, vector)

    def world(self, vector: Tensor) -> Tensor:
        """The inverse of `local`."""
        heading = self.heading if vector.dim() == 2 else self.heading[:, None]
        return rotations.to_world(heading, vector)


def read_scene(physics: Physics) -> Scene:
    """Reads the present state."""
    sensors = physics.sensors

    def read(name: str) -> Tensor:
        return layout.sensor(sensors, name)

    pelvis_quat = read("pelvis_quat")
    soles = torch.stack((read("left_sole_pos"), read("right_sole_pos")), 1)
    com_speed = read("com_linvel")
    upward = torch.zeros_like(com_speed)
    upward[:, 2] = 1.0
    bag = torch.zeros_like(com_speed)
    bag[:, 2] = -1.0
    return Scene(
        qpos=physics.qpos,
        qvel=physics.qvel,
        act=physics.act,
        pelvis=read("pelvis_pos"),
        head=read("head_centre_pos"),
        torso=read("torso_pos"),
        pelvis_quat=pelvis_quat,
        torso_quat=read("torso_quat"),
        heading=rotations.heading(pelvis_quat),
        up=rotations.unrotate(pelvis_quat, upward),
        linvel=com_speed,
        angvel=rotations.unrotate(pelvis_quat, read("pelvis_angvel")),
        gloves=torch.stack((read("left_glove_pos"), read("right_glove_pos")), 1),
        glove_speed=torch.stack((read("left_glove_linvel"), read("right_glove_linvel")), 1),
        soles=soles,
        capture=(read("com_pos") + 0.3 * com_speed - soles.mean(1))[:, :2],
        foot_force=torch.cat((read("left_foot_force"), read("right_foot_force")), 1),
        bag=read("bag_pos") + rotations.rotate(read("bag_quat"), bag),
    )
