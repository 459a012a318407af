"""Histograms and levels as SVG."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

matplotlib = pytest.importorskip(
    "matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')"
)

from calibrators.display.cards import card_of
from calibrators.display.charts import dashes_of, histogram_chart, level_chart, point_chart
from calibrators.histograms.thresholds import METHODS
from tests.calibrators.histograms.kernels import whole


class TestCharts:
    def test_every_threshold_has_its_line(self):
        histogram = whole(np.random.default_rng(0).laplace(0, 1, 50_000).astype(np.float32))
        card = card_of(0, "x", histogram, METHODS["mse"](histogram), "mse")
        svg = histogram_chart(card).svg()
        right = card.bar_width * len(card.bar_counts) * 1.015
        wanted = sorted(36 + (340 - 46) * one.amax / right for one in card.ranges)
        lines = re.findall(r'<path d="M ([\d.]+) 130 L \1 8 ?" style="([^"]*)"', svg)
        assert sorted(float(x) for x, _ in lines) == pytest.approx(wanted, abs=0.06)
        (used,) = [float(x) for x, style in lines if "var(--accent)" in style]
        assert used == pytest.approx(36 + (340 - 46) * card.used.amax / right, abs=0.06)
        assert len({style for _, style in lines}) == len(METHODS)  # told apart by their dashes

    def test_a_method_more_has_a_line_and_so_has_a_range_that_no_method_gives(self, monkeypatch):
        monkeypatch.setitem(METHODS, "mine", METHODS["minmax"])
        histogram = whole(np.random.default_rng(0).laplace(0, 1, 50_000).astype(np.float32))
        for amax in (histogram.amax, 1.5):
            card = card_of(0, "x", histogram, amax, "mine")
            lines = re.findall(r'<path d="M ([\d.]+) 130 L \1 8 ?"', histogram_chart(card).svg())
            assert len(lines) == len(card.ranges) and "mine" in {one.method for one in card.ranges}
        assert len({dashes_of(method) for method in METHODS}) == len(METHODS)

    def test_colours_letters_and_ids_are_the_pages(self):
        svg = level_chart([40.0, 30.0, float("inf"), 20.0], 330).svg()
        assert svg.startswith('<svg viewBox="0 0 330 170" class="chart" aria-hidden="true">')
        assert "#0" not in svg and "font" not in svg and ' id="' not in svg and "DejaVu" not in svg
        assert "var(--accent)" in svg and "20 dB" in svg and "nan" not in svg.lower()

    @pytest.mark.parametrize(
        ("count", "labels"),
        [(3, ["1"]), (2000, ["1", "10", "100", "1 k"]), (10**6, ["1", "100", "10 k", "1 M"])],
    )
    def test_counts(self, count, labels):
        histogram = whole(np.ones(count, np.float32))
        svg = histogram_chart(card_of(0, "x", histogram, 1.0, "minmax")).svg()
        assert re.findall(r">(\d+(?: [kMG])?)</text>", svg)[-len(labels) :] == labels

    def test_points_are_filled_or_not_and_infinite_ones_left_out(self):
        svg = point_chart([(0.0, 30.0, True), (0.5, 40.0, False), (0.1, float("inf"), True)], "dB").svg()
        drawn = re.findall(r'<path d="[^"]*"[^>]*style="([^"]*)"', svg)
        dots = [style for style in drawn if "var(--accent)" in style]
        assert sum("fill: none" in style for style in dots) == 1 and len(dots) == 2
        assert ">40 %<" in svg and ">40 dB<" in svg

    def test_a_ring_is_around_its_point(self):
        points = [(0.5, 30.0, True), (1.0, 40.0, True)]
        svg = point_chart(points, "dB", width=840, ringed=(0.5, 30.0)).svg()
        assert svg.startswith('<svg viewBox="0 0 840 200"')
        starts = {
            style: [float(number) for number in start]
            for *start, style in re.findall(r'<path d="M ([\d.]+) ([\d.]+) C[^"]*" style="([^"]*)"', svg)
        }
        (ring,) = [start for style, start in starts.items() if "var(--loud)" in style]
        # The room around the values is 8 % of their distance, so the lowest lies at 0.08 / 1.16.
        assert ring[0] == pytest.approx(52 + (840 - 66) * 0.08 / 1.16, abs=0.1)
        # An ellipse begins at its lower end.
        assert ring[1] == pytest.approx(10 + (200 - 32) * (1 - 0.08 / 1.16) + 7, abs=0.1)
        assert "var(--loud)" not in point_chart(points, "dB").svg()


def test_settings_of_the_program_change_nothing():
    """Matplotlib takes them from a file in the current folder, and `text.usetex` has it run LaTeX."""
    expected = level_chart([3.0, 20.0], 300).svg()
    foreign = {"text.usetex": True, "font.size": 40, "lines.linestyle": ":", "axes.linewidth": 9}
    with matplotlib.rc_context(foreign):
        assert level_chart([3.0, 20.0], 300).svg() == expected


def imported(folder, **environment):
    """What is printed where charts are imported in a folder."""
    command = [sys.executable, "-c", "import calibrators.display.charts as c; print(c.matplotlib.__name__)"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "matplotlib\n"
    return done.stderr


def test_no_settings_of_the_current_folder_are_read(tmp_path):
    os.mkfifo(tmp_path / "matplotlibrc")  # which nobody writes into
    imported(tmp_path)


def test_a_home_that_cannot_be_written_is_no_cause_to_warn(tmp_path):
    nowhere = {"XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": "", "TMPDIR": str(tmp_path)}
    (tmp_path / "file").touch()
    for home in ("/proc/nowhere", str(tmp_path / "file")):
        assert imported(tmp_path, **nowhere, HOME=home) == ""
    assert [left.name for left in tmp_path.iterdir()] == ["file"]
    # What the user names is taken as it is, with Matplotlib's own warning.
    assert "MPLCONFIGDIR" in imported(tmp_path, **{**nowhere, "MPLCONFIGDIR": "/proc/nowhere"})
