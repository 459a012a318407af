"""One stage, in a process of its own: ``python -m gpu_checks.child MODULE SETTINGS``."""

from __future__ import annotations

import contextlib
import importlib
import sys

from calibrators.cuda import gpu_problem, primary_context
from calibrators.errors import TrtInt8Error
from calibrators.tensorrt import flavor
from calibrators.tensorrt.messages import shared_logger
from gpu_checks.checking import Check, Settings

if __name__ == "__main__":
    module, settings = sys.argv[1:]
    # A builder that lives as long as the stage: TensorRT 8.6 loads its kernels anew, for nine seconds, else.
    kept = None
    if gpu_problem() is None:
        with contextlib.suppress(TrtInt8Error), primary_context(0):
            trt = flavor.load("tensorrt").module
            kept = trt.Builder(shared_logger(trt))
    importlib.import_module(module).run(Check(Settings.from_json(settings)))
    with primary_context(0) if kept is not None else contextlib.nullcontext():
        del kept
