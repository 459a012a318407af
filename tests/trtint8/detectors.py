"""Small detectors, whose outputs join boxes in pixels and scores between 0 and 1."""

import numpy as np

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


def images(samples, seed=0, size=8):
    """Normally distributed images."""
    return np.random.default_rng(seed).standard_normal((samples, 3, size, size)).astype(np.float32)
