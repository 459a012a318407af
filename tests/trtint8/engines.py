"""Engines of TensorRT for RTX, which builds without a GPU."""

import trtint8
from trtint8.data import DEMO_MODEL


def build_rtx(calibration, output, model=DEMO_MODEL, **options):
    """What is built of a model, by default that of the demonstration."""
    return trtint8.build_int8_engine(model, calibration, output, target="rtx", **options)
