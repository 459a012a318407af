"""The driver library that the code under test loads."""

import ctypes

import pytest


@pytest.fixture
def install(monkeypatch):
    def use(library):
        def load(_name="", mode=None):
            if isinstance(library, OSError):
                raise library
            return library

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr("calibrators.cuda.driver._loaded", load)

    return use
