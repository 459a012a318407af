"""What is measured on the reference too, and which labels are taken."""

import numpy as np

from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.measurand import Measurand
from trtint8.validation.meters import HitMeter


def test_what_is_known_of_the_reference_is_not_measured():
    assert not Measurand("agreement", True, HitMeter, len, perfect=1.0).on_reference
    assert Measurand("of a user", True, HitMeter, len).on_reference


def test_labels_are_taken_as_they_are_where_a_metric_does_not_say_otherwise():
    batch = Batch({}, {}, {}, np.array([-1]), 1)
    Measurand("of a user", True, HitMeter, len).check_labels(batch, BatchForm({}, None, 1))
