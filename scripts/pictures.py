"""Makes the pictures of the documentation from the digits that come with trtint8.

pip install playwright; playwright install chromium
python scripts/pictures.py [FOLDER]     # docs/pictures, where no folder is given
python scripts/pictures.py --browser /usr/bin/chromium

Three pictures are what a result draws itself: a tensor's ranges, the levels behind the layers, and what a
search tried. Two are of reports, as a browser shows them: the graph, and the beginning. Needs Matplotlib,
scikit-learn, and TensorRT for RTX.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split


def plots(folder: Path, work: Path) -> None:
    """Writes what results draw themselves."""
    digits = load_digits_split()
    samples = {"images": digits.calibration_images}
    heldout = work / "heldout.npz"
    np.savez(heldout, images=digits.heldout_images, labels=digits.heldout_labels)
    table = trtint8.calibrate(DEMO_MODEL, samples, progress=False)
    table.plot("/block1/relu1/Relu_output_0").save(folder / "ranges.svg")
    sensitivity = trtint8.measure_sensitivity(DEMO_MODEL, table, heldout, progress=False)
    sensitivity.plot().save(folder / "sensitivity.svg")
    tuned = trtint8.tune(DEMO_MODEL, samples, heldout, metric="sqnr", minimum=42, progress=False)
    tuned.plot().save(folder / "tuning.svg")


def graph(folder: Path, work: Path, browser: str | None) -> None:
    """Writes the graph of a report on the network with its last layer in float."""
    from playwright.sync_api import sync_playwright

    samples = {"images": load_digits_split().calibration_images}
    trtint8.build_int8_engine(
        DEMO_MODEL,
        samples,
        work / "digits.engine",
        fp16=False,
        keep_float=["/fc/*"],
        compute_capabilities=["8.6"],
    )
    page_file = work / "report.html"
    trtint8.write_report([work / "digits.engine"], page_file, model=DEMO_MODEL)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser)
        page = opened.new_page(viewport={"width": 1000, "height": 900})
        page.goto(page_file.as_uri())
        page.locator("#graph svg.canvas path").first.wait_for(state="attached")
        page.locator("#graph svg.canvas").first.screenshot(path=folder / "placement.png")
        opened.close()


def beginning(folder: Path, work: Path, browser: str | None) -> None:
    """Writes the beginning of the tutorial's report."""
    from playwright.sync_api import sync_playwright

    digits, engine, page_file = load_digits_split(), work / "digits.engine", work / "beginning.html"
    heldout = work / "heldout.npz"
    table = trtint8.calibrate(
        DEMO_MODEL, {"images": digits.calibration_images}, output=work / "digits.table.json"
    )
    trtint8.build_int8_engine(DEMO_MODEL, table, engine, keep_int8=["*"], compute_capabilities=["8.6", "8.9"])
    costs, accuracy = work / "digits.sensitivity.json", work / "digits.accuracy.json"
    trtint8.measure_sensitivity(DEMO_MODEL, table, heldout).save(costs)
    accuracy.write_text(json.dumps(trtint8.validate(engine, heldout, reference=DEMO_MODEL).to_json()))
    trtint8.write_report([engine, costs, accuracy], page_file, model=DEMO_MODEL, data=heldout)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser)
        page = opened.new_page(viewport={"width": 982, "height": 790})
        page.goto(page_file.as_uri())
        page.screenshot(path=folder / "report.png")
        opened.close()


def main() -> None:
    """Writes all pictures into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs/pictures")
    parser.add_argument("--browser", help="the program, where Playwright is to take another one than its own")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        plots(options.folder, Path(work))
        graph(options.folder, Path(work), options.browser)
        beginning(options.folder, Path(work), options.browser)


if __name__ == "__main__":
    main()
