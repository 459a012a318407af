"""The version that the site describes, at the foot of every page."""

from __future__ import annotations

from typing import Any

from trtint8.version import __version__


def on_config(config: Any, **_kwargs: Any) -> Any:
    """What MkDocs calls with its configuration."""
    config.copyright = f"trtint8 {__version__}"
    return config
