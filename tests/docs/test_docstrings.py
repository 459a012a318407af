"""Every public call has an example in its docstring, and the examples do what they show."""

import inspect
import shutil

import pytest

import trtint8
from tests.calibrators.ray.workers_here import workers_here
from tests.docs.docstrings import EXAMPLES, ON_GPU, files, run

__all__ = ["files", "workers_here"]

#: Public functions, and classes that a user makes objects of.
CALLS = [name for name in trtint8.__all__ if inspect.isfunction(getattr(trtint8, name))]
MADE = (
    "BatchAxes",
    "BuildOptions",
    "CalibrationTable",
    "DetectionAgreement",
    "Engine",
    "Gpu",
    "MeanAveragePrecision",
    "Preprocessing",
    "RayExecutor",
    "ShapeRange",
    "StateSequences",
)


#: What examples have in them that needs a package.
NEEDS = {
    ".engine": "tensorrt_rtx",
    "audit(": "tensorrt_rtx",
    "count_int8_layers(": "tensorrt_rtx",
    "plot(": "matplotlib",
    "write_report(": "jinja2",
    "write_comparison(": "jinja2",
    "to_pandas(": "pandas",
    "MeanAveragePrecision(": "faster_coco_eval",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.split(".")[0] not in ON_GPU])
def test_an_example_shows_what_is_printed(name, files, tmp_path, monkeypatch, request):
    for example in EXAMPLES[name].examples:
        for part, module in NEEDS.items():
            if part in example.source:
                pytest.importorskip(module, reason=f"{module} is not installed")
    if name == "RayExecutor":
        request.getfixturevalue("workers_here")
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "files"))
    run(name)


def test_every_call_has_an_example():
    assert {*CALLS, *MADE} <= EXAMPLES.keys()
    sizes = {name: len(test.docstring.split("Examples:\n")[1].split("\n")) for name, test in EXAMPLES.items()}
    assert {name for name, lines in sizes.items() if lines > 7} == set()  # with the empty line at the end
