"""The ways to bring a network into INT8 that are compared: our own, and ranges of other tools."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial

import onnx
import onnx_ir as ir

import trtint8
from accuracy_bench.cases import Case
from calibrators.data.opening import open_batches
from calibrators.histograms.thresholds import METHODS
from trtint8.models.model import load_float_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place
from trtint8.quantization.qdq import insert_qdq
from trtint8.tuning.remedies.bias_correction import correct_biases
from trtint8.tuning.remedies.rounding import adapt_rounding

#: Samples that biases are corrected and weights are rounded with.
REMEDY_SAMPLES = 128


class Workbench:
    """One network, calibrated once for all methods.

    Args:
        case: The network and its data.
        limit: The most calibration samples, and the most samples to tune on.

    Attributes:
        case: The network and its data.
        limit: The most calibration samples, and the most samples to tune on.
        table: The table of the method ``auto``; its histograms give the tables of the others.
        seconds: The processor time of the calibration.
    """

    def __init__(self, case: Case, limit: int) -> None:
        self.case, self.limit = case, limit
        begun = time.process_time()
        self.table = trtint8.calibrate(
            case.model,
            case.calibration,
            tensors="placed",
            limit=limit,
            preprocessing=case.preprocessing,
            progress=False,
        )
        self.seconds = time.process_time() - begun

    def with_auto(self) -> tuple[onnx.ModelProto, str]:
        """Ranges by the method ``auto``."""
        return trtint8.quantize(self.case.model, self.table, spend=0), ""

    def spent(self) -> tuple[onnx.ModelProto, str]:
        """Ranges by ``auto``, and layers in float for one per cent of the time: what ``quantize`` does."""
        layers = self.table.float_layers
        return trtint8.quantize(self.case.model, self.table), f"{layers.share if layers else 0:.2%} in float"

    def with_method(self, method: str) -> tuple[onnx.ModelProto, str]:
        """Ranges by one of the methods that look at each tensor alone."""
        return trtint8.quantize(self.case.model, self.table.with_method(method), spend=0), ""

    def with_remedies(self, *, rounding: bool, biases: bool) -> tuple[onnx.ModelProto, str]:
        """Ranges by ``auto``, and weights and biases that compensate for the error of INT8.

        Args:
            rounding: Whether weights are rounded adaptively.
            biases: Whether biases are corrected, which is done last.
        """
        prepared = prepare(load_float_model(self.case.model))
        model, placement = prepared.graph_model, place(prepared.graph_model)
        feeds = partial(
            open_batches,
            self.case.calibration,
            prepared.inputs,
            limit=REMEDY_SAMPLES,
            preprocessing=self.case.preprocessing,
        )
        if rounding:
            model = adapt_rounding(model, placement, feeds()).model
        if biases:
            model = correct_biases(model, placement, self.table.amax, feeds()).model
        changed: ir.Model = model.clone()
        insert_qdq(changed, placement, self.table.amax)
        return to_proto(changed), ""

    def rounded(self) -> tuple[onnx.ModelProto, str]:
        """What ``quantize`` makes of ranges by ``auto`` where it rounds weights and corrects biases."""
        rounded: Callable[..., onnx.ModelProto] = trtint8.quantize
        case = self.case
        model = rounded(case.model, self.table, rounding=case.calibration, preprocessing=case.preprocessing)
        return model, "0 % in float"

    def tuned(self) -> tuple[onnx.ModelProto, str]:
        """What ``tune`` finds, which makes its decisions with the calibration samples."""
        found = trtint8.tune(
            self.case.model,
            self.case.calibration,
            self.case.calibration,
            judge=self.case.held_out,
            limit=self.limit,
            preprocessing=self.case.preprocessing,
            progress=False,
        )
        return to_proto(found.graph_model), f"{100 * found.float_cost:.2g} % in float"


#: Name of each of our own methods to what gives the model with Q/DQ pairs, and notes.
OWN: dict[str, Callable[[Workbench], tuple[onnx.ModelProto, str]]] = {
    **{name: partial(Workbench.with_method, method=name) for name in METHODS},
    "auto": Workbench.with_auto,
    "spent": Workbench.spent,
    "auto, biases": partial(Workbench.with_remedies, rounding=False, biases=True),
    "auto, rounding": partial(Workbench.with_remedies, rounding=True, biases=False),
    "auto, both": partial(Workbench.with_remedies, rounding=True, biases=True),
    "tuned": Workbench.tuned,
}
if "rounding" in inspect.signature(trtint8.quantize).parameters:
    OWN = {**OWN, "rounded": Workbench.rounded}
