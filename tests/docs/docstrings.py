"""The examples in docstrings, the files that they read, and how they are run."""

import contextlib
import doctest
import io
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.data.opening import open_batches
from calibrators.display.picture import Picture
from tests.docs.code_blocks import Block, fits
from tests.trtint8.models.recurrent_models import recurrent_model, sounds
from tests.trtint8.validation.small_models import rows_as_they_are
from trtint8.data import DEMO_MODEL, load_digits_split

ROOT = Path(__file__).parents[2]

#: What runs on a GPU alone: tests/gpu has it run there.
ON_GPU = ("Engine", "bench", "refit", "run_engine", "set_dynamic_ranges")


def examples():
    """The examples of each public name, those of its methods apart."""
    objects = {name: getattr(trtint8, name) for name in trtint8.__all__ if name != "__version__"}
    objects |= {"Picture": Picture, "open_batches": open_batches}
    for name, value in objects.items():
        found = doctest.DocTestFinder(exclude_empty=True).find(value, name, module=False, globs={})
        yield from (test for test in found if test.examples)


EXAMPLES = {test.name: test for test in examples()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder with what examples read."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
    return folder


def write_files():
    """Writes what examples read into the current folder."""
    digits = load_digits_split()
    shutil.copy(DEMO_MODEL, "model.onnx")
    np.savez("calibration.npz", images=digits.calibration_images[:128])
    np.savez("heldout.npz", images=digits.heldout_images, labels=digits.heldout_labels)
    table = trtint8.calibrate("model.onnx", "calibration.npz", output="table.json")
    trtint8.write_quantized("model.onnx", table, "int8.onnx")
    trtint8.calibrate("model.onnx", "calibration.npz", spend=0, output="model.cache")
    with contextlib.suppress(trtint8.UnsupportedError):  # there is no TensorRT
        for name in ("entropy/model.engine", "mse/model.engine", "model.engine"):
            Path(name).parent.mkdir(exist_ok=True)
            ranges = table.with_method(Path(name).parent.name) if "/" in name else table
            trtint8.build_int8_engine("model.onnx", ranges, name, keep_int8=["*"])
    shutil.copy(ROOT / "tests/trtint8/interop/golden/fake_quantize_fbgemm.onnx", "other_tool.onnx")
    onnx.save(recurrent_model(), "recurrent.onnx")
    np.savez("sequences.npz", sound=sounds(), rate=np.int64(8))
    onnx.save(rows_as_they_are(6), "boxes.onnx")
    onnx.save(rows_as_they_are(6), "boxes.int8.onnx")
    rows = np.array([[[0, 0, 10, 10, 0.9, 0], [20, 20, 30, 30, 0.8, 1]]] * 4, np.float32)
    np.savez("boxes.npz", x=rows, labels=rows[:, :, [0, 1, 2, 3, 5]])


class Shown(doctest.OutputChecker):
    """Compares as the pages of the documentation are compared, up to rounding."""

    def check_output(self, want, got, optionflags):
        """True if an example shows what was printed."""
        return fits(Block("text", True, want, "", 0), got)


def run(name, **more):
    """Runs the examples of a name in the current folder."""
    test = EXAMPLES[name]
    test.globs.update({"np": np, "onnx": onnx, "trtint8": trtint8, **more})
    out = io.StringIO()
    doctest.DocTestRunner(Shown(), verbose=False).run(test, out=out.write)
    assert not out.getvalue(), out.getvalue()
