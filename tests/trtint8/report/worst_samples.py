"""Samples that a page shows as the worst."""

import numpy as np

from trtint8.report.worst import Answers, Worst, WorstSample

WORST = Worst(
    400,
    10,
    "a stand-in",
    (
        WorstSample(
            7, 0.25, Answers((0, 2), (3.5, 1.25), (2.0, 2.5), True), 2, np.zeros((8, 8, 3), np.uint8)
        ),
        WorstSample(9, 0.125, Answers((1, 0), (4.5, 0.75), (4.0, 1.0), False)),
    ),
    ("<cat>", "dog", "ship"),
)
