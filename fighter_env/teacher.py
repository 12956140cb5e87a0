"""The teacher: a small walking network that gives leg targets beside the policy.

It reads the observation group ``teacher`` and answers with the 12 leg entries of an action in
``targets`` mode, so that a policy's leg actions can be pulled towards it. The file that ships was
fitted by ``python -m fighter_env.teacher`` to a *procedural* gait (below), not to a recording: it
imitates the kinematics of walking and is not a controller that was shown to walk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fighter_env import anatomy, layout
from fighter_env.errors import TeacherError

__all__ = ["LEG_COLUMNS", "Teacher", "fit_teacher", "gait"]

LEG_COLUMNS = layout.LEG_COLUMNS
FILE = Path(__file__).with_name("teacher.npz")
SOURCE = "procedural gait: fighter_env.teacher.gait"
HIDDEN = 32


def gait(phase: Tensor, command: Tensor) -> Tensor:
    """Leg angles of a procedural walk, relative to the guard.

    Hip and knee follow sines of the cycle with the amplitudes of level walking (hip about 20
    degrees to either side, knee up to 55 in swing; Winter 2009, chapter 5), scaled by the speed.

    Args:
        phase: Clock of the gait (rad), shape (B,); the left foot swings in its first half.
        command: Speed forward and left (m/s) and turn (rad), shape (B, 3).

    Returns:
        Offsets from the guard's leg angles (rad), shape (B, 12), in the order of `LEG_COLUMNS`.
    """
    speed = command[:, :2].square().sum(1).sqrt()
    stride = (speed / 1.0).clamp_max(1.2)
    forward = stride * command[:, 0] / speed.clamp_min(1e-6)
    sideways = stride * command[:, 1] / speed.clamp_min(1e-6)
    turn = command[:, 2].clamp(-1.0, 1.0) * (stride > 0.05)
    columns = {}
    for side, sign, shift in (("left", 1.0, 0.0), ("right", -1.0, torch.pi)):
        swing = torch.sin(phase + shift).clamp_min(0.0)
        swing = swing * stride.clamp_max(1.0)
        reach = -torch.cos(phase + shift)
        columns[f"{side}_hip_flex"] = 0.35 * forward * reach + 0.45 * swing
        columns[f"{side}_knee"] = 0.85 * swing
        columns[f"{side}_ankle_flex"] = 0.25 * swing - 0.12 * forward * reach
        columns[f"{side}_hip_abduct"] = 0.18 * sign * sideways * reach
        columns[f"{side}_hip_inward"] = -0.20 * sign * turn * reach
        columns[f"{side}_ankle_roll"] = -0.10 * sign * sideways * reach
    return torch.stack([columns[name] for name in anatomy.LEG_HINGES], 1)


class Teacher(nn.Module):
    """A two-layer network from the group ``teacher`` to leg actions.

    Attributes:
        source: What it was fitted to.
    """

    def __init__(self, source: str = SOURCE) -> None:
        super().__init__()
        self.source = source
        slices = layout.observation_slices("teacher")
        self._inputs = slice(slices["gait_phase"].start, slices["walk_command"].stop)
        size = self._inputs.stop - self._inputs.start
        self.layers = nn.Sequential(
            nn.Linear(size, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, len(LEG_COLUMNS)),
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Leg actions in [-1, 1], shape (N, 12), for columns `LEG_COLUMNS` of an action.

        Args:
            observation: The group ``teacher``, shape (N, size).
        """
        return self.layers(observation[:, self._inputs]).clamp(-1.0, 1.0)

    @classmethod
    def load(cls, path: str | Path = FILE, device: torch.device | str = "cpu") -> Teacher:
        """The teacher in a file; by default the one that ships.

        Raises:
            TeacherError: The file is missing, broken, or made for other hinges.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                names = [str(name) for name in stored["hinges"]]
                made = cls(str(stored["source"]))
                state = {k: torch.from_numpy(stored[k]) for k in made.state_dict()}
        except (OSError, KeyError, ValueError) as error:
            raise TeacherError(f"teacher {path} cannot be read: {error}") from error
        if names != list(anatomy.LEG_HINGES):
            raise TeacherError(
                f"teacher {path} gives targets for {names}; it must be for "
                f"{list(anatomy.LEG_HINGES)}"
            )
        try:
            made.load_state_dict(state)
        except RuntimeError as error:
            raise TeacherError(f"teacher {path} does not fit: {error}") from error
        return made.to(device).requires_grad_(False)

    def save(self, path: str | Path = FILE) -> None:
        """Writes an ``.npz`` file that `load` reads."""
        arrays: dict[str, Any] = {k: v.detach().cpu().numpy() for k, v in self.state_dict().items()}
        np.savez_compressed(path, hinges=np.array(anatomy.LEG_HINGES), source=self.source, **arrays)


def fit_teacher(steps: int = 3000, batch: int = 512, seed: int = 0) -> tuple[Teacher, float]:
    """Fits a teacher to `gait`.

    Returns:
        The teacher, and its root mean square error on fresh samples (action units).
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    teacher = Teacher()
    reach = {hinge.name: hinge.reach for hinge in anatomy.HINGES}
    scale = torch.tensor([reach[name] for name in anatomy.LEG_HINGES])
    optimiser = torch.optim.Adam(teacher.layers.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def sample(count: int) -> tuple[Tensor, Tensor]:
        draw = torch.rand(count, 4, generator=generator)
        phase = 2.0 * torch.pi * draw[:, 0]
        bearing = torch.pi * (2.0 * draw[:, 1] - 1.0)
        speed = 0.9 * draw[:, 2] * (draw[:, 3] > 0.1)
        command = torch.stack(
            (speed * torch.cos(bearing), speed * torch.sin(bearing), bearing * (speed > 0)), 1
        )
        inputs = torch.cat((torch.cos(phase)[:, None], torch.sin(phase)[:, None], command), 1)
        return inputs, (gait(phase, command) / scale).clamp(-1.0, 1.0)

    for _ in range(steps):
        inputs, wanted = sample(batch)
        loss = (teacher.layers(inputs) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    inputs, wanted = sample(4096)
    with torch.no_grad():
        error = float((teacher.layers(inputs) - wanted).square().mean().sqrt())
    return teacher, error


def main() -> None:
    """Fits the teacher that ships and writes it."""
    from rich.console import Console

    teacher, error = fit_teacher()
    teacher.save()
    Console().print(f"{FILE}: fitted to {teacher.source}; error {error:.3f} of an action")


if __name__ == "__main__":
    main()
