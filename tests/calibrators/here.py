"""A GPU that is none: ONNX Runtime on the CPU, its outputs left there and counted by another library."""

import contextlib
import weakref

import numpy as np
import onnxruntime as ort
import pytest

from calibrators.histograms.counting import OnDevice
from calibrators.host import session as onnx_session
from calibrators.host.cuda_session import Gpu

NEEDS_DLPACK = pytest.mark.skipif(
    not hasattr(ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))._ortvalue, "__dlpack__"),
    reason=f"ONNX Runtime {ort.__version__} hands no tensors to others",
)


class Here(Gpu):
    """All of :class:`calibrators.host.cuda_session.Gpu` but the provider; remembers what it gave out."""

    there, elsewhere = "cpu", ""

    def __init__(self, library=np):
        super().__init__(0, library, contextlib.nullcontext)
        object.__setattr__(self, "given", [])

    def open_session(self, model, **options):
        return onnx_session.open_session(model, **options)

    def run(self, session, names, feed):
        alive = [output for output in self.given if output() is not None]
        assert not alive, "outputs of the batch before still take memory"
        outputs = super().run(session, names, feed)
        assert all(isinstance(output, OnDevice) for output in outputs)
        self.given.extend(map(weakref.ref, outputs))
        return outputs
