"""What is measured on the reference too."""

from trtint8.validation.measurand import Measurand
from trtint8.validation.meters import HitMeter


def test_what_is_known_of_the_reference_is_not_measured():
    assert not Measurand("agreement", True, HitMeter, len, perfect=1.0).on_reference
    assert Measurand("of a user", True, HitMeter, len).on_reference
