"""Which Python package for CUDA is used."""

import sys
from types import ModuleType

import pytest

from calibrators import cuda
from calibrators.errors import UnsupportedError
from tests.calibrators.cuda.fake_driver import driver


def test_a_gpu_without_a_python_package(install, monkeypatch):
    install(driver(count=1))
    monkeypatch.setattr("calibrators.cuda.opening._installed", lambda _module: False)
    cuda.open_device.cache_clear()
    with pytest.raises(UnsupportedError, match=r"no Python package for CUDA is installed; run pip install"):
        cuda.open_device(0)


@pytest.fixture
def packages(install, monkeypatch):
    """Makes it look as if these packages were installed, each filling one class."""

    def use(**classes):
        install(driver(count=2))
        present = {"pycuda_device": "pycuda.driver", "cuda_python_device": "cuda.bindings.driver"}
        installed = {present[module] for module in classes}
        monkeypatch.setattr("calibrators.cuda.opening._installed", installed.__contains__)
        for module, content in classes.items():
            made = ModuleType(module)
            vars(made).update(content)
            monkeypatch.setitem(sys.modules, f"calibrators.cuda.{module}", made)
        cuda.open_device.cache_clear()

    yield use
    cuda.open_device.cache_clear()


def test_pycuda_comes_before_cuda_python(packages):
    both = {
        "pycuda_device": {"PycudaDevice": lambda ordinal: ("PyCUDA", ordinal)},
        "cuda_python_device": {"CudaPythonDevice": lambda ordinal: ("cuda-python", ordinal)},
    }
    packages(**both)
    assert cuda.open_device(1) == ("PyCUDA", 1)
    packages(cuda_python_device=both["cuda_python_device"])
    assert cuda.open_device(1) == ("cuda-python", 1)


def test_a_device_is_opened_once(packages):
    opened = []
    packages(pycuda_device={"PycudaDevice": lambda ordinal: opened.append(ordinal) or object()})
    assert cuda.open_device(0) is cuda.open_device(0)
    assert opened == [0]


def test_a_pycuda_that_cannot_be_imported(packages):
    packages(pycuda_device={})
    with pytest.raises(UnsupportedError, match=r"PyCUDA is installed but cannot be imported \(.*\); install"):
        cuda.open_device(0)
