"""Nodes that the parser refuses are named before anything else, with the tensors before them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import BuildError
from tests.trtint8.refused_models import NODES, refused_model
from trtint8.builder.options import BuildOptions
from trtint8.builder.refusals import refuse_unsupported
from trtint8.models.model import load_model, prepare


def check(model, flavor):
    refuse_unsupported(prepare(load_model(model)), flavor, BuildOptions())


def test_a_model_that_the_parser_takes(rtx):
    check(refused_model(NODES[:2] + NODES[4:6] + NODES[8:], ["kept"]), rtx)


def test_all_refused_nodes_and_the_cut_before_them(rtx):
    # The parser names one NonZero at a time.
    with pytest.raises(BuildError) as caught:
        check(refused_model(), rtx)
    assert str(caught.value).startswith(
        f"{rtx} cannot take node 'where_node' (NonZero) of 'model': NonZero plugin creator"
    )
    assert str(caught.value).endswith(
        "; nor does it take 'values_node' (Unique), 'others_node' (NonZero); what comes before can be built "
        "with the model cut at 'r' and 's' and 'kept' (--cut-at), and the rest run in ONNX Runtime"
    )


def test_a_node_that_reads_inputs_alone_leaves_no_cut(rtx):
    nodes = [*NODES[:2], ("NonZero", ["x"], "of_input", {}), *NODES[4:6], *NODES[8:]]
    with pytest.raises(BuildError) as caught:
        check(refused_model(nodes, ["of_input", "kept"]), rtx)
    assert "'of_input_node' (NonZero)" in str(caught.value)
    assert "cut" not in str(caught.value)
    # A cut before the other node leaves this one where it is.
    nodes = [*NODES[:2], *NODES[4:6], *NODES[7:], nodes[2]]
    with pytest.raises(BuildError, match=r"nor does it take 'of_input_node' \(NonZero\)$"):
        check(refused_model(nodes, ["of_input", "kept", "others"]), rtx)


def test_nothing_is_calibrated_before(rtx, tmp_path):
    onnx.save(refused_model(), tmp_path / "m.onnx")
    taken = []

    def samples():
        taken.append(1)
        yield np.zeros((2, 3, 8, 8), np.float32)

    with pytest.raises(BuildError, match="where_node"):
        trtint8.build_int8_engine(
            tmp_path / "m.onnx", samples, tmp_path / "m.engine", target="rtx", progress=False
        )
    assert not taken
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
