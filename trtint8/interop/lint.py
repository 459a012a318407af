"""Quantized models made elsewhere: what TensorRT would refuse or run in float."""

from __future__ import annotations

from calibrators.errors import ModelError
from trtint8.interop.integer_models import expand, refuse_float
from trtint8.interop.lint_rules import Finding, rule_findings
from trtint8.interop.mend import mend
from trtint8.models.model import Model


def lint(model: Model) -> list[Finding]:
    """Checks a model against TensorRT's rules.

    A Concat of different scales is a finding. A residual Add of different scales is none: TensorRT for RTX
    builds the same layers whether the two branches of an Add share a scale or not.

    Args:
        model: A model that any tool quantized, in any of ONNX's forms: Q/DQ pairs, operators that read and
            write integers with scales (QLinearConv and the like), or integer operators with scales computed
            at run time.

    Returns:
        The findings, in graph order; empty where there is nothing to mend. Among them is what
        :func:`trtint8.interop.mend.mend` does not keep, and why it cannot mend the model.

    Raises:
        ModelError: The model is a float model.
    """
    expanded = expand(model.graph_model, model.name)
    refuse_float(expanded.original, model.name)
    findings = list(rule_findings(expanded))
    if all(finding.mendable for finding in findings):
        try:
            findings += mend(model).changes
        except ModelError as error:
            findings.append(Finding("unmendable", "", str(error), mendable=False))
    return findings
