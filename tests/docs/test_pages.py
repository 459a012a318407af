"""The code of every page of the documentation does what the page says."""

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import RUN, blocks_of, commands_of, fits, needs_of, run_page
from tests.docs.write import write

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

#: What blocks hold; programs in other languages would not be run.
LANGUAGES = {*RUN, "text", "toml", "yaml"}

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
    for block, printed in run_page(page):
        # python -m tests.docs.write writes it anew.
        where = f"{name_of(page)}:{block.line}"
        assert fits(block, printed), f"{where} shows\n{block.code}\nbut printed was\n{printed}"


def indented_code(text):
    """Lines that Markdown takes for code because they are indented, outside lists, tabs and notes."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE).split("\n")
    outer, found = "", []
    for before, line in zip(["", *prose], prose, strict=False):
        if (
            line.startswith("    ")
            and not before
            and not re.match(r"  |[-*] |\d+\. |=== |!!! |\?\?\? ", outer)
        ):
            found.append(line)
        elif line and not line.startswith("    "):
            outer = line
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_code_says_what_it_is(page):
    text = page.read_text()
    assert {block.language for block in blocks_of(text)} <= LANGUAGES
    assert name_of(page) in PICTURES or not indented_code(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_copied_is_commands_and_what_is_shown_is_whole(page):
    for block in blocks_of(page.read_text()):
        lines = block.code.split("\n")
        if block.language == "sh":
            assert not [line for line in lines if line.startswith(("$", "...", "│"))], block.line
        elif block.output:
            assert not [line for line in lines if line.strip() == "..."], block.line


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

```sh
trtint8 run \\
    it.engine
# a comment
ls
```

```text title="Output"
done
```
"""


def test_blocks_are_found_with_their_comments():
    found = [(block.language, block.line, block.not_run, block.output) for block in blocks_of(PAGE)]
    assert found == [
        ("python", 6, None, False),
        ("python", 12, None, False),
        ("text", 16, None, True),
        ("sh", 22, "needs a GPU", False),
        ("text", 29, None, True),
    ]
    assert blocks_of(PAGE)[1].code == "print(a + 1)\n"
    assert needs_of(PAGE) == ["slow", "torch"]
    assert commands_of(blocks_of(PAGE)[3].code) == ["trtint8 run      it.engine", "ls"]


def test_a_page_runs_in_one_namespace(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert [(block.line, printed) for block, printed in run_page(page)] == [(16, "2\n")]


@pytest.mark.parametrize("shown", ["", "    9\n    8\n"])
def test_what_a_page_shows_is_written_anew(tmp_path, shown):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("    2\n", shown))
    assert write(page)
    assert page.read_text() == PAGE
    assert not write(page)


@pytest.mark.parametrize(
    ("command", "words"),
    [("pip install trtint8", "page.md:2: 'pip' is not run"), ("trtint8 table show no.json", "no.json")],
)
def test_a_command_that_fails_is_named(tmp_path, command, words):
    page = tmp_path / "page.md"
    page.write_text(f"```sh\n{command}\n```\n")
    with pytest.raises(AssertionError, match=words):
        run_page(page)


def output(code, remark=""):
    """The block of output of a page."""
    [block] = blocks_of(f'{remark}\n\n```text title="Output"\n{code}\n```\n')
    return block


@pytest.mark.parametrize(
    ("wanted", "printed"),
    [
        ("┏━━┓\n│ a │ 1 │\n└──┘\n", "┏━━━━┓\n│ a   │   1 │\n└────┘\n\n"),
        ("SQNR 36.7 dB", "SQNR 36.9 dB"),
        ("p = 0.01", "p = 0.03"),
        ("built in 1.2 s of 30 MiB by 10.3.0.26", "built in 1 min of 900 kB by 11.0.0.1"),
        ("a 9.5 %\nb 9.4 %", "b 9.6 %\na 9.4 %"),
    ],
)
def test_output_may_differ_as_machines_do(wanted, printed):
    assert fits(output(wanted), printed)


@pytest.mark.parametrize(
    ("wanted", "printed"),
    [
        ("done", "done\nmore"),
        ("done\nmore", "done"),
        ("9 of 9", "8 of 9"),
        ("36.7 dB", "33.0 dB"),
        ("... dB", "36.7 dB"),
        ("top-1 99.5 %", "top-5 99.5 %"),
        ("1", "one"),
    ],
)
def test_other_output_is_told_apart(wanted, printed):
    assert not fits(output(wanted), printed)


def test_half_of_the_rows_are_enough_where_a_page_says_so():
    block = output("a 1\nb 2\nc 3\nd 4", "<!-- rows may differ: a search -->")
    assert fits(block, "a 1\nd 4\ne 5") and not fits(block, "a 1\ne 5\nf 6")
