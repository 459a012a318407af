"""What MkDocs runs of this folder: extensions of Markdown, the foot of the pages, and the schema of the JSON.

The site shows the sources that it stands among. So these are imported, and no trtint8 that is installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, _ROOT)

from docs.extensions import command_line, foot, json_output, lines  # noqa: E402


def on_config(config: MkDocsConfig) -> None:
    """Adds the extensions, which MkDocs cannot import by itself, the foot, and where snippets lie."""
    config.markdown_extensions += [module.__name__ for module in (command_line, json_output, lines)]
    config.mdx_configs["pymdownx.snippets"]["base_path"] = [_ROOT]
    config.copyright = foot.FOOT


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the schema beside the page that links it."""
    schema = json.dumps(json_output.schema(), indent=2)
    files.append(File.generated(config, "reference/json.schema.json", content=schema))
