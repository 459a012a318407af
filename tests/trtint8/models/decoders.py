"""Small decoders that cache keys and values, and what they are fed."""

import numpy as np
import onnx

WIDTH, CLASSES = 8, 12

#: What adds the keys of a step to those of the steps before.
JOINED = "keys = Concat <axis = 1> (past_keys, k)"


def decoder(keys=JOINED, further="", past="P", given=""):
    """One layer of attention over what is cached and what is fed.

    Args:
        keys: The nodes that compute ``keys``.
        further: More nodes.
        past: How many steps are cached, in the model's words.
        given: More outputs.
    """
    model = onnx.parser.parse_model(f"""
    <ir_version: 9, opset_import: ["": 17]>
    decoder (float[N, S, {WIDTH}] x, float[N, {past}, {WIDTH}] past_keys, float[N, P, {WIDTH}] past_values)
        => (float[N, S, {CLASSES}] logits, float[N, T, {WIDTH}] keys, float[N, T, {WIDTH}] values{given})
    {{
        q = MatMul (x, Wq)
        k = MatMul (x, Wk)
        v = MatMul (x, Wv)
        {keys}
        values = Concat <axis = 1> (past_values, v)
        turned = Transpose <perm = [0, 2, 1]> (keys)
        scores = MatMul (q, turned)
        shares = Softmax <axis = -1> (scores)
        context = MatMul (shares, values)
        logits = MatMul (context, Wo)
        {further}
    }}
    """)
    rng = np.random.default_rng(0)
    shapes = {"Wq": (WIDTH, WIDTH), "Wk": (WIDTH, WIDTH), "Wv": (WIDTH, WIDTH), "Wo": (WIDTH, CLASSES)}
    for name, shape in shapes.items():
        array = rng.normal(0, WIDTH**-0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def whole_sequences(count, seed=0, steps=10):
    """Feeds of sequences at once, with nothing cached."""
    empty = np.zeros((count, 0, WIDTH), np.float32)
    x = np.random.default_rng(seed).normal(0, 1, (count, steps, WIDTH)).astype(np.float32)
    return {"x": x, "past_keys": empty, "past_values": empty}


def steps_of_sequences(count, seed=0, steps=10):
    """One feed per step, with what the float model caches before it: nothing at the first."""
    feed = whole_sequences(count, seed, steps)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in decoder().graph.initializer}
    for x in feed["x"]:
        keys, values = (x[None] @ weights[name] for name in ("Wk", "Wv"))
        for step in range(steps):
            yield {
                "x": x[None, step : step + 1],
                "past_keys": keys[:, :step],
                "past_values": values[:, :step],
            }
