"""What a gateway adds to sandboxes: templates of one's own, sessions that fork, groups of forks, environments."""

from __future__ import annotations

from collimate_rl._env import Env
from collimate_rl._templates import Ready, Template, TemplateHandle, TemplateStatus
from collimate_rl.errors import TemplateBakeFailed
from collimate_rl.session import ForkGroup, Session, open_session

__all__ = [
    "Env",
    "ForkGroup",
    "Ready",
    "Session",
    "Template",
    "TemplateBakeFailed",
    "TemplateHandle",
    "TemplateStatus",
    "open_session",
]
