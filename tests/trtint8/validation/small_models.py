"""Models of one multiplication: a network, a detector with one box per image, and one with rows of boxes."""

import numpy as np

from tests.trtint8.onnx_models import parsed

SQUARE, OTHER, FAR = [0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]


def scaled(factor, kind="float", names=("x", "y")):
    """A model that multiplies its input (n, 4)."""
    feed, result = names
    array = np.array([factor], np.float16 if kind == "float16" else np.float32)
    body = f"[mul] {result} = Mul ({feed}, factor)"
    return parsed(f"{kind}[n, 4] {feed}", f"{kind}[n, 4] {result}", body, factor=array)


def boxes_times(factor):
    """A "detector" whose only box an image is its input, times a factor."""
    return scaled(factor, names=("x", "boxes"))


def rows_as_they_are(columns, shape=None):
    """A "detector" that gives rows of detections, its input (n, k, columns); in another shape, if given."""
    body, constants = "[mul] same = Mul (x, factor) [last] rows = ", {"factor": np.ones(1, np.float32)}
    body += "Reshape (same, shape)" if shape else "Identity (same)"
    if shape:
        constants["shape"] = np.array(shape)
    declared = ", ".join(str(size) if size > 0 else "m" for size in shape) if shape else f"n, k, {columns}"
    return parsed(f"float[n, k, {columns}] x", f"float[{declared}] rows", body, **constants)


def shifted(by):
    """A model of maps (n, 3, 4, 4) that adds to each position of its input what ``by`` has there."""
    body = "[add] y = Add (x, by)"
    return parsed("float[n, 3, 4, 4] x", "float[n, 3, 4, 4] y", body, by=np.asarray(by, np.float32))
