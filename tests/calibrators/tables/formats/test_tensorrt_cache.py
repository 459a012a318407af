"""TensorRT's calibration cache: golden files that it wrote, and one by hand from its specification."""

import struct

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats.tensorrt_cache import TensorrtCache, looks_like_cache
from calibrators.tables.formats.tensorrt_cache import parse as parse_cache
from calibrators.tables.formats.tensorrt_cache import render as render_cache
from tests.calibrators.tables.formats.golden_files import golden


def test_tensorrt_cache_entropy_2():
    cache = parse_cache(golden("entropy2_8601.cache"), "golden")
    assert (cache.version, cache.algorithm) == ("8601", "EntropyCalibration2")
    # 3c010204 is 2^-7 * (1 + 0x010204 / 2^23), and 3d000000 is 2^-5.
    assert dict(cache.scales) == {
        "images": 2**-7 * (1 + 0x010204 / 2**23),
        "backbone::conv 1": 2**-5,
        "dead": 0.0,
        "logits": pytest.approx(0.001, rel=1e-7),
    }


def test_a_version_of_six_digits_and_hexadecimals_without_leading_zeros():
    cache = parse_cache(b"TRT-101600-MinMaxCalibration\nimages: 3c010204\nsmall: 1\n", "it")
    assert (cache.version, cache.algorithm) == ("101600", "MinMaxCalibration")
    assert cache.scales["small"] == 2**-149
    assert b"small: 00000001\n" in render_cache(cache)


def test_the_legacy_calibrators_cache_begins_with_its_settings():
    """TensorRT 8.6.0 wrote the file with a cutoff of 1 and a quantile of 0.9999, and read it again."""
    written = golden("legacy_8600.cache")
    cache = parse_cache(written, "golden")
    assert (cache.version, cache.algorithm) == (None, "LegacyCalibration")
    assert len(cache.scales) == 12
    (bits,) = struct.unpack(">I", struct.pack(">f", cache.scales["images"]))
    assert bits == 0x3C6E756E
    assert looks_like_cache(written)
    with pytest.raises(TableError, match="'LegacyCalibration'"):
        render_cache(cache)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["entropy2_8601.cache", "legacy_8600.cache"])
def test_caches_that_an_editor_has_marked(name, encoding):
    marked = golden(name).decode().replace("\n", "\r\n").encode(encoding)
    assert looks_like_cache(marked) and parse_cache(marked, "it") == parse_cache(golden(name), "it")


def test_every_line_after_the_header_has_a_tensor_and_its_scale():
    for name in ("entropy2_8601.cache", "legacy_8600.cache"):
        data = golden(name) + b"quantile 0.9999\n"
        number = data.count(b"\n")
        with pytest.raises(TableError, match=f"line {number} "):
            parse_cache(data, "golden")


def test_tensorrt_cache_zeros_are_read_and_left_out_of_what_is_written():
    cache = parse_cache(golden("entropy2_8601.cache"), "golden")
    with pytest.warns(UserWarning, match="the range of 'dead' is 0, .* TensorRT has no range for what is"):
        written = parse_cache(render_cache(cache), "written")
    assert written.scales == {name: scale for name, scale in cache.scales.items() if name != "dead"}
    many = TensorrtCache("8601", "MinMaxCalibration", {"x": 1.0} | dict.fromkeys("abcdefg", 0.0))
    with pytest.warns(UserWarning, match="the range of 'a', 'b', 'c', 'd', 'e' and 2 more is 0") as found:
        assert parse_cache(render_cache(many), "written").scales == {"x": 1.0}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("scales", "shown"),
    [
        ({"dead": 0.0}, r"'dead' \(0\.0\)"),
        ({"dead": 0.0, "x": 1.0, "bad": float("nan")}, r"'bad' \(nan\);"),
        ({"x": -1.0}, r"'x' \(-1\.0\)"),
        ({"x": float("inf")}, r"'x' \(inf\)"),
    ],
)
def test_scales_that_a_cache_cannot_do_with_are_refused(scales, shown):
    with pytest.raises(TableError, match=f"the table has scales that are not positive numbers: {shown}"):
        render_cache(TensorrtCache("8601", "MinMaxCalibration", scales))


@pytest.mark.parametrize("missing", range(2, 9))
def test_a_cache_that_is_cut_off_within_its_last_value_is_refused(missing):
    whole = golden("entropy2_8601.cache")
    with pytest.raises(TableError, match=r"'it' is cut off: it ends within line 5, 'logits: 3.*'; copy it"):
        parse_cache(whole[:-missing], "it")
    with pytest.raises(TableError, match="'dead: 0'; copy it again"):
        parse_cache(b"TRT-8601-EntropyCalibration2\ndead: 0", "it")
    # All digits are there.
    assert parse_cache(whole[:-1], "it") == parse_cache(whole, "it")


def test_a_cache_gives_back_every_scale():
    # The last was written by TensorRT itself.
    for name in ("entropy2_8601.cache", "demo_8600.cache"):
        cache = parse_cache(golden(name), name)
        assert parse_cache(render_cache_with_zeros(cache), name) == cache


def render_cache_with_zeros(cache):
    alive = {name: scale for name, scale in cache.scales.items() if scale}
    dead = "".join(f"{name}: 0\n" for name, scale in cache.scales.items() if not scale)
    rendered = render_cache(type(cache)(cache.version, cache.algorithm, alive))
    return rendered + dead.encode()
