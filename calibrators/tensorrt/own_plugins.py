"""The plugins that come with TensorRT, such as EfficientNMS_TRT."""

from __future__ import annotations

from typing import Any

from calibrators.tensorrt.messages import shared_logger


def register_own_plugins(trt: Any) -> None:
    """Makes TensorRT's own plugins known, which its parser and engines look for by name.

    Args:
        trt: The TensorRT module.
    """
    trt.init_libnvinfer_plugins(shared_logger(trt), "")
