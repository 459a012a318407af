"""The page: valid, complete, escaped, and in need of nothing else."""

import dataclasses
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

import tests.trtint8.report.extra  # noqa: F401
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.report.samples import HOSTILE
from tests.trtint8.report.worst_samples import WORST
from trtint8.engine.layers import LayerReport
from trtint8.report.facts import gather
from trtint8.report.files import ReportFiles
from trtint8.report.graph import script_hash
from trtint8.report.layers import make_cards
from trtint8.report.page import OPEN_CARDS, describe_outcome, level_labels, render
from trtint8.report.worst import Answers, Worst, WorstSample
from trtint8.validation.accuracy import Measure
from trtint8.validation.significance import Share

html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")


@pytest.fixture(scope="module")
def page(found):
    """The page of all files, with the worst samples."""
    return render(gather(found, worst=WORST))


@pytest.fixture(scope="module")
def document(page):
    return parsed(page)


def parsed(page):
    """The document; fails where the page is not valid HTML."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)


def texts(element):
    """All text of an element, with a space around blocks and cells."""
    return " ".join("".join(pieces(element)).split())


def pieces(element):
    yield element.text or ""
    for child in element:
        around = " " if child.tag in ("td", "th", "p", "h2", "table", "div") else ""
        yield around
        yield from pieces(child)
        yield around + (child.tail or "")


def by_class(document, name):
    return [one for one in document.iter() if name in str(one.get("class", "")).split()]


def by_id(document, name):
    (found,) = (one for one in document.iter() if one.get("id") == name)
    return found


def rows_of(element):
    """The cells of a table, row by row."""
    return [[texts(cell).replace("\xa0", " ") for cell in row] for row in element.iter("tr")]


def changed(found, **changes):
    """The page of files whose contents differ in some fields, by their kinds; without cards of tensors."""
    fields = {kind: dataclasses.replace(getattr(found, kind), **given) for kind, given in changes.items()}
    fields = {"table": None, **fields}
    return render(gather(dataclasses.replace(found, **fields)))


def test_the_figures_of_the_facts_stand_in_the_page(document):
    tiles = [texts(tile) for tile in by_class(document, "tile")]
    assert tiles[0].startswith("top-1 FP32 80.00 % 75.8–83.6 % INT8 79.00 % 74.7–82.7 %")
    assert tiles[0].endswith("400 samples; 95 % intervals. The same class as FP32: 97.50 %.")
    assert tiles[1].startswith("Layers in INT8 1 of 2")
    assert tiles[2].startswith("Size 5.2 kB of weights in the engine. Engine file 1.0 kB Q/DQ model ")
    assert tiles[3] == "Latency 0.500 ms median for a batch of 8; GPU 1, random inputs."
    (verdict,) = by_class(document, "verdict")
    assert texts(verdict) == (
        "top-1: INT8 is 1.00 points below FP32 (95 % interval -2.00 to +0.10): more than chance on 400 "
        "samples (McNemar p = 0.04)."
    )
    assert [" ".join(row) for row in rows_of(by_id(document, "speed"))[1:]] == [
        "net.engine 8 0.500 ms 1.750 ms 16,000 4.00× 50.00 MB 0.054 ms",
        "FP32 8 2.000 ms 1.750 ms 4,000 1.00× – –",
    ]
    assert any(texts(item).startswith("kappa: INT8 is 0.05 below FP32") for item in document.iter("li"))


def test_the_kernels(document):
    section = by_id(document, "kernels")
    words = texts(section).replace("\xa0", " ")
    assert f"{' '.join(HOSTILE.split())} and second take longer in INT8" in words
    assert "INT8+FP16 moves 2.5x the bytes of FP16 here, 50 % of them in requantization" in words
    assert "Beside FP32 and FP16, on RTX 4090" in words and "not measured" in words
    tables = [[" ".join(filter(None, row)) for row in rows_of(one)] for one in section.iter("table")]
    assert tables[0] == ["part kernels", "INT8 compute 1", "float compute 1", "all 2"]
    assert tables[1][1:] == ["INT8 compute 2", "float compute 2", "requantization 2", "all 2 4"]
    assert tables[2][1:] == [
        "INT8 compute 25.00 MB",
        "float compute 20.00 MB",
        "requantization 25.00 MB",
        "all 20.00 MB 50.00 MB",
    ]
    assert tables[3][-1] == "all 0.022 ms 0.054 ms"


def test_what_int8_costs(document):
    (table,) = (one for one in document.iter("table") if "What INT8 costs by kind" in texts(one))
    rows = [texts(row).replace("\xa0", " ").split() for row in table.iter("tr")]
    heading, requantization, total = rows[0], rows[1], rows[-1]
    assert heading == ["part", "kernels", "layers", "time"]
    assert requantization[:2] == ["requantization", "2"] and requantization[-1] in ("us", "ms")
    assert total[0] == "all" and total[-1] == requantization[-1]
    name = HOSTILE.split()
    assert requantization[2 : 2 + len(name)] == [*name[:-1], f"{name[-1]},"]


def test_an_audit_without_costs(found):
    assert "What INT8 costs" not in changed(found, audit={"costs": ()})


def test_what_was_tried(document):
    section = by_id(document, "tried")
    words = texts(section).replace("\xa0", " ")
    name = " ".join(HOSTILE.split())
    assert f"Chosen: '{name}' back in INT8, 79.50 % with 87.5 % in INT8." in words
    assert "for top1: a drop of at most 1 point: top1 on the samples" in words
    assert rows_of(section) == [
        ["tried", "top1", "in INT8", "layers in float", "outcome"],
        ["as calibrated", "77.50 %", "100.0 %", "0", "taken"],
        ["bias correction", "78.00 %", "100.0 %", "0", ""],
        ["2 layers in float", "80.00 %", "50.0 %", "2", "taken"],
        [f"'{name}' back in INT8", "79.50 %", "87.5 %", "1", "chosen"],
        ["'second' back in INT8", "not a number", "62.5 %", "1", ""],
    ]
    (drawn,) = [one for one in section.iter("div") if one.get("role") == "img"]
    assert drawn.get("aria-label").startswith("top1 of 4 candidates over the share")
    charts = by_class(section, "chart")
    styles = [[path.get("style") for path in chart.iter() if path.tag.endswith("path")] for chart in charts]
    for paths in styles:
        assert sum("fill: var(--accent)" in (style or "") for style in paths) == 3
        assert sum("stroke: var(--loud)" in (style or "") for style in paths) == 1


def test_a_screen_reader_finds_sections_charts_and_tables(document):
    (contents,) = list(document.iter("nav"))
    ids = {one.get("id") for one in document.iter() if one.get("id")}
    links = [link.get("href")[1:] for link in contents.iter("a")]
    assert links == [
        "speed", "network", "kernels", "error", "layers", "tried", "tensors", "worst", "source",
    ]  # fmt: skip
    assert set(links) <= ids and "main" in ids
    assert by_class(document, "skip")[0].find("a").get("href") == "#main"
    named = [one for one in document.iter() if one.get("role") == "img" and one.tag == "div"]
    drawn = {id(chart) for one in named for chart in by_class(one, "chart")}
    assert all(one.get("aria-label") for one in named) and len(named) == 5
    assert {id(chart) for chart in by_class(document, "chart")} == drawn
    for table in document.iter("table"):
        if set(table.get("class").split()) & {"plain", "layers", "methods", "provenance"}:
            assert texts(table.find("caption"))
    assert all(one.get("scope") in ("row", "col") for one in document.iter("th"))
    for region in by_class(document, "scroll"):
        assert region.get("tabindex") == "0" and region.get("aria-label") == texts(
            region.find("table/caption")
        )


def test_the_strip(document):
    first, second = [cell for cell in by_class(document, "cell") if cell.tag == "a"]
    assert first.get("aria-label").replace("\xa0", " ") == (
        f"{HOSTILE}: Conv, INT8, 75.0 % of the noise, alone 30.0 dB, here 42.0 dB"
    )
    assert second.get("aria-label").replace("\xa0", " ") == "second: Conv, FP32"
    assert "level-4" in first.get("class") and "level-" not in second.get("class")
    assert all(by_id(document, link.get("href")[1:]) for link in (first, second))
    assert level_labels() == ["under 1 %", "1–3 %", "3–10 %", "10–30 %", "over 30 %"]


def test_the_graph(document):
    (data,) = [script for script in document.iter("script") if script.get("type")]
    boxes = json.loads(data.text)["nodes"]
    assert [box["name"] for box in boxes] == ["images", HOSTILE, "relu", "second", "second_out"]
    assert all(by_id(document, box["anchor"]) for box in boxes if "anchor" in box)
    assert texts(by_id(document, "after-graph")) == (
        "8 INT8 ? not listed 32 FP32 a tensor in INT8, through a Q/DQ pair any other tensor"
    )


def test_the_policy_names_every_script(page, document):
    (policy,) = [one.get("content") for one in document.iter("meta") if "content" in one.attrib][-1:]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 4
    hashes = " ".join(f"'sha256-{script_hash(script)}'" for script in scripts)
    assert policy == (f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}")


def test_a_network_that_is_too_large_for_a_picture(found, monkeypatch):
    monkeypatch.setattr("trtint8.report.graph.MOST_NODES", 4)
    page = render(gather(found))
    assert "5 boxes and 4 tensors between them are too many for a picture." in texts(parsed(page))
    assert "dagre" not in page and 'id="graph"' not in page


def test_the_layers(document):
    (layers,) = by_class(document, "layers")
    worst, why, second, add = [
        [texts(cell) for cell in row] for row in layers.find("tbody") if row.tag == "tr"
    ]
    name = " ".join(HOSTILE.split())
    assert worst == [
        f"{name} Conv", "75.0 %", "30.0 dB ± 0.5", "31.0 dB", "20.0 dB", "30.0 dB", "42.0 dB",
        "97.5 % of 400",
    ]  # fmt: skip
    assert why == ["2.0 % of 'images' lies beyond its range of 2.64 and is cut off."]
    assert second[:3] == ["second Conv, FP32 here", "20.0 %", "40.0 dB ± 0.5"]
    assert add == ["add Add, float here", "5.0 %", "exact", "26.0 dB", "–", "50.0 dB", "–", "97.5 % of 400"]
    rectangles = [(one.get("x"), one.get("width")) for one in layers.iter() if one.tag.endswith("rect")]
    # 10/11 of the loudest layer's noise come from its weights, and the next one has 0.2 / 0.75 of it.
    second, add = [(None, "8.9"), ("8.9", "17.76")], [(None, "0.0"), ("0.0", "6.67")]
    assert rectangles == [(None, "90.91"), ("90.91", "9.09"), *second, *add]


def test_the_tensors(found, document):
    shown = by_class(document, "card")
    facts = make_cards(found.table)
    assert [card.get("data-name") for card in shown] == [card.name for card in facts]
    for element, card in zip(shown, facts, strict=True):
        (methods,) = by_class(element, "methods")
        rows = [texts(row) for row in methods.find("tbody") if row.tag == "tr"]
        assert len(rows) == len(card.ranges)
        for row, one in zip(rows, card.ranges, strict=True):
            assert row.startswith(one.method) and f"{one.amax:.4g}" in row
            assert ("in use" in row) == one.in_use
        charts = by_class(element, "chart")
        assert len(charts) == (card.name != "silent")


def test_the_worst_samples(document):
    flipped, others = by_class(document, "samples")
    (first,), (second,) = ([one for one in shown if one.tag == "li"] for shown in (flipped, others))
    assert texts(first) == (
        "FP32 says <cat>, INT8 says ship INT8 got it right <cat> ship FP32 3.50 1.25 INT8 2.00 2.50 "
        "no. 7, label ship, error 25.0 %"
    )
    assert texts(second) == (
        "Both say dog same answer dog <cat> FP32 4.50 0.75 INT8 4.00 1.00 no. 9, error 12.5 %"
    )
    (image,) = list(first.iter("img"))
    assert image.get("src").startswith("data:image/png;base64,") and not list(second.iter("img"))
    assert [texts(one) for one in by_class(first, "chosen")] == ["3.50", "2.50"]
    section = by_id(document, "worst")
    assert [texts(one) for one in section if one.tag in ("h2", "h3")] == [
        "Samples that flipped", "Largest errors without another class",
    ]  # fmt: skip
    assert "10 of 400 samples get another class in INT8; 1 of them is shown, by how far" in texts(section)


def test_without_an_accuracy_the_samples_give_the_conclusion(found):
    found = dataclasses.replace(found, accuracy=None)
    document = parsed(render(gather(found, worst=Worst(400, 10, "a stand-in", ()))))
    (conclusion,) = by_class(document, "verdict")
    assert texts(conclusion).endswith("10 of 400 samples get another class in INT8.")
    (tile,) = (one for one in by_class(document, "wide") if "FP32" in texts(one))
    assert "97.50" in texts(tile) and "400 samples" in texts(tile)
    document = parsed(render(gather(found, worst=Worst(400, None, "a stand-in", ()))))
    assert not by_class(document, "verdict")
    assert any("not measured" in texts(one) for one in by_class(document, "wide"))


def test_worst_samples_of_what_is_no_classifier(found):
    worst = Worst(8, None, "a stand-in", (WorstSample(3, 0.5),))
    document = parsed(render(gather(found, worst=worst)))
    (shown,) = by_class(document, "samples")
    assert texts(shown) == "no. 3, error 50.0 %"
    words = "Worst samples Of 8 samples, those with the largest relative error"
    assert texts(by_id(document, "worst")).startswith(words)


@pytest.mark.parametrize(
    ("label", "flipped", "words"),
    [
        (0, True, "INT8 lost it"),
        (2, True, "INT8 got it right"),
        (1, True, "both wrong"),
        (None, True, "another answer"),
        (0, False, "same answer"),
    ],
)
def test_outcomes(label, flipped, words):
    sample = WorstSample(0, 0.1, Answers((0, 2), (2.0, 1.0), (1.0, 2.0), flipped), label)
    assert describe_outcome(sample, "INT8") == words
    assert describe_outcome(sample, "float") == words.replace("INT8", "float")
    assert describe_outcome(WorstSample(0, 0.1), "INT8") == ""


def test_nothing_is_loaded_and_names_are_escaped(page, document):
    own = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert "http:" not in own and "https:" not in own and "//" not in re.sub(r"base64,[^\"]*", "", own)
    for element in document.iter():
        for attribute in ("src", "href", "{http://www.w3.org/1999/xlink}href"):
            assert element.get(attribute, "#").startswith(("#", "data:"))
    assert HOSTILE not in page and "<b>&" not in page
    kinds = [script.get("type") for script in document.iter("script")]
    assert kinds == ["application/json", None, None, None, None]
    assert [card.get("data-name") for card in by_class(document, "card")].count(HOSTILE) == 1


def test_parts(found):
    """Whatever is missing, the page stands, and says which command makes it."""
    for kind in found.paths:
        fields = {} if kind == "qdq" else {kind: getattr(found, kind)}
        document = parsed(render(gather(ReportFiles({kind: found.paths[kind]}, **fields))))
        commands = [texts(code) for code in by_class(document, "line")]
        for verb, makes in {
            "build": "engine", "calibrate": "table", "validate": "accuracy", "sensitivity": "sensitivity",
            "bench": "bench",
        }.items():  # fmt: skip
            offered = any(line.startswith(f"trtint8 {verb} ") for line in commands)
            assert offered == (makes != kind) or (makes == kind and verb in ("build", "calibrate"))
        assert any(line.startswith("trtint8 report ") for line in commands)


def test_a_model_without_a_layer_in_int8_is_called_float(found):
    engine = dataclasses.replace(found.engine, layers=None, quantized_nodes=())
    paths = {"engine": found.paths["engine"]}
    worst = dataclasses.replace(WORST, name="float")
    document = parsed(render(gather(ReportFiles(paths, engine=engine), worst=worst)))
    (title,) = document.iter("title")
    (kicker,) = by_class(document, "kicker")
    assert texts(title) == "net in float" and "INT8" not in texts(kicker)
    section = texts(by_id(document, "worst"))
    assert "INT8" not in section and "float says" in section
    (conclusion,) = by_class(document, "verdict")
    assert "INT8" not in texts(conclusion)
    accuracy = dataclasses.replace(found.accuracy, name="float")
    assert ReportFiles(paths, accuracy=accuracy).called == "float"
    assert ReportFiles(paths, engine=found.engine, accuracy=accuracy).called == "INT8"


def test_mismatches_are_said_on_top(found):
    (warning,) = by_class(parsed(changed(found, sensitivity={"model_fingerprint": "other"})), "warning")
    assert "The sensitivity is of another model than the engine" in texts(warning)


def test_every_doubt_stands_in_one_box_above_the_verdict_which_refers_to_it(found):
    poor = dataclasses.replace(found.accuracy.outputs[0], sqnr_db=15.0)
    page = changed(
        found,
        table={"warnings": ("the <data> is 'random:64'", "note: fewer <bins>")},
        accuracy={"outputs": (poor,), "warnings": ("calibrated with these samples", "the same twice")},
        sensitivity={"warnings": ("the same twice",)},
        audit={"warnings": ("of the audit", "note: in FP16")},
        tuning={"warnings": ("of the search",)},
    )
    document = parsed(page)
    (box,) = by_class(document, "warning")
    said = [texts(item) for item in box.iter("li")]
    assert said[:5] == [
        "The <data> is 'random:64'.",
        "Calibrated with these samples.",
        "The same twice.",
        "Of the audit.",
        "Of the search.",
    ]
    assert len(said) == 6 and "'scores'" in said[5] and "15.0 dB" in said[5]
    (verdict,) = by_class(document, "verdict")
    assert "doubted" in verdict.get("class") and not texts(verdict).startswith("top-1")
    assert page.index(said[3]) < page.index("INT8 is 1.00 points below FP32")
    (notes,) = by_class(document, "notes")
    assert [texts(item) for item in notes.iter("li")] == ["Fewer <bins>.", "In FP16."]


def test_without_doubts_there_is_no_box(found, document):
    for one in (document, parsed(changed(found, audit={"warnings": ("note: in FP16",)}))):
        assert not by_class(one, "warning") and not by_class(one, "doubted")


WHERE_LOWEST = "SQNR of 'scores', where it is lowest"


@pytest.mark.parametrize(
    ("changes", "tile"),
    [
        (
            {"measures": (Measure("agreement", Share(390, 400)),), "outputs": ()},
            "same class as FP32 97.50 % (95.5-98.6) 400 samples.",
        ),
        (
            {"measures": (Measure("f1", math.nan, title="F1", unit="%"),), "outputs": (), "agreement": None},
            "F1 not measured 400 samples.",
        ),
        ({"measures": (), "agreement": None}, f"Accuracy 26.2 dB {WHERE_LOWEST}, on 400 samples."),
        (
            {
                "measures": (Measure("psnr", 26.15, 27.25, title="PSNR of 'hr'", unit="dB"),),
                "agreement": None,
            },
            f"PSNR of 'hr' FP32 27.25 dB INT8 26.15 dB 400 samples. {WHERE_LOWEST}: 26.2 dB.",
        ),
        (
            {"measures": (Measure("own", 0.75, title="<of> 'y'", unit="%"),), "agreement": None},
            f"<of> 'y' 75.00 % 400 samples. {WHERE_LOWEST}: 26.2 dB.",
        ),
    ],
)
def test_the_accuracy_of_what_has_no_top1(found, changes, tile):
    accuracy = {"top1": None, "reference_top1": None, "chosen": "'y' is no row of scores", **changes}
    document = parsed(changed(found, accuracy=accuracy))
    shown = by_class(document, "tile")[0]
    assert texts(shown) == tile and bool(by_class(shown, "none")) == ("not measured" in tile)
    assert "Without metrics that were asked for: 'y' is no row of scores." in texts(document)


def test_the_same_page_every_time(found):
    page = render(gather(found))
    assert render(gather(found)) == page
    folder = found.paths["table"].parent
    program = (
        "import sys; from trtint8.report.facts import gather; "
        "from trtint8.report.files import find_report_files; "
        "from trtint8.report.page import render; page = render(gather(find_report_files([sys.argv[1]]))); "
        "sys.stdout.buffer.write(page.encode())"
    )
    other = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, check=True)
    assert other.stdout.decode() == page


@pytest.mark.slow
def test_sixty_tensors_stay_small(tmp_path):
    random = np.random.default_rng(0)
    histograms = {f"/layer{i // 8}/layer{i // 8}.{i % 8}/Relu_output_0": Histogram() for i in range(60)}
    for histogram in histograms.values():
        histogram.observe(random.laplace(0, random.uniform(0.1, 9), 20_000).astype(np.float32))
    ranges = CalibrationTable.from_histograms(histograms, "percentile", Provenance())
    page = render(gather(ReportFiles({"table": ranges.save(tmp_path / "n.table.json")}, table=ranges)))
    document = parsed(page)
    assert len(page) < 800_000
    assert len(by_class(document, "card")) == 60
    assert sum(card.get("open") is not None for card in by_class(document, "card")) == OPEN_CARDS


def test_what_is_said_of_profiles_and_of_layers_that_are_not_listed(found):
    def page(**changes):
        return " ".join((changed(found, engine=changes) if changes else render(gather(found))).split())

    several = "Of its 2 optimization profiles one runs at a time; these are the kernels of profile 0."
    assert several in page(profiles=found.engine.profiles * 2) and "optimization profiles" not in page()
    assert "Not listed: profiling verbosity was not &#39;detailed&#39;, the default" in page(layers=None)
    layer = dataclasses.replace(found.engine.layers.layers[0], kind="myelin", onnx_nodes=())
    assert "TensorRT tells nothing of parts that it compiled" in page(layers=LayerReport((layer,)))
    without = dataclasses.replace(found, engine=None)
    assert "There is no engine yet." in render(gather(without))
