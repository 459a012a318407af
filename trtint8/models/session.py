"""Opens models of onnx-ir's form in ONNX Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.data.feeds import Array, FeedDict, batch_rows, pieces
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.host.session import (
    available_threads,
    first_line,
    open_session,
    runs_at_once,
    threads_of_session,
)
from calibrators.host.weights import LightModel
from trtint8.models.declared import declare_inner_shapes
from trtint8.models.graph import computes_in
from trtint8.models.model import Model
from trtint8.models.outputs.picked import with_outputs
from trtint8.models.passes.float32 import (
    ComputeInFloat32Pass,
    QuantizeInFloat32Pass,
    quantizes_half,
)
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.serialization import light_or_file

#: What to say of a model that is run on one sample after another.
TAKES_ONE = (
    "the model takes one sample at a time, although it leaves open how many: each sample was run by itself"
)


class StoppableRuns:
    """Runs of sessions in another thread, which can be told to end early."""

    def __init__(self) -> None:
        import onnxruntime as ort

        #: The ``onnxruntime.RunOptions`` of the runs.
        self.options = ort.RunOptions()

    def stop(self) -> None:
        """Lets the run that is under way fail behind its present operator, and every later one at once."""
        self.options.terminate = True


@dataclass(eq=False)
class ModelSession:
    """A model that is open in ONNX Runtime.

    Attributes:
        session: The ``onnxruntime.InferenceSession``.
        runs_at_once: How many parts of a batch are run at once. More than one is for models that compute
            every sample by itself.
        takes_one: Whether it was found to take one sample at a time: some models that were exported with a
            batch of 1 do, although they leave its size open.
    """

    session: Any
    runs_at_once: int = 1
    takes_one: bool = False

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs."""
        return [output.name for output in self.session.get_outputs()]

    def run(
        self, feed: FeedDict, names: Sequence[str] | None = None, stoppable: StoppableRuns | None = None
    ) -> list[Array]:
        """Runs the model on a batch, or on one sample after another where it takes no more.

        Args:
            feed: Input name to array.
            names: The outputs that are wanted; all, in their order, where None.
            stoppable: Can end the run early.

        Returns:
            The outputs.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch, or the run was stopped.

        Warns:
            UserWarning: The model was found to take one sample at a time.
        """
        options = stoppable.options if stoppable else None

        def run(part: FeedDict) -> list[Array]:
            outputs: list[Array] = self.session.run(names, part, options)
            return outputs

        rows = batch_rows(feed) or 1
        try:
            if self.takes_one:
                return _joined([run(part) for part in pieces(feed, 1)])
            parts = list(pieces(feed, rows, self.runs_at_once))
            if len(parts) == 1:
                return run(parts[0])
            with ThreadPoolExecutor(len(parts), "trtint8-run") as pool:
                return _joined(list(pool.map(run, parts)))
        except Exception as error:
            stopped = stoppable is not None and stoppable.options.terminate
            if rows > 1 and not (self.takes_one or stopped):
                with contextlib.suppress(Exception):
                    outputs = _joined([run(part) for part in pieces(feed, 1)])
                    self.takes_one = True
                    warn_user(TAKES_ONE, note=True)
                    return outputs
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error


def _joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """The outputs for a batch that was run in parts."""
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def open_model(
    model: Model, further: Sequence[str] = (), *, threads: int | None = None, rows: int = 1
) -> ModelSession:
    """Opens a model on the CPU as it was read, where that can be done without converting it.

    See :func:`open_graph_model` for models that compute in 16 bits.

    Args:
        model: The model.
        further: Names of tensors that become outputs behind its own.
        threads: Threads for the model; ONNX Runtime's choice where None.
        rows: How many samples the batches usually have. Where they have more than one, and the model computes
            every sample by itself, threads run parts of a batch at once.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    return open_graph_model(model.graph_model, further, threads=threads, rows=rows, light=model.light)


def open_graph_model(
    graph_model: ir.Model,
    further: Sequence[str] = (),
    *,
    threads: int | None = None,
    rows: int = 1,
    optimize: bool = True,
    pack_weights: bool = True,
    used_up: bool = False,
    light: LightModel | None = None,
) -> ModelSession:
    """Opens a model on the CPU.

    Large weights are handed over where they lie: to serialize and parse them takes longer than to open the
    session. A model that computes in BF16, and one in FP16 that ONNX Runtime refuses, is opened in FP32: some
    exporters write FP16 models whose nodes mix types, which only a conversion mends. Where others quantize,
    they do so in FP32 (:class:`QuantizeInFloat32Pass`).

    Args:
        graph_model: The model. Its weights are copied, so it may go when the session is open.
        further: Names of tensors that become outputs behind its own.
        threads: Threads for the model; ONNX Runtime's choice where None.
        rows: See :func:`open_model`.
        optimize: See :func:`calibrators.host.session.open_session`.
        pack_weights: See there.
        used_up: Whether the model is needed no longer: it has no large weights afterwards. Otherwise it is
            copied, which for a graph of a thousand nodes takes as long as opening the session.
        light: What the graph was read from, which is opened in its place where nothing has to change.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    at_once = 1 if further else runs_at_once(threads or available_threads(), rows)
    if at_once > 1:
        if light is not None:
            declare_inner_shapes(graph_model, light)
        at_once = at_once if joined_by_graph(graph_model, follow_shapes=False).has_rows else 1
    own_threads = threads if at_once == 1 else threads_of_session(threads or available_threads(), at_once)
    given = graph_model

    def opened(graph_model: ir.Model, used_up: bool) -> ModelSession:
        if quantizes_half(graph_model):
            changed = graph_model if used_up else graph_model.clone()
            graph_model, used_up = QuantizeInFloat32Pass()(changed).model, True
        extended = with_outputs(graph_model, further)
        model: contextlib.AbstractContextManager[LightModel | Path]
        if light is not None and extended is given:
            model = contextlib.nullcontext(light)
        else:
            model = light_or_file(extended, used_up=used_up or extended is not graph_model)
        with model as source:
            session = open_session(
                source,
                optimize=optimize,
                threads=own_threads,
                keep_layout=_has_half(graph_model),
                pack_weights=pack_weights,
            )
        return ModelSession(session, at_once)

    if not computes_in(graph_model, ir.DataType.BFLOAT16):
        try:
            return opened(graph_model, used_up)
        except ModelError:
            if used_up or not _has_half(graph_model):
                raise
    return opened(ComputeInFloat32Pass()(graph_model.clone()).model, True)


def _has_half(graph_model: ir.Model) -> bool:
    """True if a model computes in FP16.

    ONNX Runtime's kernels with another layout are for FP32. It looks for them all the same, and crashes
    (1.32) where a recurrent operator in FP16 stands between two Transposes.
    """
    return computes_in(graph_model, ir.DataType.FLOAT16)
