"""Small detectors, whose outputs join boxes in pixels and scores between 0 and 1."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Shaped

CLASSES = 6
BOXES, SCORES = "joined_out[:, 0:4]", f"joined_out[:, 4:{4 + CLASSES}]"


class Detector(Shaped):
    """A graph with the parts of a detector."""

    def level(self, name, source="images", stride=1):
        """Boxes of hundreds of pixels and scores at each position; names of both tensors."""
        convolved = self.op(
            "Relu",
            [
                self.op(
                    "Conv",
                    [source, self.weights(8, 3, 3, 3)],
                    f"{name}_stem",
                    pads=[1] * 4,
                    strides=[stride] * 2,
                )
            ],
            f"{name}_relu",
        )
        boxes = self.op("Conv", [convolved, self.weights(4, 8, 1, 1)], f"{name}_boxes")
        pixels = self.op("Mul", [boxes, self.constant(np.float32(300))], f"{name}_pixels")
        logits = self.op("Conv", [convolved, self.weights(CLASSES, 8, 1, 1)], f"{name}_classes")
        return pixels, self.op("Sigmoid", [logits], f"{name}_scores")

    def flat(self, tensor, channels, name):
        """Positions along one axis: N x channels x positions."""
        return self.op("Reshape", [tensor, self.constant(np.int64([0, channels, -1]))], name)


def detector(size=8):
    """One output as YOLO networks of ultralytics have it: N x (4 + classes) x positions."""
    g = Detector()
    boxes, scores = g.level("one")
    joined = [g.flat(boxes, 4, "flat_boxes"), g.flat(scores, CLASSES, "flat_scores")]
    return g.model({"images": ["N", 3, size, size]}, g.op("Concat", joined, "joined", axis=1))


def unordered_detector(size=8, batch="N"):
    """Boxes and scores at each position: N x positions x 4 and N x positions x classes."""
    g, boxes, scores = _boxes_and_scores()
    outputs = {boxes: ["N", "n", 4], scores: ["N", "n", CLASSES]}
    return _with_outputs(
        g,
        {"images": [batch, 3, size, size]},
        {name: (TensorProto.FLOAT, shape) for name, shape in outputs.items()},
    )


def ranking_detector(size=8, kept=5):
    """The boxes of the largest scores, as detectors without suppression have them: N x kept x 6."""
    g, boxes, scores = _boxes_and_scores()
    best = g.op("ReduceMax", [scores], "best", axes=[2], keepdims=0)
    g.nodes.append(
        helper.make_node("TopK", [best, g.constant(np.int64([kept]))], ["values", "places"], "top")
    )
    places = g.op("Unsqueeze", ["places", g.constant(np.int64([2]))], "places_of_one")
    of_boxes = g.op("Tile", [places, g.constant(np.int64([1, 1, 4]))], "places_of_four")
    kinds = g.op("ArgMax", [scores], "kinds", axis=2)
    rows = [
        g.op("GatherElements", [boxes, of_boxes], "best_boxes", axis=1),
        g.op("Unsqueeze", ["values", g.constant(np.int64([2]))], "best_scores"),
        g.op("Cast", [g.op("GatherElements", [kinds, places], "best_kinds", axis=1)], "numbers", to=1),
    ]
    rows = g.op("Concat", rows, "rows", axis=2)
    return _with_outputs(g, {"images": ["N", 3, size, size]}, {rows: (TensorProto.FLOAT, ["N", kept, 6])})


def suppressing_detector(size=8, least=0.55):
    """What non-maximum suppression leaves of one image: boxes k x 4, scores k and classes k."""
    g, boxes, scores = _boxes_and_scores()
    by_class = g.op("Transpose", [scores], "by_class", perm=[0, 2, 1])
    limits = [g.constant(np.int64([4])), g.constant(np.float32([0.5])), g.constant(np.float32([least]))]
    selected = g.op("NonMaxSuppression", [boxes, by_class, *limits], "suppression")
    classes = g.op("Gather", [selected, g.constant(np.int64(1))], "classes", axis=1)
    places = g.op("Gather", [selected, g.constant(np.int64(2))], "places", axis=1)
    flat = g.op("Squeeze", [boxes, g.constant(np.int64([0]))], "flat_boxes")
    kept = g.op("Gather", [flat, places], "kept", axis=0)
    table = g.op("Squeeze", [scores, g.constant(np.int64([0]))], "table")
    pairs = [
        g.op("Unsqueeze", [one, g.constant(np.int64([1]))], f"{one}_column") for one in (places, classes)
    ]
    own = g.op("GatherND", [table, g.op("Concat", pairs, "pairs", axis=1)], "own")
    outputs = {
        kept: (TensorProto.FLOAT, ["k", 4]),
        own: (TensorProto.FLOAT, ["k"]),
        classes: (TensorProto.INT64, ["k"]),
    }
    return _with_outputs(g, {"images": [1, 3, size, size]}, outputs)


def plugin_detector(size=8, domain="TRT"):
    """Boxes and scores that a plugin of TensorRT suppresses, in a domain of its own or in none."""
    g, boxes, scores = _boxes_and_scores()
    kept = ["num", "nms_boxes", "nms_scores", "nms_classes"]
    numbers = {"background_class": -1, "box_coding": 0, "max_output_boxes": 4, "score_activation": 0}
    limits = {"iou_threshold": 0.5, "score_threshold": 0.5, **numbers}
    plugin = helper.make_node("EfficientNMS_TRT", [boxes, scores], kept, "nms", domain=domain, **limits)
    model = g.model({"images": ["N", 3, size, size]}, boxes)
    model.graph.node.append(plugin)
    del model.graph.output[:]
    for name, kind, shape in zip(kept, [6, 1, 1, 6], [[1], [4, 4], [4], [4]], strict=True):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, ["N", *shape]))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


#: What the three detectors above pick from, in the order in which it is computed.
PICKED_FROM = ("corners_out", "scores_last_out")


def _boxes_and_scores():
    """A graph with boxes by their corners, N x positions x 4, and scores, N x positions x classes."""
    g = Detector()
    pixels, scores = g.level("one")
    flat = g.flat(pixels, 4, "flat_pixels")
    corners = g.op("Transpose", [flat], "turned", perm=[0, 2, 1])
    corners = g.op("Add", [corners, g.constant(np.float32([0, 0, 600, 600]))], "corners")
    last = g.op("Transpose", [g.flat(scores, CLASSES, "flat_scores")], "scores_turned", perm=[0, 2, 1])
    return g, corners, g.op("Mul", [last, g.constant(np.float32(1))], "scores_last")


def _with_outputs(g, inputs, outputs):
    """The model with several outputs: name to type and shape."""
    model = g.model(inputs, next(iter(outputs)))
    del model.graph.output[:]
    for name, (kind, shape) in outputs.items():
        model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    onnx.checker.check_model(model)
    return model


def images(samples, seed=0, size=8):
    """Normally distributed images."""
    return np.random.default_rng(seed).standard_normal((samples, 3, size, size)).astype(np.float32)
