"""What the verb says of this machine."""

import json

import pytest

from calibrators.cuda import gpu_problem
from trtint8.cli.main import main


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_doctor_says_what_each_route_needs(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["build, explicit route"].startswith("works with TensorRT for RTX")
    assert found["build, implicit route"].startswith("needs ")
    assert "an NVIDIA GPU" in found["build, implicit route"]
    assert found["run, bench, validate on the GPU"] == "needs an NVIDIA GPU"
