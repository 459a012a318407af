import numpy as np
import pytest

pytest.importorskip("polygraphy", reason="Polygraphy is not installed (pip install 'trtint8[polygraphy]')")
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator, CompareFunc

from calibrators.errors import EngineError
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import TensorSpec
from trtint8.models.model import load_model
from trtint8.models.session import open_graph_model
from trtint8.runtime.polygraphy_runner import TrtInt8Runner


class OnnxEngine:
    """The part of our own Engine that the runner uses, with ONNX Runtime behind it."""

    inputs = (TensorSpec("images", "float32", (None, 1, 8, 8)),)

    def __init__(self):
        self.closed = False
        self._session = open_graph_model(load_model(DEMO_MODEL).graph_model)

    def infer(self, feeds):
        return dict(zip(self._session.output_names, self._session.run(dict(feeds)), strict=True))

    def close(self):
        self.closed = True


@pytest.fixture
def feeds():
    return [{"images": np.random.default_rng(0).random((4, 1, 8, 8), np.float32)}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_polygraphy_compares_it_with_onnx_runtime(feeds):
    engine = OnnxEngine()
    runners = [OnnxrtRunner(SessionFromOnnx(str(DEMO_MODEL))), TrtInt8Runner(engine, name="ours")]
    assert isinstance(runners[1], BaseRunner)
    results = Comparator.run(runners, data_loader=feeds)
    assert list(results.keys())[1] == "ours"
    assert results["ours"][0].runtime > 0
    compared = Comparator.compare_accuracy(results, compare_func=CompareFunc.simple(atol=1e-5))
    assert bool(compared)
    assert not engine.closed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_knows_its_inputs():
    with TrtInt8Runner(OnnxEngine()) as runner:
        metadata = runner.get_input_metadata(use_numpy_dtypes=False)
    assert list(metadata) == ["images"]
    assert metadata["images"].shape == [None, 1, 8, 8]


def test_what_a_loader_returns_is_closed():
    made = []

    def loader():
        made.append(OnnxEngine())
        return made[0]

    with TrtInt8Runner(loader):
        assert not made[0].closed
    assert made[0].closed


def test_a_path_is_loaded(tmp_path):
    (tmp_path / "x.engine").write_bytes(b"no plan")
    with pytest.raises(EngineError, match="is not a TensorRT engine"):
        TrtInt8Runner(tmp_path / "x.engine").activate()
