"""Small networks as text."""

import numpy as np
import onnx
from onnx import numpy_helper


def network(text, **constants):
    """A model of a graph in ONNX's text syntax, whose constants become initializers.

    A type without sizes, such as ``float``, leaves the shape open.
    """
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    for value in (*model.graph.output, *model.graph.value_info):
        if not value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    return model
