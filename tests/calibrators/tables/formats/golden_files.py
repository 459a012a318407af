"""Golden files of other tools: by TensorRT those of 8600, the others by hand from their specifications."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


ONE_ENDED = pytest.mark.filterwarnings("ignore:.*has one number per tensor:UserWarning")


def golden(name):
    return (GOLDEN / name).read_bytes()
