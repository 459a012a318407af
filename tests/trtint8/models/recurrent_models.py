"""A small recurrent network, and the same in NumPy."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

FEATURES, HIDDEN = 6, 4


def weights():
    rng = np.random.default_rng(0)
    shapes = {"Wz": FEATURES, "Wn": FEATURES, "Uz": HIDDEN, "Un": HIDDEN}
    found = {name: rng.standard_normal((rows, HIDDEN), np.float32) for name, rows in shapes.items()}
    return {**found, "Wo": rng.standard_normal((HIDDEN, 1), np.float32)}


def recurrent_model():
    """A gated unit: takes sound (batch, 6), a state (1, batch, 4) and a rate, which is one number."""
    float_type = onnx.TensorProto.FLOAT
    node, make = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Cast", ["rate"], ["rate_float"], to=float_type),
        node("Div", ["sound", "rate_float"], ["x"]),
        node("Squeeze", ["state", "axis"], ["h"]),
        node("MatMul", ["x", "Wz"], ["xz"]),
        node("MatMul", ["h", "Uz"], ["hz"]),
        node("Add", ["xz", "hz"], ["z_sum"]),
        node("Sigmoid", ["z_sum"], ["z"]),
        node("MatMul", ["x", "Wn"], ["xn"]),
        node("MatMul", ["h", "Un"], ["hn"]),
        node("Add", ["xn", "hn"], ["n_sum"]),
        node("Tanh", ["n_sum"], ["n"]),
        node("Sub", ["h", "n"], ["difference"]),
        node("Mul", ["z", "difference"], ["kept"]),
        node("Add", ["n", "kept"], ["new"]),
        node("Unsqueeze", ["new", "axis"], ["next_state"]),
        node("MatMul", ["new", "Wo"], ["score"]),
        node("Sigmoid", ["score"], ["speech"]),
    ]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [
            make("sound", float_type, ["batch", FEATURES]),
            make("state", float_type, [1, "batch", HIDDEN]),
            make("rate", onnx.TensorProto.INT64, []),
        ],
        [make("speech", float_type, ["batch", 1]), make("next_state", float_type, [1, "batch", HIDDEN])],
        [numpy_helper.from_array(array, name) for name, array in weights().items()]
        + [numpy_helper.from_array(np.array([0]), "axis")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def states_in_numpy(sound, rate, first=None):
    """The state before each step of one sequence: sound (steps, 6) to states (1, steps, 4)."""
    w = weights()
    h = np.zeros(HIDDEN, np.float32) if first is None else first.reshape(HIDDEN)
    states = []
    for chunk in sound:
        states.append(h)
        x = chunk / np.float32(rate)
        z = 1 / (1 + np.exp(-(x @ w["Wz"] + h @ w["Uz"])))
        n = np.tanh(x @ w["Wn"] + h @ w["Un"])
        h = (1 - z) * n + z * h
    return np.stack(states)[None]


def sounds(steps=12, sequences=None):
    shape = (steps, FEATURES) if sequences is None else (sequences, steps, FEATURES)
    return np.random.default_rng(1).standard_normal(shape, np.float32) * 3
