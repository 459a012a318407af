"""PPQ's analysis of every layer by itself, for the Python that PPQ is installed in.

python ppq_sensitivity.py MODEL.onnx DATA.npz BATCH THREADS

DATA has ``calibration`` and ``held_out``, images as the model takes them. Prints the seconds of the analysis,
and the layers by the noise that each adds to the outputs, the largest first, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from ppq import QuantizationSettingFactory, TargetPlatform
from ppq.api import quantize_onnx_model
from ppq.quantization.analyse.layerwise import layerwise_error_analyse


def main() -> None:
    """Quantizes by PPQ for TensorRT, and times its analysis."""
    model, data, batch, threads = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    calibration, held_out = (
        list(torch.from_numpy(data[part]).split(batch)) for part in ("calibration", "held_out")
    )
    setting = QuantizationSettingFactory.default_setting()
    graph = quantize_onnx_model(
        onnx_import_file=model,
        calib_dataloader=calibration,
        calib_steps=max(8, len(calibration)),
        input_shape=list(calibration[0].shape),
        setting=setting,
        platform=TargetPlatform.TRT_INT8,
        device="cpu",
        verbose=0,
    )
    start = time.perf_counter()
    found = layerwise_error_analyse(graph, held_out, running_device="cpu", steps=len(held_out), verbose=False)
    seconds = time.perf_counter() - start
    noise = {name: float(value) for name, value in found.items()}
    print(json.dumps({"seconds": seconds, "layers": sorted(noise, key=noise.__getitem__, reverse=True)}))


if __name__ == "__main__":
    main()
