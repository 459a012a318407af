"""The version that the site describes and a link to its repository, at the foot of every page."""

from __future__ import annotations

from typing import Any

from trtint8.version import __version__


def on_config(config: Any, **_kwargs: Any) -> Any:
    """What MkDocs calls with its configuration."""
    config.copyright = f"trtint8 {__version__}"
    if config.repo_url:
        config.copyright += f' · <a href="{config.repo_url}">repository</a>'
        config.repo_url = None  # with which the theme would ask GitHub for stars on every page
    return config
