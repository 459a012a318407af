"""Which way to a GPU is taken."""

import sys
from types import ModuleType

import pytest

from calibrators import cuda
from calibrators.cuda import opening
from tests.calibrators.cuda.fake_driver import driver


@pytest.fixture
def pycuda(install, monkeypatch):
    """Makes it look as if PyCUDA were installed, or not, with a class that stands for its device."""

    def use(installed, content):
        install(driver(count=2))
        monkeypatch.setattr(opening, "find_spec", lambda _name: object() if installed else None)
        monkeypatch.setattr(opening, "DriverDevice", lambda ordinal: ("driver", ordinal))
        made = ModuleType("pycuda_device")
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, "calibrators.cuda.pycuda_device", made)
        cuda.open_device.cache_clear()

    yield use
    cuda.open_device.cache_clear()


DEVICE = {"PycudaDevice": lambda ordinal: ("PyCUDA", ordinal)}


@pytest.mark.parametrize(
    ("installed", "content", "way"),
    [(True, DEVICE, "PyCUDA"), (False, DEVICE, "driver"), (True, {}, "driver")],
)
def test_pycuda_where_it_can_be_imported_else_the_driver(pycuda, installed, content, way):
    pycuda(installed, content)
    assert cuda.open_device(1) == (way, 1)


def test_a_device_is_opened_once(pycuda):
    opened = []
    pycuda(True, {"PycudaDevice": lambda ordinal: opened.append(ordinal) or object()})
    assert cuda.open_device(0) is cuda.open_device(0)
    assert opened == [0]
