"""The foot of every page: the version that the site describes, and a link to its repository if one is known.

Themes have settings for both. Those ask GitHub for stars on every page, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import os

from trtint8.version import __version__

_REPOSITORY = os.environ.get("REPOSITORY_URL")

#: The text, as HTML.
FOOT = f"trtint8 {__version__}" + (f' · <a href="{_REPOSITORY}">repository</a>' if _REPOSITORY else "")
