"""What equalized channels gain on samples that neither they nor their ranges were chosen with."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence

from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict
from calibrators.tables.table import CalibrationTable
from trtint8.equalization.equalize import equalize
from trtint8.models.model import Model, rebuilt
from trtint8.tuning.candidates import Candidate, Scorer

#: Calibrates a model with some samples.
Calibrate = Callable[[Model, Sequence[FeedDict]], CalibrationTable]


def gain_on_others(start: Candidate, samples: Sequence[FeedDict], calibrate: Calibrate) -> float:
    """Equalizes and calibrates with every other sample, and compares on those between.

    Equalization brings all channels close to the end of the range, which samples that were not calibrated
    with exceed more often than before. On the samples that were, that does not show.

    Args:
        start: The candidate that is to be equalized.
        samples: Two samples or more, one feed each.
        calibrate: Calibrates a model with samples.

    Returns:
        How much higher the SQNR is with equalized channels, in decibels; 0 where there are none.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    seen, others = samples[::2], samples[1::2]
    equalized = equalize(start.model.graph_model, iter(seen), start.table.method)
    if not equalized.forms:
        return 0.0
    scorer = Scorer(start.model, Batches.of_feeds(lambda: iter(others)), "sqnr")

    def sqnr_db(model: Model) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranges are not used
            table = calibrate(model, seen)
        return scorer.score(dataclasses.replace(start, model=model, table=table)).sqnr_db

    return sqnr_db(rebuilt(equalized.model, start.model.name)) - sqnr_db(start.model)
