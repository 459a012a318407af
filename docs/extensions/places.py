"""A Markdown extension that fills in a place of a page with text that is made while the site is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor


class Place(Extension):
    """Replaces one line of a page with other lines of Markdown.

    Attributes:
        line: The line that is replaced, a comment.
        lines: Makes the lines that take its place; called only where the line stands.
    """

    def __init__(self, line: str, lines: Callable[[], Iterable[str]]) -> None:
        super().__init__()
        self.line, self.lines = line, lines

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Python-Markdown calls
        """Fills the place in before any other extension sees the page."""
        md.preprocessors.register(_Filler(self), self.line, 1000)


class _Filler(Preprocessor):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def run(self, lines: list[str]) -> list[str]:
        if self.place.line not in lines:
            return lines
        before = lines.index(self.place.line)
        # A text may have more than one line.
        made = "\n".join(self.place.lines()).split("\n")
        return [*lines[:before], *made, *lines[before + 1 :]]
