"""ONNX's own tests of its operators, each between two layers, and what becomes of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError, TrtInt8Error
from calibrators.host.session import first_line, open_session

#: How far the outputs of a model that stays in float may be from the model's own. ONNX Runtime joins other
#: nodes where shapes are declared and constants are folded.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
#: The same for FP16, which a model that stays in float computes in FP32 inside; a share of the largest value.
CLOSE_HALF = 0.01

#: The most columns for which a layer is made.
WIDEST = 1024

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class NodeCase:
    """One of ONNX's tests, with a layer before each float input and behind each float output of its node.

    The layers multiply by the identity, so that the node reads the values that it was made for.

    Attributes:
        name: ONNX's name of the test.
        model: The model.
        feed: One sample.
    """

    name: str
    model: onnx.ModelProto
    feed: Feed


@dataclass(frozen=True)
class Verdict:
    """What became of a case.

    Attributes:
        stage: The step at which it ended; ``all`` where every step worked.
        error: The error's class, where one was raised.
        words: What it says.
    """

    stage: str
    error: str = ""
    words: str = ""

    def __str__(self) -> str:
        return self.stage + (f": {self.error}: {self.words}" if self.error else "")


def all_cases() -> list[Any]:
    """ONNX's tests of single operators, as the installed package makes them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # NumPy's, of what the tests compute
        return [case for case in collect_testcases(None) if case.data_sets]


def between_layers(case: Any) -> NodeCase:
    """One of ONNX's tests as a network.

    Args:
        case: From :func:`all_cases`.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    inputs, outputs = (list(map(_as_array, values)) for values in case.data_sets[0])
    feed = dict(zip((value.name for value in graph.input), inputs, strict=False))
    before, behind = [], []
    for value, array in zip(list(graph.input), inputs, strict=False):
        if _is_multiplied(value, array):
            fed = f"{value.name}_fed"
            before.append(_layer(graph, fed, value.name, array.shape[-1]))
            feed[fed] = feed.pop(value.name)
            value.name = fed
    for value, array in zip(list(graph.output), outputs, strict=False):
        if _is_multiplied(value, array):
            behind.append(_layer(graph, value.name, f"{value.name}_multiplied", array.shape[-1]))
            value.name = f"{value.name}_multiplied"
    if not before + behind:
        before.append(_layer(graph, "beside", "beside_multiplied", 4))
        graph.input.append(helper.make_tensor_value_info("beside", TensorProto.FLOAT, [2, 4]))
        graph.output.append(helper.make_tensor_value_info("beside_multiplied", TensorProto.FLOAT, [2, 4]))
        feed["beside"] = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)
    return NodeCase(case.name, model, feed)


def _as_array(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_multiplied(value: onnx.ValueInfoProto, array: Any) -> bool:
    of_floats = value.type.tensor_type.elem_type == TensorProto.FLOAT and isinstance(array, np.ndarray)
    fits = of_floats and array.ndim > 0 and array.size > 0 and array.shape[-1] <= WIDEST
    return fits and bool(np.isfinite(array).all())


def _layer(graph: onnx.GraphProto, source: str, output: str, size: int) -> onnx.NodeProto:
    weights = f"{output}_identity"
    graph.initializer.append(numpy_helper.from_array(np.eye(size, dtype=np.float32), weights))
    return helper.make_node("MatMul", [source, weights], [output], f"{output}_layer")


def judge(case: NodeCase) -> Verdict:
    """Takes a case through calibration and the forms of quantization, and runs what comes out.

    Args:
        case: The case.
    """
    steps = _steps(case)
    stage = "begin"
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stage = next(steps)
        except StopIteration:
            return Verdict("all")
        except TrtInt8Error as error:
            return Verdict(_after(stage), type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001  # which is what is looked for
            return Verdict(_after(stage), f"fault {type(error).__name__}", " ".join(str(error).split())[:300])


_ORDER = ("begin", "load", "calibrate", "float", "quantize", "float16")


def _after(stage: str) -> str:
    return _ORDER[_ORDER.index(stage) + 1]


def _steps(case: NodeCase) -> Iterator[str]:
    """Does one step after another, and says which is done."""
    trtint8.model_inputs(case.model)
    yield "load"
    try:
        expected = _run(case.model, case.feed)
    except ModelError:
        expected = None  # ONNX Runtime has no such operator, or its arrays have no such type
    table = trtint8.calibrate(case.model, [case.feed], method="minmax", progress=False)
    yield "calibrate"
    kept = trtint8.quantize(case.model, table, keep_float=["*"], progress=False)
    if expected is not None:
        _check_equal(_run(kept, case.feed), expected)
    yield "float"
    _run(trtint8.quantize(case.model, table, progress=False), case.feed)
    yield "quantize"
    options = {"target": "rtx", "keep_int8": ["*"], "float16": True, "float32_io": True}
    _run(trtint8.quantize(case.model, table, progress=False, **options), case.feed)
    yield "float16"


def _run(model: onnx.ModelProto, feed: Feed) -> dict[str, Any]:
    """Runs a model in ONNX Runtime.

    Raises:
        ModelError: ONNX Runtime refuses the model or the feed, in either of which it has no words of ours.
    """
    session = open_session(model.SerializeToString(), optimize=True)
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(None, dict(feed)), strict=True))
    except Exception as error:
        raise ModelError(f"ONNX Runtime fails: {first_line(error)}") from error


def _check_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        if isinstance(array, np.ndarray) and array.dtype == np.float16:
            largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
            np.testing.assert_allclose(found[name], array, atol=CLOSE_HALF * largest, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], array, **CLOSE, err_msg=name)
