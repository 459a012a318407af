"""TensorRT's element types, of TensorRT for RTX's own module."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import BuildError, UnsupportedError
from calibrators.tensorrt import flavor
from calibrators.tensorrt.flavor import DTYPES, Flavor, numpy_dtype, tensorrt_dtype

OLD = {"explicit_batch_flag", "implicit_int8", "supported"}
NEW = {"has_progress_monitor", "names_failing_nodes", "supported", "tells_strong_types"}
RTX = {"builds_without_gpu", "has_compute_capabilities", "strongly_typed_only"}


@pytest.mark.parametrize(
    ("name", "version", "true"),
    [
        ("tensorrt", "8.4.3.1", OLD - {"supported"}),
        ("tensorrt", "8.6.1", OLD),
        ("tensorrt", "9.3.0", OLD | {"has_progress_monitor"}),
        ("tensorrt", "10.16.1.11", NEW | {"implicit_int8"}),
        ("tensorrt", "11.4.0", NEW | {"strongly_typed_only"}),
        ("rtx", "1.7.1.116", NEW | RTX),
    ],
)
def test_capabilities(name, version, true):
    one = Flavor(name, version)
    assert {capability for capability in OLD | NEW | RTX if getattr(one, capability)} == true


@pytest.mark.parametrize(
    ("name", "version", "target", "plans", "weights"),
    [
        ("tensorrt", "8.5.3", "tensorrt-8.6", False, False),
        ("tensorrt", "8.6.1", "tensorrt-8.6", True, False),
        ("tensorrt", "9.3.0", "tensorrt-8.6", True, False),
        ("tensorrt", "10.16.1.11", "tensorrt-10", True, True),
        ("tensorrt", "11.4.0", "tensorrt-11", True, True),
        ("rtx", "1.7.1.116", "rtx", True, True),
    ],
)
def test_target_plans_with_code_and_weights_by_address(name, version, target, plans, weights):
    one = Flavor(name, version)
    assert one.quantization_target == target
    assert (one.has_version_compatible_plans, one.takes_weights_by_address) == (plans, weights)
    assert str(one) == f"TensorRT{' for RTX' if name == 'rtx' else ''} {version}"


def test_load_rtx():
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    loaded = flavor.load("rtx")
    assert loaded.name == "rtx"
    assert loaded.module.__name__ == "tensorrt_rtx"
    assert loaded.version.startswith(loaded.module.__version__)
    assert loaded in flavor.installed()


@pytest.mark.slow
def test_installed_imports_no_tensorrt():
    code = (
        "import sys, calibrators.tensorrt.flavor as f; f.installed(); "
        "print([m for m in sys.modules if m.startswith('tensorrt')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.fixture
def only(monkeypatch):
    """Makes it look as if just these were installed."""

    def use(*flavors):
        monkeypatch.setattr(flavor, "installed", lambda: list(flavors))

    return use


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("auto", r"tensorrt-rtx.*tensorrt>="),
        ("rtx", r"TensorRT for RTX .*tensorrt-rtx"),
        ("tensorrt", r"^TensorRT is .*tensorrt>="),
    ],
)
def test_nothing_installed(only, target, named):
    only()
    with pytest.raises(UnsupportedError, match=named):
        flavor.load(target)
    only(Flavor("tensorrt", "8.4.3"))
    with pytest.raises(UnsupportedError, match=r"8\.4\.3 .*8\.5"):
        flavor.load("tensorrt")


@pytest.fixture
def broken_tensorrt(tmp_path, monkeypatch):
    """An installation whose libraries are missing."""
    package = tmp_path / "tensorrt"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libnvinfer.so.10: cannot open\\nmore')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    return Flavor("tensorrt", "10.1.0")


def test_broken_installation_is_reported(broken_tensorrt, only):
    assert broken_tensorrt.name in {one.name for one in flavor.installed()}
    only(broken_tensorrt)
    with pytest.raises(
        UnsupportedError, match=r"10\.1\.0 .*\(libnvinfer\.so\.10: cannot open\).*tensorrt>="
    ) as caught:
        flavor.load()
    assert broken_tensorrt.import_problem == str(caught.value)


def test_auto_prefers_what_works(broken_tensorrt, only, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    rtx = Flavor("rtx", "1.7.1")
    only(broken_tensorrt, rtx)
    for problem in ("no driver", None):
        monkeypatch.setattr(flavor, "gpu_problem", lambda problem=problem: problem)
        assert flavor.load() == rtx


def test_auto_prefers_tensorrt_with_a_gpu(monkeypatch, only):
    rtx, tensorrt = Flavor("rtx", "1.7.1"), Flavor("tensorrt", "10.1.0")
    only(rtx, tensorrt)
    monkeypatch.setattr(Flavor, "import_problem", None)
    monkeypatch.setattr(flavor, "gpu_problem", lambda: None)
    assert flavor.load() == tensorrt
    monkeypatch.setattr(flavor, "gpu_problem", lambda: "no driver")
    assert flavor.load() == rtx
    assert flavor.load("tensorrt") == tensorrt


def test_the_librarys_version(rtx, monkeypatch):
    assert ".".join(map(str, rtx.library_version)) == rtx.version.rpartition(".")[0]
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert Flavor("tensorrt", "8.6.1").library_version is None


@pytest.mark.parametrize(("number", "version"), [(8601, (8, 6, 1)), (8600, (8, 6, 0)), (101601, (10, 16, 1))])
def test_how_versions_are_numbered(rtx, monkeypatch, number, version):
    functions = SimpleNamespace(getInferLibVersion=lambda: number)
    monkeypatch.setattr(flavor.ctypes, "CDLL", lambda path: functions)
    assert rtx.library_version == version
    assert Flavor("tensorrt", ".".join(map(str, version))).version_number == number


def test_a_network_says_which_tensorrt_it_belongs_to(rtx):
    trt = rtx.module
    builder = trt.Builder(trt.Logger())
    network = builder.create_network(0)
    assert flavor.flavor_of(network) == rtx
    for other in (builder, None, "m.onnx"):
        with pytest.raises(BuildError, match=f"network is a {type(other).__name__}; give the INetworkDef"):
            flavor.flavor_of(other)


def test_types_that_numpy_has_and_has_not(rtx):
    trt = rtx.module
    pairs = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64"}
    pairs |= {"UINT8": "uint8", "BOOL": "bool", "BF16": "bfloat16", "FP8": "float8_e4m3fn"}
    for member, name in pairs.items():
        assert numpy_dtype(trt, getattr(trt.DataType, member)) == np.dtype(name)
        assert tensorrt_dtype(trt, np.dtype(name)) == getattr(trt.DataType, member)
    assert sorted(DTYPES) == sorted(pairs.values())
    assert numpy_dtype(trt, trt.DataType.INT4) is None
    assert numpy_dtype(trt, trt.DataType.FP4) is None
    assert tensorrt_dtype(trt, np.dtype(np.float64)) is None
    assert tensorrt_dtype(SimpleNamespace(DataType=object()), np.dtype(np.float32)) is None


@pytest.mark.parametrize(("problem", "is_told"), [("no driver", True), (None, False)])
def test_tensorrt_without_a_gpu_is_told_the_other_ways(monkeypatch, only, problem, is_told):
    only()
    monkeypatch.setattr(flavor, "gpu_problem", lambda: problem)
    with pytest.raises(UnsupportedError, match=r"^TensorRT is not installed.*pip install") as refused:
        flavor.load("tensorrt")
    assert all((way in str(refused.value)) == is_told for way in ("target=rtx", "'trtint8 quantize'"))
