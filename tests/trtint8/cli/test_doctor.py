"""What the verb says of this machine."""

import pytest

import trtint8
from calibrators.cuda import gpu_problem
from calibrators.tensorrt import flavor


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_doctor_says_what_each_route_needs(as_json):
    found = as_json("doctor")
    assert found["build, explicit route"].startswith("works with TensorRT for RTX")
    assert found["build, implicit route"].startswith("needs ")
    assert "an NVIDIA GPU" in found["build, implicit route"]
    assert found["run, bench, validate on the GPU"] == "needs an NVIDIA GPU"


def test_what_works_is_true_or_false(as_json):
    printed = as_json("doctor")
    found = trtint8.doctor()
    assert printed == found.to_json()
    assert {what: words for what, words in found if what != "found"}.items() <= printed.items()
    assert printed["found"] == [words for what, words in found if what == "found"]
    works = printed["works"]
    assert {type(value) for value in works.values()} == {bool} and works.keys() <= printed.keys()
    assert works["GPU"] == (gpu_problem() is None) and works["calibrate, quantize, validate"]
    routes = ("build, explicit route", "build, implicit route", "run, bench, validate on the GPU")
    assert all(works[name] == printed[name].startswith("works") for name in routes)


def test_every_tensorrt_is_named(monkeypatch):
    both = [flavor.Flavor("rtx", "1.5"), flavor.Flavor("tensorrt", "10.16")]
    monkeypatch.setattr(flavor, "installed", lambda: both)
    named = trtint8.doctor().to_json()["found"]
    assert len(named) == 2 and "RTX 1.5" in named[0] and "10.16" in named[1]
