"""Lines of text and code: what is not divided at their end, and how wide tables are read on a phone."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString

#: A line of highlighted code; the numbers are not unique on a page with signatures.
_CODE_LINE = re.compile(r'<span id="__line[-\d]+">')

#: Commands as highlighted code, and an option in them.
_COMMANDS = re.compile(r'(?<=<div class="language-sh highlight">).*?(?=</pre>)', re.DOTALL)
_OPTION = re.compile(r"(?<=[\s>])--?[a-z][\w-]*(?=[\s<=])")

#: A figure and its unit.
_FIGURE = re.compile(r"(?<=\d) (?=%|(?:dB|[kMG]B|[MG]iB|ms|us|s)\b)")


def makeExtension() -> _Lines:  # noqa: N802 - the name that Python-Markdown calls
    """Returns the extension."""
    return _Lines()


class _Lines(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown's name
        # After the inline patterns, which have the priority 20.
        md.treeprocessors.register(_Processor(md), "lines", 15)
        md.postprocessors.register(_Code(md), "lines", 5)


class _Processor(Treeprocessor):
    def run(self, root: Element) -> None:
        _walk(root)
        for table in root.iter("table"):
            _label_cells(table)


class _Code(Postprocessor):
    def run(self, text: str) -> str:
        text = _CODE_LINE.sub('<span class="line">', text)
        return _COMMANDS.sub(lambda block: _OPTION.sub(r'<span class="whole">\g<0></span>', block[0]), text)


def _walk(element: Element) -> None:
    """Keeps figures and options whole in an element and all that it holds."""
    for child in element:
        child.tail = child.tail and _FIGURE.sub("\N{NO-BREAK SPACE}", child.tail)
        if child.tag == "code":
            _keep_options(child)
        elif child.tag != "pre":
            child.text = child.text and _FIGURE.sub("\N{NO-BREAK SPACE}", child.text)
            _walk(child)


def _keep_options(code: Element) -> None:
    """Keeps the options of an inline command whole: browsers would divide ``--int8`` after its dashes."""
    words = re.split(r"((?<!\S)--?[\w-]+)", code.text or "")
    code.text, last = AtomicString(words[0]), None
    for option, rest in zip(words[1::2], words[2::2], strict=True):
        last = SubElement(code, "span", {"class": "whole"})
        last.text, last.tail = AtomicString(option), AtomicString(rest)


def _label_cells(table: Element) -> None:
    """Gives each cell the heading of its column."""
    headings = ["".join(head.itertext()) for head in table.iter("th")]
    for row in table.iter("tr"):
        for cell, heading in zip(row.findall("td"), headings, strict=False):
            cell.set("data-heading", heading)
