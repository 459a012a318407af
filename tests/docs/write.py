"""Fills in what the pages of the documentation show of what their code prints.

``python -m tests.docs.write [PAGE ...]``, such as ``tutorial.md``; without a page, all of them. A page whose
needs are not there is left as it is. What changes belongs to the commit that changes the output.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.docs.code_blocks import ROOT, blocks_of, fits, needs_of, run_page, shown

DOCS = ROOT / "docs"


def write(page: Path) -> bool:
    """Runs a page and writes its blocks of output anew where they no longer fit.

    Returns:
        Whether the page was changed.
    """
    text = page.read_text()
    if not any(block.output for block in blocks_of(text)):
        return False
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            outputs = run_page(page)
        finally:
            os.chdir(before)
    lines = text.split("\n")
    for block, printed in reversed(outputs):
        if not fits(block, printed):
            end = block.line - 1 + block.code.count("\n")
            lines[block.line - 1 : end] = textwrap.indent(shown(printed), block.indent).split("\n")[:-1]
    page.write_text("\n".join(lines))
    return "\n".join(lines) != text


def main(names: list[str]) -> None:
    """Writes the pages of these names, or all."""
    for page in [DOCS / name for name in names] or sorted(DOCS.rglob("*.md")):
        needs = [name for name in needs_of(page.read_text()) if name != "slow"]
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        name = page.relative_to(DOCS).as_posix()
        if missing:
            sys.stdout.write(f"{name}: left as it is, {', '.join(missing)} is missing\n")
        elif write(page):
            sys.stdout.write(f"{name}: written\n")


if __name__ == "__main__":
    main(sys.argv[1:])
