"""Inputs in, ranges out: data sources, host calibration, calibration tables and TensorRT calibrators."""

import os as _os

# ONNX Runtime and Ray send usage data to their makers unless they are told not to, ONNX Runtime before it is
# imported. Every module here and of trtint8 is imported after this one, in workers of Ray too, and processes
# that are started inherit the variables. What the user has set stays.
for _name, _value in (("ORT_DISABLE_TELEMETRY", "1"), ("RAY_USAGE_STATS_ENABLED", "0")):
    _os.environ.setdefault(_name, _value)
