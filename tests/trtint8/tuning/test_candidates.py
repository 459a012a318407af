"""What INT8 makes of a candidate, scorerd on samples."""

import dataclasses
from functools import partial

import numpy as np
import pytest

import trtint8
from calibrators.data.batches import Batches
from calibrators.data.opening import open_batches
from calibrators.data.samples import SampleSizes
from tests.trtint8.detectors import PICKED_FROM, images, ranking_detector
from tests.trtint8.onnx_models import Shaped
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.quantization.config import arithmetic_named
from trtint8.tuning import candidates
from trtint8.tuning.candidates import Candidate, Scorer, cost_shares, float_cost


@pytest.fixture(scope="module")
def candidate(table):
    return Candidate(prepare(load_model(DEMO_MODEL)), table)


@pytest.fixture(scope="module")
def batches(candidate, split):
    data = {"images": split.heldout_images[:96], "labels": split.heldout_labels[:96]}
    return open_batches(data, candidate.model.inputs, batch_size=32)


def test_layers_in_float_get_no_pairs(candidate):
    names = candidate.placement.quantized_nodes
    without = dataclasses.replace(candidate, keep_float=names[:2])
    assert without.placement.quantized_nodes == names[2:]
    pairs = [
        sum(node.op_type == "QuantizeLinear" for node in one.quantized().graph)
        for one in (candidate, without)
    ]
    assert pairs[0] > pairs[1] > 0


def test_a_score_and_its_comparison_agree(candidate, batches):
    scorer = Scorer(candidate.model, batches, "top1")
    score = scorer.score(candidate)
    accuracy = scorer.compare(candidate.quantized(), ["top1", "sqnr"])
    assert accuracy.samples == 96
    difference = accuracy.reference_top1.value - accuracy.top1.value
    assert score.drop == pytest.approx(100 * difference)
    assert score.sqnr_db == accuracy.outputs[0].sqnr_db > 20


def test_a_level_has_a_margin_and_a_share_has_none(candidate, batches):
    def margin(batches, metric):
        scorer = Scorer(candidate.model, batches, metric)
        assert scorer.score(candidate).margin == 0  # until it is asked for
        return scorer.margin()

    assert margin(batches, "top1") == 0
    images = np.concatenate([feed["images"] for feed in batches])
    smaller = open_batches({"images": images}, candidate.model.inputs, batch_size=12)
    levels = []
    for part in range(8):  # as many batches
        feeds = [feed for number, feed in enumerate(smaller) if number != part]
        others = Scorer(candidate.model, Batches.of_feeds(partial(iter, feeds)), "sqnr")
        levels.append(others.score(candidate).sqnr_db)
    # Student's t for seven degrees of freedom; the jackknife's variance of eight parts.
    assert margin(smaller, "sqnr") == pytest.approx(2.365 * np.sqrt(7 * np.var(levels)), rel=0.01)
    assert margin(batches, "sqnr") == 0  # three say too little


def test_agreement_is_a_share_of_other_classes(candidate, batches):
    scorer = Scorer(candidate.model, batches, "agreement")
    agreement = scorer.compare(candidate.quantized(), ["agreement"]).agreement
    assert scorer.score(candidate).drop == pytest.approx(100 * (1 - agreement.value))


def test_the_float_model_runs_once(candidate, batches, monkeypatch):
    runs = []

    class Counted(ModelSession):
        def run(self, feed):
            runs.append(self.is_quantized)
            return super().run(feed)

    def opened(graph_model, further, rows):
        session = Counted(open_graph_model(graph_model, further, rows=rows).session)
        is_quantized = any(node.op_type == "QuantizeLinear" for node in graph_model.graph)
        object.__setattr__(session, "is_quantized", is_quantized)
        return session

    monkeypatch.setattr(candidates, "open_graph_model", opened)
    scorer = Scorer(candidate.model, batches, "top1")
    first, second = scorer.score(candidate), scorer.score(candidate)
    assert first == second
    # Three batches, once for the float model.
    assert runs.count(False) == 3 and runs.count(True) == 6


def test_what_samples_show_is_looked_for_with_the_first_candidate(candidate, batches):
    same = {
        name: np.zeros((16, *array.shape[1:]), array.dtype) for name, array in next(iter(batches)).items()
    }
    scorer = Scorer(candidate.model, open_batches(same, candidate.model.inputs, batch_size=8), "agreement")
    with pytest.warns(UserWarning, match="same outputs for all 16 samples"):
        first = scorer.score(candidate)
    assert scorer.score(candidate) == first  # and nothing is said again


def test_outputs_that_are_kept_do_not_lie_in_the_memory_of_a_session(candidate, batches):
    scorer = Scorer(candidate.model, batches, "top1")
    scorer.score(candidate)
    assert [array.base for outputs in scorer._outputs for array in outputs] == [None] * 3


