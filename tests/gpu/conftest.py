"""Tests on a GPU, skipped with the reason where something is missing.

CIFAR-10 tests want the environment variable TRTINT8_CIFAR10 to name a folder with ``resnet20.onnx`` (input
``input``, N x 3 x 32 x 32), ``calibration.npz`` and ``heldout.npz`` (``images`` as uint8, ``labels``).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibrators.cuda import gpu_problem, open_device, primary_context
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import TrtInt8Error
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.messages import shared_logger
from trtint8 import BuildOptions

if TYPE_CHECKING:
    from calibrators.data.inputs import InputSpec

# The packed libraries of TensorRT 8.6 have stubs in the place of cuBLAS and cuDNN. At its usual optimization
# level that TensorRT takes more than half a minute for every engine. Where FP16 is allowed, it finds FP16
# faster than INT8 for every layer of networks as small as these.
OPTIONS = BuildOptions(
    tactic_sources=("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
    fp16=False,
    optimization_level=1,
    timing_cache=Path(tempfile.gettempdir()) / f"trtint8-{os.getpid()}.timings",
)
NORMALIZED = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@pytest.fixture(scope="session")
def device():
    problem = gpu_problem()
    if problem:
        pytest.skip(problem)
    try:
        return open_device()
    except TrtInt8Error as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", autouse=True)
def kernels():
    """A builder that lives as long as the tests, so that TensorRT 8.6 loads its kernels once."""
    with contextlib.ExitStack() as held:
        if gpu_problem() is None:
            with contextlib.suppress(TrtInt8Error):
                held.enter_context(kept_builder(flavors.load("tensorrt")))
        yield
    for left in (OPTIONS.timing_cache, Path(f"{OPTIONS.timing_cache}.lock")):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def kept_builder(found):
    with primary_context(0):
        builder = found.module.Builder(shared_logger(found.module))
    yield
    with primary_context(0):
        del builder


@pytest.fixture(scope="session", params=["tensorrt", "rtx"])
def flavor(request, device):
    """Each TensorRT that is installed."""
    try:
        return flavors.load(request.param)
    except TrtInt8Error as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def implicit_flavor(device):
    try:
        found = flavors.load("tensorrt")
    except TrtInt8Error as reason:
        pytest.skip(str(reason))
    if not found.implicit_int8:
        pytest.skip(f"{found} has no calibrators")
    return found


@dataclass(frozen=True)
class Cifar:
    """Real data, and what FP32 makes of it in ONNX Runtime."""

    model: Path
    calibration: Path
    inputs: tuple[InputSpec, ...]
    images: np.ndarray
    labels: np.ndarray
    logits: np.ndarray

    def top1(self, logits):
        return 100 * float((logits.argmax(axis=1) == self.labels).mean())


@pytest.fixture(scope="session")
def cifar(device):
    folder = Path(os.environ.get("TRTINT8_CIFAR10", "missing"))
    if not (folder / "resnet20.onnx").is_file():
        pytest.skip("the environment variable TRTINT8_CIFAR10 names no folder with resnet20.onnx")
    # Here, so that the tests of the device alone need no ONNX.
    from calibrators.data.opening import open_batches
    from trtint8.models.model import load_model
    from trtint8.models.session import open_graph_model

    model = folder / "resnet20.onnx"
    loaded = load_model(model)
    inputs = loaded.inputs
    batches = open_batches(folder / "heldout.npz", inputs, batch_size=500, preprocessing=NORMALIZED)
    images = np.concatenate([feed["input"] for feed in batches])
    run = open_graph_model(loaded.graph_model).run
    logits = np.concatenate([run({"input": part})[0] for part in np.split(images, 4)])
    return Cifar(model, folder / "calibration.npz", inputs, images, batches.labels, logits)
