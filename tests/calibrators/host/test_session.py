"""What every ONNX Runtime session of the library is opened with."""

import os
import threading

import numpy as np
import pytest
from onnxruntime import GraphOptimizationLevel, OrtValue

from calibrators.errors import CalibrationDataError
from calibrators.host.session import (
    as_array,
    available_threads,
    check_threads,
    first_line,
    in_thread,
    map_arrays,
    open_session,
)
from calibrators.host.weights import LightModel
from tests.calibrators.networks import network

ROWS = np.random.default_rng(0).integers(0, 256, (8, 64)).astype(np.uint8)
WEIGHTS = np.random.default_rng(1).integers(-128, 128, (64, 8)).astype(np.int8)


def product():
    """MatMulInteger of uint8 rows with constant int8 weights, and their zero point."""
    text = '(uint8[8,64] x) => (int32[8,8] y) { y = MatMulInteger(x, weights, "", zero_point) }'
    return network(text, weights=WEIGHTS, zero_point=np.int8(0))


@pytest.mark.parametrize("optimize", [False, True])
def test_every_session_asks_for_exact_integer_sums_and_leaves_pairs_in_float(optimize):
    options = open_session(product().SerializeToString(), optimize=optimize).get_session_options()
    assert options.get_session_config_entry("session.x64quantprecision") == "1"
    assert options.get_session_config_entry("session.disable_quant_qdq") == "1"


@pytest.mark.parametrize(
    ("optimize", "keep_layout", "level"),
    [(True, False, "ENABLE_ALL"), (True, True, "ENABLE_EXTENDED"), (False, True, "DISABLE_ALL")],
)
def test_layouts_are_kept_by_leaving_out_the_last_level_of_optimizations(optimize, keep_layout, level):
    session = open_session(product().SerializeToString(), optimize=optimize, keep_layout=keep_layout)
    assert session.get_session_options().graph_optimization_level == getattr(
        GraphOptimizationLevel, f"ORT_{level}"
    )


def test_sums_of_integers_do_not_saturate():
    session = open_session(product().SerializeToString(), optimize=True)
    np.testing.assert_array_equal(
        session.run(None, {"x": ROWS})[0], ROWS.astype(np.int32) @ WEIGHTS.astype(np.int32)
    )


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((dtype, (2, 3)) for dtype in ("f2", "f4", "f8", "i8", "?")), ("f4", ()), ("f4", (0,)), ("f4", (0, 4))],
)
def test_tensors_keep_their_type_and_shape(dtype, shape):
    """Where a detector finds nothing, its boxes have no elements."""
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.testing.assert_array_equal(as_array(OrtValue.ortvalue_from_numpy(values)), values, strict=True)


def test_a_model_with_weights_that_nothing_reads_is_opened():
    rows, weights = np.eye(2, 32, dtype=np.float32), np.arange(1024, dtype=np.float32).reshape(32, 32)
    text = "(float[2,32] x) => (float[2,32] y) { y = MatMul(x, weights) }"
    model = network(text, weights=weights, unused=weights)
    session = open_session(LightModel.parse(model.SerializeToString()), optimize=True)
    np.testing.assert_array_equal(session.run(None, {"x": rows})[0], weights[:2])


def test_an_output_that_optimizations_remove_is_kept():
    """ONNX Runtime takes a Transpose into the Gemm before it, whose result is lost."""
    model = network(
        """(float[4,8] x, float[4,8] z) => (float[4,4] y, float[4,4] product) {
            columns = Transpose <perm = [1, 0]> (z)
            product = Gemm(x, columns)
            y = Transpose <perm = [1, 0]> (product)
        }"""
    )
    x, z = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    session = open_session(model.SerializeToString(), optimize=True)
    turned, product = session.run(None, {"x": x, "z": z})
    np.testing.assert_allclose(product, x @ z.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(turned, product.T)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Add "
            "node. Name:'sum' Status Message: /onnxruntime_src/op_kernel.cc:87 virtual OrtValue* f(int, "
            "const T&) status.IsOK() was false. Shapes differ",
            "node 'sum' (Add): Shapes differ",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Node (m2) Op (MatMul) [ShapeInferenceError] Incompatible "
            "dimensions",
            "node 'm2' (MatMul): Incompatible dimensions",
        ),
        ("first\nsecond", "first"),
    ],
)
def test_errors_begin_with_the_node_and_leave_sources_out(text, wanted):
    assert first_line(RuntimeError(text)) == wanted


def test_a_containers_quota_is_rounded_up_and_never_exceeds_the_processors(tmp_path):
    processors = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    assert available_threads(quota) == processors
    for text, threads in (
        ("50000 100000", 1),
        ("150000 100000", min(2, processors)),
        ("max 100000", processors),
        ("9900000 100000", min(99, processors)),
        ("nonsense", processors),
    ):
        quota.write_text(text)
        assert available_threads(quota) == threads


def test_threads_are_at_most_a_few_for_each_processor(monkeypatch):
    for processors, allowed, refused in ((20, (None, 1, 80), (81, 2000, 100_000)), (2, (64,), (0,))):
        monkeypatch.setattr("os.cpu_count", lambda count=processors: count)
        for threads in allowed:
            check_threads(threads)
        for threads in refused:
            with pytest.raises(CalibrationDataError, match=rf"^threads is {threads}(, and 80|; give)"):
                check_threads(threads)


@pytest.mark.parametrize(("nbytes", "elsewhere"), [(1000, False), (1 << 30, True)])
def test_only_large_arrays_are_handed_to_threads(nbytes, elsewhere):
    found = list(map_arrays(lambda number: (number, threading.get_ident()), range(5), nbytes, 2))
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    assert {thread != threading.get_ident() for _, thread in found} == {elsewhere}


def test_what_a_thread_returns_and_raises():
    assert in_thread(threading.get_ident).result() != threading.get_ident()
    assert in_thread(pow, 2, exp=5).result() == 32
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0).result()
