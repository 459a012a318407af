"""The float model that others are compared with, and the data that all of them are fed."""

from __future__ import annotations

from dataclasses import dataclass

from calibrators.data.batches import Batches
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from trtint8.models.model import Model
from trtint8.models.outputs.runnable_part import picks_of_plugins, runnable_part
from trtint8.models.recorded_states import with_recorded_states
from trtint8.validation.output_shapes import DeclaredOutputs


@dataclass(frozen=True)
class Reference:
    """A float model as others are compared with it.

    Attributes:
        model: The model, without plugins of TensorRT at its end.
        declared: What it declares of its outputs, and which of them plugins compute.
    """

    model: Model
    declared: DeclaredOutputs

    @classmethod
    def of(cls, whole: Model) -> Reference:
        """A model that may end in plugins.

        Args:
            whole: The model; not changed.

        Raises:
            ModelError: It has plugins elsewhere.
        """
        left_out = picks_of_plugins(whole)
        model = runnable_part(whole, left_out)
        return cls(model, DeclaredOutputs.of(model.graph_model, left_out))

    def open_data(self, data: DataSource, options: DataOptions, threads: int | None = None) -> Batches:
        """Opens data for all models.

        Args:
            data: Samples, or sequences whose states the model records.
            options: How the data is read.
            threads: Threads per operator while states are recorded; ONNX Runtime's choice where None.

        Raises:
            CalibrationDataError: The data does not fit the model.
        """
        inputs = self.model.inputs
        recorded = with_recorded_states(data, self.model, threads)
        return open_data(recorded, inputs, options.on_cpu(inputs, self.model.output_shapes))
