"""The page of a comparison: valid and escaped."""

import pytest

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.report.samples import HOSTILE
from trtint8.report.comparison import ComparedRow, RunComparison
from trtint8.report.page import render_comparison

html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")

COMPARISON = RunComparison(
    ("first", "<second>"),
    (ComparedRow("kernels", ("2", "3")), ComparedRow("latency, median", ("0.500 ms", None))),
    (ComparedRow(HOSTILE, ("INT8", "FP32")),),
    ("kernels",),
    (),
)


def test_the_tables_have_every_value():
    page = render_comparison(COMPARISON)
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    rows = [["".join(cell.itertext()) for cell in row] for row in document.iter("tr")]
    assert rows == [
        ["figure", "first", "<second>"],
        ["kernels differs", "2", "3"],
        ["latency, median", "0.500 ms", "–"],
        ["layer", "first", "<second>"],
        [f"{HOSTILE} differs", "INT8", "FP32"],
    ]
    assert {head.get("scope") for head in document.iter("th")} == {"row", "col"}
    assert len(list(document.iter("caption"))) == 2
    assert "Different: kernels." in page and "<b>&" not in page
    assert "http:" not in page and "https:" not in page


def test_only_a_difference_beyond_chance_is_loud():
    rows = (
        ComparedRow("kernels", ("2", "3")),
        ComparedRow("top-1", ("79 %", "80 %"), False),
        ComparedRow("agreement", ("80 %", "99 %"), True),
    )
    comparison = RunComparison(("a", "b"), rows, (), ("kernels", "agreement"), (), ("b is <best>",))
    page = render_comparison(comparison)
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    marks = [one for one in document.iter("span") if "mark" in one.get("class", "")]
    assert [(mark.text, "tested" in mark.get("class")) for mark in marks] == [
        ("differs", False), ("within chance", False), ("differs", True),
    ]  # fmt: skip
    assert page.index("b is &lt;best&gt;.") < page.index("Different: ") < page.index("<h2>")


def test_doubts_stand_above_the_verdict_which_refers_to_them():
    rows = (ComparedRow("top-1", ("79 %", "80 %"), False),)
    comparison = RunComparison(("a", "b"), rows, (), (), (), ("b is best",), ("a: <x>", "b: y", "note: b: z"))
    page = render_comparison(comparison)
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    (box,) = (one for one in document.iter("div") if one.get("class") == "warning")
    assert [item.text for item in box.iter("li")] == ["a: <x>.", "b: y."]
    doubted = [one.text for one in document.iter("p") if "doubted" in one.get("class", "")]
    assert len(doubted) == 1 and doubted[0].endswith(": b is best.")
    (notes,) = (one for one in document.iter("ul") if one.get("class") == "notes")
    assert [item.text for item in notes.iter("li")] == ["b: z."]
    assert page.index("b: y") < page.index("b is best.")
    assert "doubted" not in render_comparison(COMPARISON).partition("</style>")[2]


def test_nothing_differs():
    page = render_comparison(RunComparison(("a", "b"), (ComparedRow("kernels", ("2", "2")),), (), (), ()))
    assert "No figure differs." in page and "Layers in another precision" not in page


def test_a_comparison_in_one_line():
    assert repr(COMPARISON) == "<RunComparison: first, <second>; 1 of 2 figures differ>"
