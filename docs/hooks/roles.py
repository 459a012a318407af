"""Docstrings refer to each other with Sphinx's roles: here they become links of the site, or code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):`~?([\w.]+)`")

#: What stands above a public name in the modules that define it.
_PUBLIC = "trtint8"


def links(text: str) -> str:
    """A docstring with links in place of roles; a name that the site does not have stays code."""
    return _ROLE.sub(_link, text)


def _link(match: re.Match[str]) -> str:
    name = match[1]
    parts = name.split(".")
    # A method is named with its class; modules are written in lower case.
    first = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    shown = ".".join(parts[first:])
    target = name if name.startswith(("calibrators.tensorrt.", "trtint8.api")) else f"{_PUBLIC}.{shown}"
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'


class Roles(griffe.Extension):
    """Replaces roles in every docstring that griffe reads."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Changes the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = links(obj.docstring.value)
