"""Docstrings refer to each other with Sphinx's roles: here they become links of the site, or code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):`~?([\w.]+)`")

#: The packages with which a full name begins.
_PACKAGES = ("trtint8", "calibrators")


def links(text: str) -> str:
    """A docstring with links in place of roles; a name that the site does not have stays code."""
    return _ROLE.sub(_link, text)


def _link(match: re.Match[str]) -> str:
    name = match[1]
    parts = name.split(".")
    # A method is named with its class; modules are written in lower case.
    first = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    shown = ".".join(parts[first:])
    # What stands in a module under its full name is found under it, and under its public name, too.
    target = name if parts[0] in _PACKAGES else f"trtint8.{name}"
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'


class Roles(griffe.Extension):
    """Replaces roles in every docstring that griffe reads."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Changes the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = links(obj.docstring.value)
