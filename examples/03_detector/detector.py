"""A detector whose boxes are decoded outside the graph, judged by what it detects."""

from pathlib import Path

import numpy as np

import trtint8

HERE, OUTPUT = Path(__file__).parent, Path("example_output")
STRIDE, SCORE, OVERLAP = 4, 0.3, 0.5


def sigmoid(x):
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def suppressed(boxes, scores):
    """Indices that non-maximum suppression keeps, the highest score first."""
    kept, order = [], list(np.argsort(-scores))
    while order:
        best = order.pop(0)
        kept.append(best)
        low, high = (
            np.maximum(boxes[best, :2], boxes[order, :2]),
            np.minimum(boxes[best, 2:], boxes[order, 2:]),
        )
        common = np.clip(high - low, 0, None).prod(axis=1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        overlaps = common / (areas[best] + areas[order] - common)
        order = [index for index, overlap in zip(order, overlaps, strict=True) if overlap < OVERLAP]
    return kept


def decode(outputs):
    """Boxes (x1, y1, x2, y2), scores and classes of each image of a batch.

    The network's output ``cells`` (N, 14, 8, 8) has for each cell of 4 x 4 pixels a score, where in the cell
    the centre of a digit lies, the digit's size in cells, and the scores of the ten classes.
    """
    detections = []
    for cells in outputs["cells"]:
        scores = sigmoid(cells[0])
        row, column = np.nonzero(scores > SCORE / 2)
        found = cells[:, row, column]
        centre = np.stack([column, row]) + found[1:3]
        boxes = np.concatenate([centre - found[3] / 2, centre + found[3] / 2]).T * STRIDE
        scores, classes = scores[row, column], found[4:].argmax(axis=0)
        kept = suppressed(boxes, scores)
        detections.append((boxes[kept], scores[kept], classes[kept]))
    return detections


def true_boxes():
    """The digits of each held-out image: boxes and classes."""
    truth = np.load(HERE / "truth.npz")
    return [
        (boxes[classes >= 0], classes[classes >= 0])
        for boxes, classes in zip(truth["boxes"], truth["classes"], strict=True)
    ]


def main() -> None:
    """Quantizes the detector, judges it by its detections, and builds the engine."""
    OUTPUT.mkdir(exist_ok=True)
    raw = trtint8.Preprocessing()  # uint8 images, divided by 255
    # INT8 gains nothing in a network as small as this one. Without keep_int8 its layers would stay in FP16.
    result = trtint8.build_int8_engine(
        HERE / "detector.onnx",
        HERE / "calibration.npz",
        OUTPUT / "detector.engine",
        keep_int8=["*"],
        preprocessing=raw,
    )
    accuracy = trtint8.validate(
        result.engine,
        HERE / "heldout.npz",
        reference=HERE / "detector.onnx",
        metrics=[
            trtint8.DetectionAgreement(decode, score=SCORE, iou=OVERLAP),
            trtint8.MeanAveragePrecision(decode, true_boxes(), iou=0.5),
        ],
        preprocessing=raw,
    )
    for measure in accuracy.measures:
        fp32 = "" if measure.reference is None else f"FP32 {measure.reference:.4f}, "
        print(f"{measure.name}: {fp32}INT8 {measure.value:.4f}")


if __name__ == "__main__":
    main()
