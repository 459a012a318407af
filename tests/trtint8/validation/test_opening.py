"""Samples in the types that a model takes."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.integer_models import MICROSOFT, ZERO, Integers
from tests.trtint8.interop.dynamic_models import SCALED, dynamic_model
from tests.trtint8.onnx_models import parsed
from tests.trtint8.report.samples import ACCURACY
from tests.trtint8.validation.small_models import scaled
from trtint8.engine.file import EngineInfo, TensorSpec
from trtint8.models.model import load_model, record_float_model
from trtint8.runtime.arrays import as_input
from trtint8.validation import opening
from trtint8.validation.opening import as_fed, as_floats
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.validate import Origin, identified


def declared(*names):
    """Outputs of any shape."""
    return DeclaredOutputs(dict.fromkeys(names), ())


DATA = np.eye(4, dtype=np.float32) + np.float32(1 / 3)


@pytest.mark.parametrize(
    ("names", "named"), [(("z", "y"), "INT8 are z, .* x;"), (("x", "z"), "INT8 are z, .* y;")]
)
def test_models_that_do_not_belong_together(names, named):
    with pytest.raises(ModelError, match=named):
        trtint8.validate(scaled(1.0, names=names), DATA, reference=scaled(1.0))


def test_outputs_in_another_order_than_the_references():
    """As an engine may list them."""

    def of(first, second):
        outputs = f"float[n, 4] {first}, float[n, 4] {second}"
        return parsed("float[n, 4] x", outputs, "once = Mul (x, one) twice = Add (x, x)", one=np.float32([1]))

    found = trtint8.validate(of("twice", "once"), DATA, reference=of("once", "twice"), metrics=["max_error"])
    assert [(one.name, one.max_error) for one in found.outputs] == [("once", 0.0), ("twice", 0.0)]


@pytest.fixture
def open_engine(monkeypatch, tmp_path):
    """Opens what is used of an engine, on a GPU that is not there, beside its table where it has one."""
    monkeypatch.setattr(opening, "gpu_problem", lambda: None)
    monkeypatch.setattr(opening, "gpu_names", lambda: ["NVIDIA T1000"])

    def opened(takes, gives, infer, table=None):
        def specs(kinds):
            return tuple(TensorSpec(name, kind, (None, 4)) for name, kind in kinds.items())

        def checked(feeds):
            assert feeds["x"].dtype == takes
            return infer(feeds["x"])

        info = EngineInfo("tensorrt", "8.6.1", ("8.6",), (), (), (), None, (), None, "")
        if table:
            table.save(tmp_path / "m.table.json")
            info = replace(info, table_fingerprint=table.fingerprint)
        engine = SimpleNamespace(inputs=specs({"x": takes}), outputs=specs(gives), infer=checked, info=info)
        loading = SimpleNamespace(load=lambda *_, **__: contextlib.nullcontext(engine))
        monkeypatch.setattr(opening, "Engine", loading)
        setting = opening.Setting(trtint8.model_inputs(scaled(1.0)), declared(*gives))
        return opening.open_validated("INT8", tmp_path / "m.engine", setting)

    return opened


def test_an_engine_is_fed_its_own_type_and_gives_outputs_in_order(open_engine):
    def infer(x):
        return {"y": x.astype(np.float32), "z": x.astype(np.float32) * 2}

    with open_engine("float16", {"z": "float32", "y": "float32"}, infer) as judged:
        twice, once = judged.run({"x": DATA})
    assert judged.description == "the engine on NVIDIA T1000"
    assert np.array_equal(twice, 2 * once) and np.array_equal(once, DATA.astype(np.float16))


def test_an_engine_with_int8_ends_is_fed_and_read_by_the_scales_of_its_table(open_engine):
    def opened(table):
        return open_engine("int8", {"y": "int8"}, lambda x: {"y": x}, table)

    with opened(trtint8.CalibrationTable({"x": 127.0 / 64, "y": 127.0 / 32})) as judged:
        (found,) = judged.run({"x": DATA})
    # The engine hands on its integers, which count twice as much behind it.
    np.testing.assert_array_equal(found, np.rint(DATA * 64) / 32)
    with (
        opened(None) as judged,
        pytest.raises(CalibrationDataError, match="'x' is int8 in the engine, and the scale that makes int8"),
    ):
        judged.run({"x": DATA})


# Models with operators that compute on integers.
def saturating():
    """Quantized rows, and weights whose pairs of products with them do not fit int16: 255 * 127 * 2."""
    rows = np.full((2, 8), 255, np.float32)
    weights = np.full((8, 3), 127, np.int8)
    return rows, weights


def integer_product():
    g = Integers()
    operands = [*g.quantize("x", 1, ZERO), g.constant(saturating()[1]), *g.parameters(1, np.int8(0))]
    output = g.parameters(2048, ZERO)
    y = g.op("QLinearMatMul", [*operands, *output], "node")
    return g.proto({"x": ["N", 8]}, g.dequantize(y, output), 2)


def dynamic_product():
    body = "node = MatMulInteger (q, w, z, o)" + SCALED.replace("scaled =", "y =")
    constants = {"w": saturating()[1], "o": np.int8(0), "k": np.float32(1)}
    return dynamic_model(body, "float[N, 8] x", "float[o0, o1] y", **constants)


def fused_dynamic_product():
    """The same product as ONNX Runtime's optimizer fuses it."""
    g = Integers()
    operands = ["x", g.constant(saturating()[1]), *g.parameters(1, np.int8(0))]
    return g.proto({"x": ["N", 8]}, g.op("DynamicQuantizeMatMul", operands, "node", **MICROSOFT), 2)


