"""OpenEnv: environments of Docker images, started as forks of warm templates instead.

Works with `openenv` (0.10) and `openenv-core` (0.3), and imports neither: they call a provider by its methods.
"""

from __future__ import annotations

from collimate_rl.openenv.collimate_provider import CollimateProvider, image_to_template

__all__ = ["CollimateProvider", "image_to_template"]
