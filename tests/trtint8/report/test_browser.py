"""The page in a browser: on a phone, on a desk, in the dark and on paper."""

import pytest

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.report.worst_samples import WORST
from trtint8.report.facts import gather
from trtint8.report.page import render

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(gather(found, worst=WORST)), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 768, 900, 1280])
def test_fits_and_is_quiet(browser, page, width, scheme):
    browser.open(page, width=width, scheme=scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    # The mask of an attention has such magnitudes.
    figures = "document.querySelectorAll('.card summary span + span')"
    browser.evaluate(f"{figures}.forEach(one => one.textContent = '3.403e+38')")
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.resolve().as_uri()]


def test_dark_mode(browser, page):
    colours = {}
    for scheme in ("light", "dark"):
        browser.open(page, width=800, scheme=scheme)
        colours[scheme] = [
            browser.evaluate(f"getComputedStyle(document.querySelector('{one}')).{what}")
            for one, what in (("body", "backgroundColor"), ("body", "color"), (".chart text", "fill"))
        ]
    assert colours["light"][:2] == ["rgb(252, 252, 250)", "rgb(29, 33, 38)"]
    assert colours["dark"][:2] == ["rgb(21, 24, 28)", "rgb(228, 230, 232)"]
    assert colours["light"][2] != colours["dark"][2]


def test_a_cell_tells_its_layer_when_it_has_the_focus(browser, page):
    browser.open(page, width=360)
    seen = "getComputedStyle(document.querySelector('a.cell .tip')).visibility"
    assert browser.evaluate(seen) == "hidden"
    browser.evaluate("document.querySelector('a.cell').focus()")
    assert browser.evaluate(seen) == "visible"


def test_sorting(browser, page):
    browser.open(page, width=800)
    order = "[...document.querySelectorAll('.card')].map(card => Number(card.dataset.index))"
    levels = "[...document.querySelectorAll('.card')].map(card => card.dataset.sqnr)"
    assert browser.evaluate(levels)[-1] == "inf"
    first = browser.evaluate(order)
    choose = "sort.value = '{}'; sort.dispatchEvent(new Event('change'))"
    browser.evaluate("const sort = document.getElementById('sort'); " + choose.format("index"))
    assert browser.evaluate(order) == [0, 1, 2]
    browser.evaluate(choose.format("clipped"))
    clipped = browser.evaluate(
        "[...document.querySelectorAll('.card')].map(card => Number(card.dataset.clipped))"
    )
    assert clipped == sorted(clipped, reverse=True)
    browser.evaluate(choose.format("sqnr"))
    assert browser.evaluate(order) == first and browser.messages == []


def test_paper_is_white(browser, page, tmp_path):
    browser.open(page, width=800, scheme="dark")
    browser.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.sorting')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    # What is folded on a screen is printed.
    assert browser.evaluate("document.querySelector('.block:not([open]) table').checkVisibility()")
    browser("Emulation.setEmulatedMedia", media="")


def test_the_first_tab_leads_past_the_head(browser, page):
    browser.open(page, width=800)
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the figures"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    browser.evaluate("document.activeElement.click()")
    assert browser.evaluate("document.activeElement.id") == "main"
