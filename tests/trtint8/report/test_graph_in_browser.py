"""The graph in a browser: drawn, searched, moved and zoomed, with the mouse, the wheel and the keyboard."""

import dataclasses
import itertools
import re
import time

import pytest

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.report.samples import HOSTILE
from trtint8.report.facts import gather
from trtint8.report.graph import GraphEdge, GraphNode, NetworkGraph
from trtint8.report.layers import Cell
from trtint8.report.page import render

pytestmark = pytest.mark.slow

_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}


@pytest.fixture(scope="module")
def small(found, tmp_path_factory):
    """A page with a network of three operators."""
    path = tmp_path_factory.mktemp("small") / "report.html"
    path.write_text(render(gather(found)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def large(found, tmp_path_factory):
    """A page with a chain of 60 blocks of three operators, the first of which is skipped by a tensor."""
    operators = ("Conv", "Relu", "Add")
    nodes = tuple(
        GraphNode(Cell(f"/block{place // 3}/{operators[place % 3]}", operators[place % 3], "INT8"), "so")
        for place in range(180)
    )
    ends = [(place, place + 1) for place in range(179)]
    ends += [(place, place + 3) for place in range(2, 177, 3)]
    graph = NetworkGraph(nodes, tuple(GraphEdge(*pair, True) for pair in ends), 0)
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(render(dataclasses.replace(gather(found), graph=graph)), encoding="utf-8")
    return path


def opened(browser, page, **view):
    """Loads a page and waits until its graph is drawn."""
    browser.open(page, **{"width": 1280, **view})
    browser.evaluate("document.getElementById('graph').scrollIntoView()")
    wait(browser, "document.querySelector('.canvas g').style.transform.includes('translate')")


def wait(browser, condition):
    end = time.monotonic() + 60
    while not browser.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.02)


def scale_and_shift(browser):
    """The scale of the picture and its shift in both directions, when nothing moves any more."""
    script = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
        setTimeout(() => done(document.querySelector('.canvas g').style.transform)))))"""
    answer = browser("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
    return tuple(map(float, re.findall(r"-?[\d.]+(?:e-\d+)?", answer["result"]["value"])))


def press(browser, key):
    text = {"text": key} if len(key) == 1 else {}
    code = _KEYS.get(key, ord(key[0]))
    browser("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
    browser("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


def middle(browser):
    return browser.evaluate("""(() => { const at = document.querySelector('.canvas').getBoundingClientRect();
        return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()""")


def search(browser, words):
    browser.evaluate("document.getElementById('graph-find').focus()")
    browser("Input.insertText", text=words)


def facts(browser):
    return browser.evaluate("document.getElementById('graph-facts').textContent").replace("\xa0", " ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_all_boxes_are_seen_and_nothing_is_loaded(browser, large, width, scheme):
    opened(browser, large, width=width, scheme=scheme)
    outside = """(() => { const all = document.querySelector('.canvas').getBoundingClientRect();
        return [...document.querySelectorAll('.box')].filter(box => { const at = box.getBoundingClientRect();
            return at.left < all.left || at.right > all.right || at.top < all.top || at.bottom > all.bottom;
        }).length; })()"""
    assert browser.evaluate("document.querySelectorAll('.box').length") == 180
    assert browser.evaluate(outside) == 0
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [large.resolve().as_uri()]


def test_boxes_do_not_overlap_and_stand_in_the_order_of_the_network(browser, large):
    opened(browser, large)
    places = browser.evaluate("""[...document.querySelectorAll('.box')].map(box => {
        const at = box.getBoundingClientRect(); return [Number(box.dataset.index), at.left, at.top, at.right,
        at.bottom]; })""")
    places.sort()
    for number, (_, left, top, right, bottom) in enumerate(places):
        for _, *other in places[:number]:
            assert left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
    # A box follows to the right of the one before it, or begins a new row.
    pairs = list(itertools.pairwise(places))
    assert all(after[1] > before[1] or after[2] > before[2] for before, after in pairs)
    assert sum(after[1] < before[1] for before, after in pairs) >= 5


def test_the_same_picture_every_time(browser, large):
    drawn = []
    for _ in range(2):
        opened(browser, large)
        drawn.append(browser.evaluate("document.querySelector('.canvas').innerHTML"))
    assert drawn[0] == drawn[1] and "tensor int8" in drawn[0]


def test_keys_zoom_and_move(browser, large):
    opened(browser, large)
    whole = scale_and_shift(browser)
    browser.evaluate("document.querySelector('.canvas').focus()")
    press(browser, "+")
    assert scale_and_shift(browser)[0] == pytest.approx(1.3 * whole[0], rel=1e-4)
    press(browser, "-")
    assert scale_and_shift(browser) == pytest.approx(whole, rel=1e-4, abs=0.1)
    press(browser, "ArrowRight")
    assert scale_and_shift(browser)[1] == pytest.approx(whole[1] - 80 / whole[0], rel=1e-3)
    press(browser, "0")
    assert scale_and_shift(browser) == pytest.approx(whole, rel=1e-4)
    assert browser.messages == []


def test_the_wheel_zooms_at_the_pointer_once_the_picture_has_the_focus(browser, large):
    opened(browser, large)
    whole = scale_and_shift(browser)
    at = middle(browser)
    scrolled = browser.evaluate("scrollY")
    browser("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-100, **at)
    wait(browser, f"scrollY < {scrolled}")
    assert scale_and_shift(browser) == whole
    browser.evaluate("document.querySelector('.canvas').focus()")
    at = middle(browser)
    scrolled = browser.evaluate("scrollY")
    browser("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-100, **at)
    wait(browser, f"!document.querySelector('.canvas g').style.transform.includes('scale({whole[0]})')")
    zoomed = scale_and_shift(browser)
    assert zoomed[0] > whole[0] and browser.evaluate("scrollY") == scrolled
    browser("Input.dispatchMouseEvent", type="mouseWheel", deltaX=50, deltaY=0, **at)
    shifted = f"translate({zoomed[1]}px"
    wait(browser, f"!document.querySelector('.canvas g').style.transform.includes('{shifted}')")
    assert scale_and_shift(browser)[0] == zoomed[0] and scale_and_shift(browser)[1] < zoomed[1]


def test_the_mouse_moves_the_picture_and_the_button_resets_it(browser, large):
    opened(browser, large)
    whole = scale_and_shift(browser)
    at = middle(browser)
    browser("Input.dispatchMouseEvent", type="mousePressed", button="left", buttons=1, clickCount=1, **at)
    for step in (30, 60):
        browser(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            button="left",
            buttons=1,
            x=at["x"] + step,
            y=at["y"],
        )
    browser("Input.dispatchMouseEvent", type="mouseReleased", button="left", x=at["x"] + 60, y=at["y"])
    assert scale_and_shift(browser)[1] == pytest.approx(whole[1] + 60 / whole[0], rel=1e-2)
    browser.evaluate("document.getElementById('graph-in').click()")
    assert scale_and_shift(browser)[0] > whole[0]
    browser.evaluate("document.getElementById('graph-reset').click()")
    assert scale_and_shift(browser) == pytest.approx(whole, rel=1e-4)


def test_two_fingers_zoom(browser, large):
    opened(browser, large, width=360)
    whole = scale_and_shift(browser)
    at = middle(browser)
    browser("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    for kind, apart in (("touchStart", 20), ("touchMove", 40), ("touchMove", 80)):
        points = [{"x": at["x"] + side * apart, "y": at["y"], "id": side + 1} for side in (-1, 1)]
        browser("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    browser("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser("Emulation.setTouchEmulationEnabled", enabled=False)
    assert scale_and_shift(browser)[0] > 1.2 * whole[0]


def test_tab_leads_to_a_box_and_arrows_to_the_others(browser, small):
    opened(browser, small)
    browser.evaluate("document.querySelector('.canvas').focus()")
    press(browser, "Tab")
    label = "document.activeElement.getAttribute('aria-label')"
    assert browser.evaluate(label) == "images: Input of the network. N×3×16×16."
    press(browser, "ArrowRight")
    words = "Conv in INT8: Q/DQ pairs stand before its operands. "
    words += "75.0 % of the noise, alone 30.0 dB, here 42.0 dB."
    assert browser.evaluate(label).replace("\xa0", " ") == f"{HOSTILE}: {words} Writes N×16×16×16."
    assert facts(browser) == f"{HOSTILE} {words} Writes N×16×16×16. What it costs"
    assert browser.evaluate("document.querySelector('#graph-facts a').hash") == "#layer-1"
    press(browser, "ArrowLeft")
    press(browser, "ArrowLeft")
    assert browser.evaluate(label).startswith("images: ")
    assert browser.evaluate("document.querySelectorAll('.box[tabindex=\"0\"]').length") == 1
    press(browser, "Escape")
    assert browser.evaluate("document.activeElement.classList.contains('canvas')")
    assert browser.messages == []


def test_the_pointer_shows_what_is_known_of_a_box(browser, small):
    opened(browser, small)
    at = browser.evaluate("""(() => { const at = document.querySelectorAll('.box')[2].getBoundingClientRect();
        return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()""")
    assert facts(browser).startswith("Point at a box")
    browser("Input.dispatchMouseEvent", type="mouseMoved", **at)
    wait(browser, "document.getElementById('graph-facts').textContent.startsWith('relu')")
    assert facts(browser).startswith("relu Relu, not listed: no kernel of the engine names it; it was folded")
    browser("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    wait(browser, "document.getElementById('graph-facts').textContent.startsWith('Point at a box')")


def test_search_finds_names_and_operators(browser, large):
    opened(browser, large)
    found = "document.getElementById('graph-found').textContent"
    search(browser, "BLOCK17/")
    assert browser.evaluate(found) == "1 of 3"
    assert facts(browser).startswith("/block17/Conv Conv in INT8: so.")
    assert browser.evaluate("document.querySelectorAll('.box.match').length") == 3
    assert scale_and_shift(browser)[0] == pytest.approx(0.8)
    at = browser.evaluate("""(() => { const at = document.querySelector('.current').getBoundingClientRect();
        return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()""")
    assert at == pytest.approx(middle(browser), abs=3)
    press(browser, "Enter")
    assert browser.evaluate(found) == "2 of 3" and facts(browser).startswith("/block17/Relu")
    search(browser, "nowhere")
    assert browser.evaluate(found) == "none"


def test_on_paper_the_whole_network_is_one_picture(browser, large, tmp_path):
    opened(browser, large, width=700)
    before = scale_and_shift(browser)
    browser("Emulation.setEmulatedMedia", media="print", features=[])
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    width, height, boxes = browser.evaluate("""(() => {
        const at = document.querySelector('.canvas').getBoundingClientRect();
        return [at.width, at.height, document.querySelectorAll('.box').length]; })()""")
    assert width <= 700 and 300 < height < 1000 and boxes == 180
    assert browser.evaluate("getComputedStyle(document.querySelector('.graph-tools')).display") == "none"
    browser("Emulation.setEmulatedMedia", media="")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert scale_and_shift(browser) == pytest.approx(before, rel=1e-4)
    browser.pdf(tmp_path / "report.pdf")
    assert browser.messages == []


def test_it_is_drawn_when_the_reader_comes_near(browser, large):
    browser.open(large, width=360, height=600)
    far = browser.evaluate("document.getElementById('graph').getBoundingClientRect().top")
    assert far > 600 + 800 and browser.evaluate("document.querySelectorAll('.box').length") == 0
    browser.evaluate("document.getElementById('graph-find').focus()")
    assert browser.evaluate("document.querySelectorAll('.box').length") == 180
