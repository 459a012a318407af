"""Packages of TensorRT as PyPI has them."""

import pytest
from packaging.requirements import Requirement

from trtint8.deployment.packages import requirements_file, runtime_packages


@pytest.mark.parametrize(
    ("changes", "package", "published", "python"),
    [
        ({}, "tensorrt-cu12==10.9.0.34", "10.9.0.34", "3.12"),
        ({"tensorrt_version": "10.0.1"}, "tensorrt-cu12==10.0.1.*", "10.0.1", "3.12"),
        (
            {"flavor": "rtx", "tensorrt_version": "1.7.1.116"},
            "tensorrt-rtx-cu12==1.7.1.116",
            "1.7.1.116",
            "3.12",
        ),
        ({"tensorrt_version": "8.6.1"}, "tensorrt==8.6.1.post1", "8.6.1.post1", "3.10"),
        ({"tensorrt_version": "10.0.0b6"}, "tensorrt-cu12==10.0.0b6", "10.0.0b6", "3.12"),
        ({"tensorrt_version": "10.9.0.34+cuda12"}, "tensorrt-cu12==10.9.0.34", "10.9.0.34", "3.12"),
        ({"flavor": "rtx", "tensorrt_version": "unknown"}, "tensorrt-rtx-cu12", "1.7", "3.12"),
        ({"tensorrt_version": "8.6.0"}, "tensorrt==8.6.0.*", "8.6.0", "3.10"),
        ({"tensorrt_version": "8.5.3.1"}, "tensorrt==8.5.3.1", "8.5.3.1", "3.10"),
    ],
)
def test_the_tensorrt_that_built_the_engine_is_installed(make_source, changes, package, published, python):
    packages = runtime_packages(make_source(**changes))
    assert (packages.requirements[0], packages.python) == (package, python)
    assert packages.has_tensorrt and Requirement(package).specifier.contains(published)


def test_version_8_takes_the_cuda_and_the_cudnn_that_it_is_linked_with(make_source):
    assert requirements_file(make_source(tensorrt_version="8.6.1")).splitlines() == [
        "# For Python 3.10.",
        "--extra-index-url https://pypi.nvidia.com",
        "tensorrt==8.6.1.post1",
        "nvidia-cudnn-cu12<9",
        "cuda-bindings>=12.8,<13",
        "numpy>=1.26",
        "pillow>=10",
        "ml_dtypes>=0.4",
    ]
    assert requirements_file(make_source(tensorrt_version="8.5.3.1")).splitlines()[1:4] == [
        "tensorrt==8.5.3.1",
        "nvidia-cudnn-cu11<9",
        "cuda-bindings>=11.8.6,<12",
    ]


def test_version_9_has_no_packages(make_source):
    source = make_source(tensorrt_version="9.2.0")
    assert not runtime_packages(source).has_tensorrt
    assert requirements_file(source).splitlines()[:3] == [
        "# For Python 3.10.",
        "# PyPI has no TensorRT 9.2.0: install the one that built the engine.",
        "cuda-bindings>=12.8,<13",
    ]
