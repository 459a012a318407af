"""A small recurrent network, and the same in NumPy."""

import numpy as np

from tests.trtint8.onnx_models import parsed

FEATURES, HIDDEN = 6, 4


def weights():
    rng = np.random.default_rng(0)
    shapes = {"Wz": FEATURES, "Wn": FEATURES, "Uz": HIDDEN, "Un": HIDDEN}
    found = {name: rng.standard_normal((rows, HIDDEN), np.float32) for name, rows in shapes.items()}
    return {**found, "Wo": rng.standard_normal((HIDDEN, 1), np.float32)}


def recurrent_model():
    """A gated unit: takes sound (batch, 6), a state (1, batch, 4) and a rate, which is one number."""
    return parsed(
        f"float[batch, {FEATURES}] sound, float[1, batch, {HIDDEN}] state, int64 rate",
        f"float[batch, 1] speech, float[1, batch, {HIDDEN}] next_state",
        """rate_float = Cast <to = 1> (rate) x = Div (sound, rate_float) h = Squeeze (state, axis)
        xz = MatMul (x, Wz) hz = MatMul (h, Uz) z_sum = Add (xz, hz) z = Sigmoid (z_sum)
        xn = MatMul (x, Wn) hn = MatMul (h, Un) n_sum = Add (xn, hn) n = Tanh (n_sum)
        difference = Sub (h, n) kept = Mul (z, difference) new = Add (n, kept)
        next_state = Unsqueeze (new, axis) score = MatMul (new, Wo) speech = Sigmoid (score)""",
        ir_version=9,
        axis=np.array([0]),
        **weights(),
    )


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