@pytest.mark.parametrize(
    ("model", "step", "description"),
    [
        (integer_product(), 2048, "QLinearMatMul expanded to Q/DQ pairs, as fake quantization"),
        (dynamic_product(), 1, "MatMulInteger in integer kernels"),
        (fused_dynamic_product(), 1, "DynamicQuantizeMatMul in integer kernels"),
    ],
)
def test_integer_operators_are_judged_by_exact_sums(model, step, description):
    rows, weights = saturating()
    inputs = trtint8.model_inputs(model)
    output = model.graph.output[0].name
    with opening.open_validated("INT8", model, opening.Setting(inputs, declared(output))) as judged:
        (result,) = judged.run({"x": rows})
    exact = rows @ weights.astype(np.float32)
    assert exact[0, 0] == 8 * 255 * 127
    # With sums in int16 it would be 8 / 2 * 32767, half of that.
    np.testing.assert_array_equal(result, np.round(exact / step) * step)
    assert judged.description == f"the model with {description}, in ONNX Runtime"


def fed(array, dtype, scale=None):
    scales = {} if scale is None else {"x": np.float32(scale)}
    return as_fed({"x": array}, {"x": np.dtype(dtype)}, scales)["x"]


def test_integers_keep_their_values():
    ids = np.array([[101, -102]], np.int64)
    found = fed(ids, np.int32)
    assert found.dtype == np.int32 and found.tolist() == ids.tolist()
    assert as_input(found, TensorSpec("x", "int32", (None, 2)), 1) is found
    assert fed(ids, np.int64) is ids
    with pytest.raises(CalibrationDataError, match=r"'x' .* 5 to 1099511627776"):
        fed(np.array([5, 1 << 40]), np.int32)
    # Other kinds are left for the model to refuse.
    array = np.zeros(3, np.float32)
    assert fed(array, np.int32) is array and fed(array, np.bool_) is array


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_floating_point_values_are_rounded(dtype):
    array = np.array([1 / 3, 1e6], np.float32)
    with np.errstate(over="ignore"):
        found = fed(array, dtype)
        assert found.dtype == dtype and found.tobytes() == array.astype(dtype).tobytes()


def test_int8_stands_for_values():
    array = np.array([0.25, 0.26, -0.75, 100, -100], np.float32)
    found = fed(array, np.int8, 0.5)
    # Halves go to the even neighbour, and what is out of range to its ends.
    assert found.dtype == np.int8 and found.tolist() == [0, 1, -2, 127, -128]
    with pytest.raises(CalibrationDataError, match="'x' is int8"):
        fed(array, np.int8)
    output = np.array([-128, 3], np.int8)
    assert as_floats("y", output, {"y": np.float32(0.5)}).tolist() == [-64.0, 1.5]
    assert as_floats("y", output, {"x": np.float32(0.5)}) is output


MODEL, ENGINE = Origin("m", "it"), Origin("e", "it", "float", identity="qdq")


def fingerprints(origins, reference):
    found = identified(ACCURACY, origins, reference)
    return found.judged_fingerprint, found.reference_fingerprint


def test_fingerprints():
    reference = load_model(scaled(1.0))
    assert fingerprints([MODEL], reference) == (None, None)
    assert "fingerprint" not in vars(reference)  # it was not computed for this alone
    assert fingerprints([ENGINE, MODEL], reference) == ("qdq", reference.fingerprint)
    assert fingerprints([MODEL, ENGINE], reference) == (None, reference.fingerprint)
    # A reference with changed weights is of the model that it was made from.
    reference = load_model(scaled(1.0))
    record_float_model(reference.graph_model, "original")
    assert fingerprints([ENGINE], reference) == ("qdq", "original")
