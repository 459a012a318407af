"""The code of every page of the documentation does what the page says."""

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import RUN, blocks_of, commands_of, fits, needs_of, run_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

#: What blocks hold; programs in other languages would not be run.
LANGUAGES = {*RUN, "text", "toml"}

#: Pages whose indented text is a picture.
PICTURES = ("architecture.md",)


def page_parameters():
    """Every page that has code to run, marked with what it needs."""
    texts = {page: page.read_text() for page in PAGES}
    return [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if "slow" in needs_of(text) else [])
        for page, text in texts.items()
        if any(block.language in RUN and block.not_run is None for block in blocks_of(text))
    ]


def name_of(page):
    return page.relative_to(DOCS).as_posix()


# Of PyTorch's exporter, about PyTorch itself.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("page", page_parameters())
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    for module in needs_of(page.read_text()):
        if module != "slow":
            pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    assert run_page(page) > 0


def indented_code(text):
    """Lines that Markdown takes for code because they are indented, outside lists, tabs and notes."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE).split("\n")
    outer, found = "", []
    for before, line in zip(["", *prose], prose, strict=False):
        if line.startswith("    ") and not before and not re.match(r"  |[-*] |\d+\. |=== |!!! ", outer):
            found.append(line)
        elif line and not line.startswith("    "):
            outer = line
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_code_says_what_it_is(page):
    text = page.read_text()
    assert {block.language for block in blocks_of(text)} <= LANGUAGES
    assert name_of(page) in PICTURES or not indented_code(text)


def test_indented_code_is_found():
    assert indented_code("text:\n\n    code\n\n- item\n\n    its text\n") == ["    code"]


PAGE = """# A page

<!-- tested: slow, torch -->

```python
a = 1
```

=== "Here"

    ```python
    print(a + 1)
    ```

    ```text title="Output"
    2
    ```

<!-- not run: needs a GPU -->

```console
$ trtint8 run \\
    it.engine
done
$ ls
```
"""


def test_blocks_are_found_with_their_comments():
    found = [(block.language, block.line, block.not_run, block.output) for block in blocks_of(PAGE)]
    assert found == [
        ("python", 6, None, False),
        ("python", 12, None, False),
        ("text", 16, None, True),
        ("console", 22, "needs a GPU", False),
    ]
    assert blocks_of(PAGE)[1].code == "print(a + 1)\n"
    assert needs_of(PAGE) == ["slow", "torch"]
    assert commands_of(blocks_of(PAGE)[3].code) == [("trtint8 run      it.engine", "done\n"), ("ls", "\n")]


def test_a_page_runs_in_one_namespace(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run_page(page) == 2
    page.write_text(PAGE.replace("\n    2\n", "\n    3\n"))
    with pytest.raises(AssertionError, match=r"page.md:16 says\n3\n"):
        run_page(page)


@pytest.mark.parametrize(
    ("console", "words"),
    [("$ pip install trtint8", "page.md:2: 'pip' is not run"), ("$ trtint8 table show no.json", "no.json")],
)
def test_a_command_that_fails_is_named(tmp_path, console, words):
    page = tmp_path / "page.md"
    page.write_text(f"```console\n{console}\n```\n")
    with pytest.raises(AssertionError, match=words):
        run_page(page)


def test_what_is_printed_may_be_shortened():
    assert fits("top-1  99.5 %\n...\ndone", "top-1 99.5 %\nmore\ndone\n")
    assert fits("SQNR ... dB", "SQNR 36.7 dB") and fits("...\ndone", "done")
    assert not fits("done", "done\nmore") and not fits("36.... dB", "37.1 dB")
