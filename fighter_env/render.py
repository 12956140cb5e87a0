"""Pictures and films of a world, drawn by MuJoCo off screen.

Without ``MUJOCO_GL`` the renderer is EGL, which needs no screen; with it, the one that it names.

The opponent is a red stick figure; its keypoints are green where our fighter sees them and grey
where it does not. On Debian or Ubuntu the EGL renderer needs ``libegl1`` and ``libgl1-mesa-dri``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from fighter_env import anatomy
from fighter_env.errors import ConfigError

if TYPE_CHECKING:
    from fighter_env.env import FighterEnv

__all__ = ["Camera", "check_films", "write_film", "write_picture"]

SEEN, HIDDEN = (0.10, 0.75, 0.20, 1.0), (0.55, 0.55, 0.55, 1.0)
STICK = (0.86, 0.10, 0.08, 1.0)
_BONES = (
    ("head", "chest"),
    ("chest", "pelvis"),
    *(
        pair
        for side in ("left", "right")
        for pair in (
            ("chest", f"{side}_shoulder"),
            (f"{side}_shoulder", f"{side}_elbow"),
            (f"{side}_elbow", f"{side}_glove"),
            ("pelvis", f"{side}_hip"),
            (f"{side}_hip", f"{side}_knee"),
            (f"{side}_knee", f"{side}_foot"),
        )
    ),
)


class Camera:
    """Draws worlds of one environment.

    Args:
        env: The environment.
        width, height: Size of a picture in pixels.
        distance, azimuth, elevation: Place of the camera round the fighters (m, degrees).

    Raises:
        ConfigError: No OpenGL renderer can be started.
    """

    def __init__(
        self,
        env: FighterEnv,
        width: int = 960,
        height: int = 540,
        distance: float = 3.0,
        azimuth: float = 120.0,
        elevation: float = -12.0,
    ) -> None:
        self._env = env
        self._model = env.physics.model
        self._data = mujoco.MjData(self._model)
        self._size = (width, height)
        self._context = _make_context(width, height)
        self._draw = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._draw)
        self._scene = mujoco.MjvScene(self._model, maxgeom=500)
        self._camera = mujoco.MjvCamera()
        self._camera.distance, self._camera.azimuth = distance, azimuth
        self._camera.elevation = elevation
        self._option = mujoco.MjvOption()
        self._option.geomgroup[:] = [1, 1, 1, 0, 0, 0]
        self._option.sitegroup[:] = 0

    def picture(self, world: int = 0) -> np.ndarray:
        """One world as uint8 of shape (height, width, 3)."""
        env, data = self._env, self._data
        physics = env.physics
        data.qpos[:] = physics.qpos[world].cpu().numpy()
        data.mocap_pos[:] = physics.mocap_pos[world].cpu().numpy()
        data.mocap_quat[:] = physics.mocap_quat[world].cpu().numpy()
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_camlight(self._model, data)
        middle = data.body("pelvis").xpos.copy()
        if bool(env.opponent.present[world]):
            middle = 0.5 * (middle + data.body("opponent_pelvis").xpos)
        self._camera.lookat[:] = [middle[0], middle[1], 0.92]
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        if bool(env.opponent.present[world]):
            self._draw_opponent(world)
        width, height = self._size
        self._context.make_current()
        view = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(view, self._scene, self._draw)
        pixels = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, view, self._draw)
        return np.ascontiguousarray(pixels[::-1])

    def close(self) -> None:
        """Frees the renderer."""
        self._draw.free()
        self._context.free()

    def _draw_opponent(self, world: int) -> None:
        from fighter_env.sight import KEYPOINTS

        env = self._env
        env.sight.look(env.physics.sensors, env.physics.mocap_pos, env.physics.mocap_quat)
        seen = env.sight.seen[world].cpu().numpy()
        points = dict(
            zip(KEYPOINTS, env.sight.place[world].cpu().numpy().astype(float), strict=True)
        )
        for start, end in _BONES:
            self._add(mujoco.mjtGeom.mjGEOM_CAPSULE, STICK, 0.022, points[start], points[end])
        self._add(
            mujoco.mjtGeom.mjGEOM_SPHERE, (*STICK[:3], 0.15), anatomy.HEAD_RADIUS, points["head"]
        )
        for side in ("left", "right"):
            glove = points[f"{side}_glove"]
            self._add(mujoco.mjtGeom.mjGEOM_SPHERE, (*STICK[:3], 0.6), anatomy.GLOVE_RADIUS, glove)
        for index, point in enumerate(points.values()):
            colour = SEEN if seen[index] else HIDDEN
            self._add(mujoco.mjtGeom.mjGEOM_SPHERE, colour, 0.04, point)

    def _add(
        self,
        kind: Any,
        colour: tuple[float, ...],
        radius: float,
        start: np.ndarray,
        end: np.ndarray | None = None,
    ) -> None:
        scene = self._scene
        if scene.ngeom >= scene.maxgeom:
            return
        geom = scene.geoms[scene.ngeom]
        size = np.full(3, radius)
        mujoco.mjv_initGeom(
            geom, kind, size, start, np.eye(3).ravel(), np.array(colour, np.float32)
        )
        if end is not None:
            mujoco.mjv_connector(geom, kind, radius, start, end)
        scene.ngeom += 1


def _make_context(width: int, height: int) -> Any:
    """A current OpenGL context without a window."""
    try:
        if os.environ.get("MUJOCO_GL"):
            context = mujoco.GLContext(width, height)
        else:
            from mujoco.egl import GLContext

            context = GLContext(width, height)
        context.make_current()
    except (RuntimeError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"no OpenGL renderer ({error}); install libegl1 and libgl1-mesa-dri, or set "
            "MUJOCO_GL=osmesa and install libosmesa6"
        ) from error
    return context


def write_picture(picture: np.ndarray, path: str | Path) -> None:
    """Writes a PNG."""
    import imageio.v3 as imageio

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    imageio.imwrite(path, picture)


def check_films() -> None:
    """Whether films can be written.

    Raises:
        ConfigError: ``imageio-ffmpeg`` is not installed.
    """
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"films need imageio-ffmpeg ({error}): pip install 'kscheduler[render]'"
        ) from error


def write_film(pictures: list[np.ndarray], path: str | Path, fps: float = 50.0) -> None:
    """Writes an mp4 (needs the package ``imageio-ffmpeg``, the extra ``render``).

    Raises:
        ConfigError: ``imageio-ffmpeg`` is not installed.
    """
    check_films()
    import imageio

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with imageio.get_writer(path, fps=fps, macro_block_size=4) as writer:
            for picture in pictures:
                writer.append_data(picture)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
