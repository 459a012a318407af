"""The site of the documentation is complete, and MkDocs builds it without a warning."""

import argparse
import html
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibrators.tensorrt
import trtint8
from trtint8.cli.main import VERBS

ROOT = Path(__file__).parents[2]

#: Where the site is published, its address is known.
REPOSITORY = "https://example.org/trtint8"

# All tests look at one site, which one worker builds.
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            pytest.skip("MkDocs is not installed (pip install 'trtint8[docs]')")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": REPOSITORY}
    environment.pop("PYTHONPATH", None)  # README's command needs none, and may be run in any folder
    # Not --quiet: warnings that are not shown are not counted, and so do not fail a strict build.
    command = [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "-f", ROOT / "mkdocs.yml"]
    command += ["--site-dir", folder]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def anchors(site, page):
    pages = (site / page).rglob("index.html")
    return {name for one in pages for name in re.findall(r'id="([^"]+)"', one.read_text())}


def test_every_public_name_is_in_the_reference(site):
    found = anchors(site, "reference/python") | anchors(site, "reference/types")
    assert {f"trtint8.{name}" for name in trtint8.__all__} <= found


def test_every_calibrator_is_in_the_reference(site):
    text = (site / "reference/calibrators/index.html").read_text()
    assert all(f"<code>{name}</code>" in text for name in calibrators.tensorrt.__all__)
    assert "calibrators.tensorrt.calibrator.Calibrator" in anchors(site, "reference/calibrators")


def test_docstrings_lead_to_what_they_name(site):
    for page, target in (
        ("calibrate", "#trtint8.model_inputs"),
        ("calibrate", "../../types/data/#calibrators.data.opening.open_batches"),
        ("judge", "../calibrate/#trtint8.calibrate"),
    ):
        assert f'href="{target}"' in (site / "reference/python" / page / "index.html").read_text(), target


def test_every_verb_and_option_is_in_the_reference(site):
    text = (site / "reference/command-line/index.html").read_text()
    assert "%(default)" not in text
    assert set(VERBS) <= anchors(site, "reference/command-line")
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
        for option in parser._option_string_actions:
            assert option in ("-h", "--help") or re.search(
                rf'<code>(?:<span class="whole">)?{option}[ <]', text
            ), f"{verb} {option}"


def test_the_page_of_json_has_every_verb_and_the_schema(site):
    schema = json.loads((site / "reference/json.schema.json").read_text())
    verbs = {name.removeprefix("verb ") for name in schema["$defs"] if name.startswith("verb ")}
    assert {"calibrate", "validate", "table diff"} <= verbs
    assert {verb.replace(" ", "-") for verb in verbs} <= anchors(site, "reference/json")
    assert 'href="../json.schema.json"' in (site / "reference/json/index.html").read_text()


def test_every_page_has_the_version_and_a_link_to_the_repository(site):
    for page in site.rglob("index.html"):
        [foot] = re.findall(r'<div class="md-copyright__highlight">(.*?)</div>', page.read_text(), re.DOTALL)
        assert f"trtint8 {trtint8.__version__}" in foot and f'href="{REPOSITORY}"' in foot, page
    assert 'data-md-component="source"' not in (site / "index.html").read_text()


def test_signatures_are_formatted(site):
    text = (site / "reference/python/calibrate/index.html").read_text()
    assert re.search(r"calibrate</span><span[^>]*>\(</span>\s*\n", text)


def test_output_has_a_language_of_its_own_and_no_button(site):
    text = (site / "tutorial/index.html").read_text()
    assert len(re.findall('class="language-sh highlight"', text)) >= 5
    assert len(re.findall('class="language-text highlight"', text)) >= 5
    style = (site / "stylesheets/extra.css").read_text()
    assert re.search(r"language-text \.md-code__nav\s*\{\s*display: none", style)
    # The button copies what is shown, in which each block begins a line of its own.
    assert re.search(r"\.line \{\s*display: inline-block", style)


def test_no_column_lacks_a_heading(site):
    for page in site.rglob("index.html"):
        for head in re.findall("<thead>(.*?)</thead>", page.read_text(), re.DOTALL):
            headings = [text.strip() for text in re.findall("<th[^>]*>(.*?)</th>", head, re.DOTALL)]
            assert all(headings) or not any(headings), (page, headings)


def test_lines_are_not_divided_within_options_and_figures(site):
    text = (site / "tutorial/index.html").read_text()
    assert re.search(r'<code><span class="whole">--max-drop</span> 1</code>', text)  # in a sentence
    assert re.search(r'<span class="whole">--max-drop</span><span class="w"> </span>', text)  # in a command
    assert (
        "95\N{NO-BREAK SPACE}% interval" in text and "95 % interval" in text
    )  # printed output stays as it is
    assert not re.search(r'id="__line', text)


def test_cells_of_tables_have_the_headings_of_their_columns(site):
    text = (site / "models/index.html").read_text()
    assert re.search('<td data-heading="network">alexnet</td>', text)
    assert len(re.findall('<td data-heading="SQNR">', text)) == len(
        re.findall('<td data-heading="network">', text)
    )


def test_docstrings_show_no_roles(site):
    for page in (site / "reference").rglob("index.html"):
        assert not re.findall(r":(?:func|class|meth|mod|data):", page.read_text()), page


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'(?:src|<link[^>]* href)="(https?:[^"]*)"', page.read_text())
        assert not loaded, page.name


def test_the_page_of_examples_shows_their_scripts(site):
    text = (site / "how-to/examples/index.html").read_text()
    shown = re.sub(r"<[^>]+>", "", text)
    for script in sorted((ROOT / "examples").glob("0*/*.py")):
        first = script.read_text().splitlines()[0].strip('"')
        assert html.escape(first, quote=False) in shown, script
    assert "8&lt;" not in text
