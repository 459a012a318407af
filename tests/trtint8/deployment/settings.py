"""Preprocessing of all kinds, and what becomes of it in deployments."""

import warnings
from dataclasses import dataclass

import numpy as np

from calibrators.data.images.preprocessing import Preprocessing
from tests.trtint8.deployment.conftest import shapes
from trtint8.engine.file import TensorSpec

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Setting:
    """Preprocessing, and what nvinfer makes of it.

    Attributes:
        wanted: The preprocessing.
        nvinfer: ``same``, ``other`` where a warning says so, or ``refused``.
        channels: Of the raw images.
        size: Of the raw images: height and width. The network's is 8 x 6.
        dtype: Of the network's input.
    """

    wanted: Preprocessing
    nvinfer: str = "same"
    channels: int = 3
    size: tuple[int, int] = (8, 6)
    dtype: str = "float32"

    @property
    def input(self):
        shape = {"N": "batch", "C": self.channels, "H": 8, "W": 6}
        return TensorSpec("images", self.dtype, tuple(shape[axis] for axis in self.wanted.layout))

    @property
    def images(self):
        shape = (2, *self.size, self.channels)
        return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def source(self, make_source):
        rest = self.input.shape[1:]
        return make_source(
            preprocessing=self.wanted, inputs=(self.input,), profiles=({"images": shapes(1, 2, 4, rest)},)
        )


SETTINGS = {
    "scaled": Setting(Preprocessing()),
    "pixels": Setting(Preprocessing(scale=1.0)),
    "one mean": Setting(Preprocessing(mean=(0.5,), std=(0.5,))),
    "tensorflow": Setting(Preprocessing(scale=2 / 255, mean=(1.0,))),
    "three means": Setting(Preprocessing(mean=(0.4, 0.5, 0.6))),
    "equal deviations": Setting(Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2))),
    "bgr": Setting(Preprocessing(channels="BGR", mean=(0.4, 0.5, 0.6))),
    "caffe": Setting(Preprocessing(scale=1.0, mean=(104.0, 117.0, 123.0), channels="BGR")),
    "last": Setting(Preprocessing(layout="NHWC", mean=(0.4, 0.5, 0.6))),
    "last, bgr": Setting(Preprocessing(layout="NHWC", mean=(0.4, 0.5, 0.6), channels="BGR", std=(0.3,))),
    "grey": Setting(Preprocessing(mean=(0.1307,), std=(0.3081,)), channels=1),
    "grey, last": Setting(Preprocessing(mean=(0.5,), layout="NHWC", channels="BGR"), channels=1),
    "resized": Setting(Preprocessing(resize=(8, 6), mean=(0.4, 0.5, 0.6)), size=(20, 30)),
    "resized grey": Setting(Preprocessing(resize=(8, 6), scale=1.0), channels=1, size=(5, 5)),
    "deviations": Setting(Preprocessing(**IMAGENET), "other"),
    "cropped to all of it": Setting(Preprocessing(resize=(8, 6), crop=(8, 6)), size=(20, 30)),
    "cropped": Setting(Preprocessing(resize=(9, 9), crop=(8, 6)), "other", size=(20, 30)),
    "imagenet": Setting(Preprocessing(resize=9, crop=(8, 6), **IMAGENET), "other", size=(20, 30)),
    "only cropped": Setting(Preprocessing(crop=(8, 6), layout="NHWC"), "other", size=(12, 10)),
    "letterbox": Setting(Preprocessing(letterbox=(8, 6)), "other", size=(20, 30)),
    "letterbox, bgr": Setting(Preprocessing(letterbox=(8, 6), channels="BGR"), "other", size=(30, 12)),
    "grey letterbox": Setting(Preprocessing(letterbox=(8, 6), scale=1.0), "other", channels=1, size=(9, 9)),
    "half": Setting(Preprocessing(mean=(0.4, 0.5, 0.6)), "refused", dtype="float16"),
    "negative": Setting(Preprocessing(scale=-1 / 255, mean=(-1.0,)), "refused"),
    "below zero": Setting(Preprocessing(mean=(-0.5, 0.0, 0.5)), "refused"),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a mean that fits no scale
    SETTINGS["far"] = Setting(Preprocessing(mean=(7.0, 0.0, 3.0), std=(1e-3,)))
