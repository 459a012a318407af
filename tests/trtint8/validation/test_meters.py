"""Meters of batches, put together in any grouping that keeps the order of the data."""

import os
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.models.outputs.joined import OutputPart
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.class_scores import mean_overlap, share
from trtint8.validation.fidelity import FidelityMeter
from trtint8.validation.meters import HitMeter, Measurand, SumsMeter, mean
from trtint8.validation.metrics import MeanAveragePrecision
from trtint8.validation.user_metrics import check_mergeable, user_measurand

BATCHES = 7
RANDOM = np.random.default_rng(8)
#: As floats of very different magnitudes, whose sums depend on the order of the additions.
WANTED = [RANDOM.standard_normal((rows, 5)) * 10.0**rows for rows in (3, 1, 4, 1, 5, 2, 6)]
GOT = [array + RANDOM.standard_normal(array.shape) for array in WANTED]


def fidelity(number):
    meter = FidelityMeter([OutputPart("y", "y"), OutputPart("z", "z")], ["token_cosine"])
    sides = [{"y": side[number], "z": side[number][:, :2] ** 2} for side in (GOT, WANTED)]
    meter.add(*sides, len(GOT[number]))
    return meter


def hits(number):
    return HitMeter([GOT[number][:, 0] > WANTED[number][:, 0]])


def values(number):
    rows = GOT[number][:, 0] if number % 2 else GOT[number][:1, 0]
    weights = np.full(rows.size, len(GOT[number]) / rows.size)
    return SumsMeter(mean, [np.stack([weights * rows, weights], axis=1)], len(GOT[number]))


def boxes(number):
    metric = MeanAveragePrecision(_decode, _truth()).fresh()
    metric.update({}, {"boxes": GOT[number]}, None)
    return metric


def _decode(outputs):
    return [([[0, 0, 10, abs(row[0]) % 10]], [0.5 + row[1] / 1e8], [0]) for row in outputs["boxes"]]


def _truth():
    return [([[0, 0, 10, 7]], [0]) for array in WANTED for _ in array]


EMPTY = {
    fidelity: lambda: FidelityMeter([OutputPart("y", "y"), OutputPart("z", "z")], ["token_cosine"]),
    hits: HitMeter,
    values: lambda: SumsMeter(mean),
    boxes: lambda: MeanAveragePrecision(_decode, _truth()),
}


def together(start, meters):
    for meter in meters:
        start.merge(pickle.loads(pickle.dumps(meter)))
    return start


@pytest.mark.parametrize("kind", EMPTY, ids=lambda kind: kind.__name__)
@given(cuts=st.sets(st.integers(1, BATCHES - 1)))
def test_any_grouping_gives_the_same_bits(kind, cuts):
    if kind is boxes:
        pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    expected = together(EMPTY[kind](), map(kind, range(BATCHES)))
    edges = [0, *sorted(cuts), BATCHES]
    groups = [together(EMPTY[kind](), map(kind, range(start, stop))) for start, stop in pairwise(edges)]
    found = together(EMPTY[kind](), groups)
    assert found.value() == expected.value()
    if kind in (hits, values):
        assert found.against(expected, "itself") == expected.against(found, "itself")


def test_what_workers_send_home_is_without_functions_and_truth():
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    one = user_measurand(lambda feeds, outputs: outputs["y"].mean())
    part = one.measure(Batch({}, {"y": np.ones((2, 3))}, {}, None, 2))
    assert pickle.loads(pickle.dumps(part)).value() == 1.0
    metric = MeanAveragePrecision(_decode, _truth())
    assert len(metric._truth) == 22 and pickle.loads(pickle.dumps(metric))._truth == ()
    check_mergeable(["top1", "agreement", "sqnr", _decode, metric])


@pytest.mark.slow
def test_sums_do_not_depend_on_the_threads_of_blas():
    """Unlike ``numpy.vdot``, where there are several processors."""
    code = (
        "import numpy as np; from trtint8.validation.fidelity import inner_product;"
        "a = np.random.default_rng(0).standard_normal((1000, 3001)); print(inner_product(a, a[::-1]).hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 4)
    }
    assert len(found) == 1


def test_sums_over_batches():
    meter = SumsMeter(share)
    meter.merge(SumsMeter(share, [np.array([[1.0, 4.0], [2.0, 4.0]])], 2))
    meter.merge(SumsMeter(share, [np.array([[3.0, 8.0]])], 1))
    assert meter.value() == 6 / 16
    found = meter.against(SumsMeter(share, [np.array([[2.0, 4.0], [2.0, 4.0], [3.0, 8.0]])], 3), "B")
    assert (found.difference, found.pairs, found.unit) == (-1 / 16, 3, "samples")
    meter.merge(SumsMeter(share, [np.array([[2.0, 4.0]])], 2))  # a batch of two as a whole
    assert meter.against(meter, "B").unit == "batches"
    # Later batches may have more classes.
    meter = SumsMeter(mean_overlap, [np.array([[1.0, 2.0]])], 1)
    meter.merge(SumsMeter(mean_overlap, [np.array([[1.0, 1.0, 3.0, 4.0]])], 1))
    assert meter.value() == pytest.approx((2 / 3 + 3 / 4) / 2)


def test_what_is_known_of_the_reference_is_not_measured():
    assert not Measurand("agreement", True, HitMeter, len, perfect=1.0).on_reference
    own = Measurand("of a user", True, HitMeter, len)
    assert own.on_reference
    own.check_labels(Batch({}, {}, {}, np.array([-1]), 1), BatchForm({}, None, 1))  # taken as they are
