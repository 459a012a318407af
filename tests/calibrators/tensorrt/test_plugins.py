"""Plugins that come with TensorRT."""

import ctypes
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import BuildError, EngineError, UnsupportedError
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import shared_logger
from calibrators.tensorrt.plugins import load_plugin_library, register_own_plugins


def test_the_plugins_of_tensorrt_for_rtx(rtx):
    register_own_plugins(rtx.module)
    register_own_plugins(rtx.module)  # once more does no harm
    names = [creator.name for creator in rtx.module.get_plugin_registry().all_creators]
    assert "ROIAlign_TRT" in names and len(names) == len(set(names))


#: A real library that exports nothing of TensorRT, as one does that registers its plugins where it is loaded.
REGISTERS_ITSELF = np.linalg._umath_linalg.__file__


@pytest.fixture
def builder(rtx):
    return rtx.module.Builder(shared_logger(rtx.module))


@pytest.fixture
def exporting(monkeypatch):
    """Lets libraries export a function of this name; returns the paths that were loaded."""

    def export(name):
        loaded = []
        library = SimpleNamespace(**{name: None})
        monkeypatch.setattr(ctypes, "CDLL", lambda path: loaded.append(path) or library)
        return loaded

    return export


def test_a_library_that_registers_its_plugins_itself(rtx, builder):
    assert load_plugin_library(REGISTERS_ITSELF, builder, rtx, BuildError) is False


@pytest.mark.parametrize("error", [BuildError, EngineError])
def test_the_system_says_why_a_library_cannot_be_loaded(rtx, builder, tmp_path, error):
    (tmp_path / "text.so").write_text("text")
    for name, reason in (("text.so", "file too short"), ("none.so", "cannot open shared object file")):
        with pytest.raises(
            error, match=rf"library '.*{name}' cannot be loaded \(.*{name}: {reason}.*\); give"
        ):
            load_plugin_library(tmp_path / name, builder, rtx, error)


def test_tensorrt_says_why_it_refuses_one(rtx, builder, tmp_path, exporting):
    exporting("getCreators")
    (tmp_path / "text.so").write_text("text")
    words = (
        f"^{rtx} refuses the plugin library '.*text.so': Unable to load library: .*text.so: file too short; "
        "check that it was built for this TensorRT$"
    )
    with pytest.raises(BuildError, match=words):
        load_plugin_library(tmp_path / "text.so", builder, rtx, BuildError)


@pytest.mark.parametrize("name", ["getCreators", "getPluginCreators"])
def test_creators_are_registered_with_their_owner(rtx, tmp_path, monkeypatch, exporting, name):
    loaded, registered = exporting(name), []
    registry = SimpleNamespace(load_library=lambda path: registered.append(path) or object())
    owner = SimpleNamespace(get_plugin_registry=lambda: registry)
    monkeypatch.chdir(tmp_path)
    assert load_plugin_library("mine.so", owner, rtx, BuildError) is True
    assert loaded == registered == [str(tmp_path / "mine.so")]


def test_a_tensorrt_that_takes_no_creators(monkeypatch, exporting):
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(IPluginRegistry=object))
    exporting("getPluginCreators")
    words = (
        r"^TensorRT 8\.5\.3 has no loader of plugin libraries that do not register their plugins themselves; "
        r"use TensorRT 8\.6 or newer, or leave it out$"
    )
    with pytest.raises(UnsupportedError, match=words):
        load_plugin_library("mine.so", object(), Flavor("tensorrt", "8.5.3"), BuildError)
    exporting("nothing")
    assert load_plugin_library("mine.so", object(), Flavor("tensorrt", "8.5.3"), BuildError) is False


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_library_that_is_no_file_is_refused_and_not_waited_for(rtx, builder, tmp_path, make):
    make(tmp_path / "a.so")
    with pytest.raises(BuildError, match=r"the plugin library '.*a\.so' cannot be loaded"):
        load_plugin_library(tmp_path / "a.so", builder, rtx, BuildError)
