"""Charts that stand by themselves."""

from xml.etree import ElementTree

import pytest

from calibrators.display.picture import Picture, picture_of
from calibrators.errors import OutputError

CHART = (
    '<svg viewBox="0 0 340 150" class="chart" aria-hidden="true"><rect style="fill: var(--bar)"/>'
    "<text>1 k</text></svg>"
)


def test_a_chart_brings_its_size_its_colours_and_its_title():
    picture = picture_of(CHART, 'a <b> & "c"')
    root = ElementTree.fromstring(picture._repr_svg_())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("476", "210", "0 0 340 150")
    assert root.get("aria-label") == 'a <b> & "c"' and root.get("aria-hidden") is None
    assert root.get("style").startswith("--bar:#8fa3b5;--accent:")
    assert [child.tag.split("}")[1] for child in root] == ["rect", "text"]


def test_it_is_shown_and_saved(tmp_path):
    picture = Picture("<svg/>", "a < b")
    assert repr(picture) == "<Picture: a < b>"
    assert picture._repr_html_() == "<div><div>a &lt; b</div><svg/></div>"
    assert picture.save(tmp_path / "a.svg").read_text() == "<svg/>"


@pytest.mark.parametrize("name", ["a.png", "a.html", "a"])
def test_a_picture_is_written_as_svg_alone(tmp_path, name):
    with pytest.raises(
        OutputError, match=rf"the picture '.*{name}': a picture is written as SVG .* in \.svg$"
    ):
        Picture("<svg/>", "a").save(tmp_path / name)
    assert not list(tmp_path.iterdir())