def test_a_metric_of_ones_own_is_in_its_own_unit(candidate, batches):
    def spread(_feeds, outputs):
        return float(np.ptp(outputs["logits"]))

    scorer = Scorer(candidate.model, batches, spread)
    measure = scorer.compare(candidate.quantized(), [spread]).measures[0]
    assert scorer.score(candidate).drop == pytest.approx(measure.reference - measure.value)


def test_detections_are_scored_by_what_they_are_picked_from():
    model = prepare(load_model(ranking_detector()))
    table = trtint8.calibrate(ranking_detector(), images(8), progress=False)
    scorer = Scorer(model, open_batches(images(6, seed=1), model.inputs, batch_size=3), "detections")
    candidate = Candidate(model, table)
    score = scorer.score(candidate)
    assert scorer.score(candidate) == score, "with the float model's outputs that were kept"
    accuracy = scorer.compare(candidate.quantized(), ["detections", "sqnr"])
    assert [output.name for output in accuracy.outputs] == list(PICKED_FROM)
    assert score.sqnr_db == min(output.sqnr_db for output in accuracy.outputs) > 30
    assert score.drop == pytest.approx(100 * (1 - accuracy.measures[0].value))


def test_shares_of_the_arithmetic_by_hand():
    g = Shaped(quantized=False)
    conv = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "conv", pads=[1] * 4)  # 8*6*6 outputs of 4*9: 10,368
    depthwise = g.op("Conv", [conv, g.weights(8, 1, 3, 3)], "deep", group=8)  # 8*4*4 outputs of 9: 1,152
    pooled = g.op("GlobalAveragePool", [depthwise], "pool")  # 8 outputs
    flat = g.op("Flatten", [pooled], "flat")  # 8
    model = g.model({"x": ["N", 4, 6, 6]}, g.op("Gemm", [flat, g.weights(8, 10)], "head"))  # 80
    graph_model = prepare(load_model(model)).graph_model
    total = 10_368 + 1_152 + 8 + 8 + 80
    assert float_cost(graph_model, ["conv"], {}) == pytest.approx(10_368 / total)
    assert float_cost(graph_model, ["deep", "head"], {}) == pytest.approx(1_232 / total)
    assert float_cost(graph_model, [], {}) == 0
    assert float_cost(graph_model, [node.name for node in graph_model.graph], {}) == pytest.approx(1)


def test_a_transposed_convolution():
    g = Shaped(quantized=False)
    up = g.op("ConvTranspose", ["x", g.weights(4, 2, 2, 2)], "up", strides=[2, 2])  # 4*5*5 inputs of 2*4: 800
    model = g.model({"x": ["N", 4, 5, 5]}, g.op("Relu", [up], "relu"))  # 2*10*10: 200
    assert float_cost(prepare(load_model(model)).graph_model, ["up"], {}) == pytest.approx(0.8)


def test_sizes_that_are_open_are_those_of_the_samples():
    shares = []
    for size in (6, "size"):
        g = Shaped(quantized=False)
        conv = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "conv", pads=[1] * 4)
        pooled = g.op("GlobalAveragePool", [conv], "pool")
        flat = g.op("Flatten", [pooled], "flat")
        model = g.model({"x": ["N", 4, size, size]}, g.op("Gemm", [flat, g.weights(8, 10)], "head"))
        sizes = {"x": SampleSizes((4, 3, 5), (4, 6, 6))}
        shares.append(cost_shares(prepare(load_model(model)).graph_model, sizes))
    assert shares[0] == shares[1]
    assert shares[1]["conv"] == pytest.approx(10_368 / (10_368 + 8 + 8 + 80))


def test_recurrent_layers_multiply_at_every_step():
    g = Shaped(quantized=False)
    lstm = g.op("LSTM", ["x", g.weights(1, 64, 8), g.weights(1, 64, 16)], "lstm", hidden_size=16)
    model = g.model({"x": [10, 1, 8]}, g.op("MatMul", [lstm, g.weights(16, 4)], "head"))
    # 10 steps of 64 (8 + 16): 15,360; 10 outputs of 16*4: 640.
    assert float_cost(prepare(load_model(model)).graph_model, ["head"], {}) == pytest.approx(0.04)


def test_a_product_whose_first_operand_is_transposed():
    g = Shaped(quantized=False)
    gemm = g.op("Gemm", ["x", g.weights(9, 4)], "gemm", transA=1)  # 5*4 outputs of 9: 180
    model = g.model({"x": [9, 5]}, g.op("Relu", [gemm], "relu"))  # 20
    assert float_cost(prepare(load_model(model)).graph_model, ["gemm"], {}) == pytest.approx(0.9)


def test_a_candidate_is_judged_in_the_integers_of_a_backend(candidate, batches):
    """Layers in float stay so there."""
    scorer = Scorer(candidate.model, batches, "sqnr")
    for keep in ((), ("/stem/conv/Conv",)):
        runs = scorer.in_integers(dataclasses.replace(candidate, keep_float=keep), arithmetic_named("ncnn"))
        found = scorer.compare(runs, ["sqnr"])
        assert len(found.in_integers.largest_sums) == 9 - len(keep)
        assert found.outputs[0].sqnr_db > 20
