"""What is refused of ONNX's own tests, and why; everything else works."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.onnx_nodes.cases import Verdict


@dataclass(frozen=True)
class Refusal:
    """Cases that may be refused.

    Attributes:
        stages: The steps at which they are.
        words: A pattern of what the error says.
        reason: Why that is right, or whose limit it is.
        names: Patterns of the names of the cases.
    """

    stages: tuple[str, ...]
    words: str
    reason: str
    names: tuple[str, ...] = ("*",)

    def explains(self, name: str, verdict: Verdict) -> bool:
        """True if a case may end in a verdict.

        Args:
            name: The case's name.
            verdict: What became of it.
        """
        return (
            verdict.stage in self.stages
            and not verdict.error.startswith("fault")
            and re.search(self.words, verdict.words) is not None
            and any(fnmatch(name, pattern) for pattern in self.names)
        )


_LOAD, _CALIBRATE, _LATER = ("load",), ("calibrate",), ("quantize", "float16")

REFUSALS = (
    Refusal(_LOAD, r"is text|holds text", "TensorRT has no text"),
    Refusal(_LOAD, r"is (a sequence|optional|a map), which", "TensorRT has tensors only"),
    Refusal(
        _CALIBRATE,
        r"is a (list|NoneType)|optional|sequence",
        "TensorRT has tensors only",
        (
            "test_sequence*",
            "test_optional*",
            "test_loop*_seq*",
            "test_identity_*",
            "test_*split_to_sequence*",
        ),
    ),
    Refusal(
        _CALIBRATE,
        r"operator|implementation for|is not a registered function|kernel",
        "ONNX Runtime does not have the operator, or not for these types",
    ),
    Refusal(
        _CALIBRATE,
        r"Batchwise recurrent operations",
        "ONNX Runtime has no such layout",
        ("test_*_batchwise",),
    ),
    Refusal(
        (*_CALIBRATE, *_LATER),
        r"its data is \w+; convert|Creation of OrtValues|No corresponding Numpy type",
        "NumPy and ONNX Runtime exchange no arrays of these types",
        tuple(
            f"*{kind}*"
            for kind in (
                "bfloat16",
                "bf16",
                "BFLOAT16",
                "FLOAT8",
                "FLOAT4",
                "INT4",
                "int4",
                "INT2",
                "int2",
                "e4m3",
                "e5m2",
                "float4",
                "e8m0",
            )
        ),
    ),
    Refusal(
        _CALIBRATE,
        r"NaN or infinite",
        "such values are no samples: a range of them would be none",
        (
            "test_mod_*",
            "test_cast*",
            "test_is*",
            "test_ai_onnx_ml_*",
            "test_clip*",
            "*neginf*",
            "test_max*",
            "test_min*",
            "*infinite*",
        ),
    ),
    Refusal(
        _CALIBRATE,
        r"held NaN during calibration",
        "a mask that hides a whole row makes the softmax NaN before the network mends that",
        ("test_attention*", "test_flexattention*"),
    ),
    Refusal(_CALIBRATE, r"is empty \(shape", "an input without values is no sample"),
    Refusal(_CALIBRATE, r"holds Q/DQ pairs already", "it is quantized", ("test_*quantizelinear*",)),
    Refusal(
        _CALIBRATE,
        r"the model fails on a batch .* node '[^']*' \(\w+\)",
        "ONNX Runtime refuses the values",
        ("test_reduce_max_empty_set_bool", "test_attention*", "test_*integer*"),
    ),
    Refusal(
        _LATER,
        r"QuantizeLinear\(\d+\)",
        "this ONNX Runtime does not have the newest opset",
    ),
    Refusal(
        ("float16",),
        r"MLFloat16|BitCast|FP16|float16",
        "ONNX Runtime's kernels on a CPU do not have the operator in FP16",
        ("test_scatter*", "test_bitcast*"),
    ),
)


def explained(name: str, verdict: Verdict) -> bool:
    """True if a case worked, or was refused for a reason of the table.

    Args:
        name: The case's name.
        verdict: What became of it.
    """
    return verdict.stage == "all" or any(refusal.explains(name, verdict) for refusal in REFUSALS)
