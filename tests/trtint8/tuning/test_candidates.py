"""What INT8 makes of a candidate, scorerd on samples."""

import dataclasses

import numpy as np
import pytest

import trtint8
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import open_batches, open_data
from calibrators.data.samples import SampleSizes
from tests.trtint8.detectors import PICKED_FROM, images, ranking_detector
from tests.trtint8.simulation.opened import parsed
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


def test_scores_have_intervals_however_samples_lie_in_batches(candidate, batches):
    images = np.concatenate([feed["images"] for feed in batches])

    def ends(size, metric="sqnr", **more):
        data = open_data({"images": images}, candidate.model.inputs, DataOptions(size, **more))
        score = Scorer(candidate.model, data, metric).score(candidate)
        assert score.interval[0] < score.value < score.interval[1]
        return score.interval

    assert ends(32) == pytest.approx(ends(1), abs=1e-3)
    assert ends(32, groups=1) == ends(32)
    assert ends(32, groups=np.arange(96)[::-1]) == ends(32)
    low, high = ends(32, groups=np.arange(96) % 12)
    assert high - low < 4
    share = Scorer(candidate.model, batches, "top1").score(candidate)
    assert share.interval[1] <= 100 and share.drop_interval[0] <= share.drop <= share.drop_interval[1]
    assert Scorer(candidate.model, batches, "max_error").score(candidate).interval is None


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


#: 8*6*6 outputs of 4*9; and what the head takes.
CONV = "conv = Conv <pads = [1, 1, 1, 1]> (x, v) "
HEAD = "flat = Flatten (pool) head = Gemm (flat, w) where float[8, 4, 3, 3] v, float[8, 10] w"


def graph_of(inputs, text, output):
    return prepare(load_model(parsed(inputs, text, f"float[] {output}"))).graph_model


@pytest.mark.parametrize(
    ("model", "costs"),
    [
        (
            graph_of(
                "float[N, 4, 6, 6] x",
                f"{CONV} deep = Conv <group = 8> (conv, u) pool = GlobalAveragePool (deep) {HEAD}, "
                "float[8, 1, 3, 3] u",
                "head",
            ),
            # The depthwise one has 8*4*4 outputs of 9, what is pooled and flattened 8 each.
            {"conv": 10_368, "deep": 1_152, "pool": 8, "flat": 8, "head": 80},
        ),
        # 4*5*5 inputs of 2*4, and 2*10*10.
        (
            graph_of(
                "float[N, 4, 5, 5] x",
                "up = ConvTranspose <strides = [2, 2]> (x, w) y = Relu (up) where float[4, 2, 2, 2] w",
                "y",
            ),
            {"up": 800, "y": 200},
        ),
        # 10 steps of 64 (8 + 16), and 10 outputs of 16*4.
        (
            graph_of(
                "float[10, 1, 8] x",
                "lstm = LSTM <hidden_size = 16> (x, v, r) y = MatMul (lstm, w) "
                "where float[1, 64, 8] v, float[1, 64, 16] r, float[16, 4] w",
                "y",
            ),
            {"lstm": 15_360, "y": 640},
        ),
        # A first operand that is transposed: 5*4 outputs of 9, and 20.
        (
            graph_of(
                "float[9, 5] x", "gemm = Gemm <transA = 1> (x, w) y = Relu (gemm) where float[9, 4] w", "y"
            ),
            {"gemm": 180, "y": 20},
        ),
    ],
)
def test_shares_of_the_arithmetic_by_hand(model, costs):
    total = sum(costs.values())
    shares = {name: cost / total for name, cost in costs.items()}
    assert cost_shares(model, {}) == pytest.approx(shares)
    first, *_, last = costs
    assert float_cost(model, [first, last], {}) == pytest.approx(shares[first] + shares[last])
    assert float_cost(model, [], {}) == 0
    assert float_cost(model, list(costs), {}) == pytest.approx(1)


def test_sizes_that_are_open_are_those_of_the_samples():
    shares = [
        cost_shares(
            graph_of(
                f"float[N, 4, {size}, {size}] x", f"{CONV} pool = GlobalAveragePool (conv) {HEAD}", "head"
            ),
            {"x": SampleSizes((4, 3, 5), (4, 6, 6))},
        )
        for size in (6, "size")
    ]
    assert shares[0] == shares[1]
    assert shares[1]["conv"] == pytest.approx(10_368 / (10_368 + 8 + 8 + 80))


def test_a_candidate_is_judged_in_the_integers_of_a_backend(candidate, batches):
    """Layers in float stay so there."""
    scorer = Scorer(candidate.model, batches, "sqnr")
    for keep in ((), ("/stem/conv/Conv",)):
        runs = scorer.in_integers(dataclasses.replace(candidate, keep_float=keep), arithmetic_named("ncnn"))
        found = scorer.compare(runs, ["sqnr"])
        assert len(found.in_integers.largest_sums) == 9 - len(keep)
        assert found.outputs[0].sqnr_db > 20
