"""The user's own modules, in a folder that is on no search path."""

import importlib
import pickle
import shlex
import sys
from importlib import metadata

import pytest

from calibrators.imports import find_own_module, install_command, own_modules


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules, which are forgotten afterwards."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def test_a_module_and_what_it_imports_come_from_the_folder(folder):
    write(folder, ownm_a="import ownm_b\ndef late():\n    import ownm_c\n    return ownm_c.VALUE\n")
    write(folder, ownm_b="from importlib import import_module\nVALUE = import_module('ownm_d').VALUE\n")
    write(folder, ownm_c="VALUE = 3\n", ownm_d="VALUE = 4\n")
    path = list(sys.path)
    find_own_module("ownm_a", str(folder))
    own = importlib.import_module("ownm_a")
    assert (own.ownm_b.VALUE, own.late()) == (4, 3)
    assert pickle.loads(pickle.dumps(own.late)) is own.late
    assert sys.path == path
    found = [name for name, place in own_modules() if place == str(folder)]
    assert found == ["ownm_a", "ownm_b", "ownm_c", "ownm_d"]


def test_nobody_else_imports_from_the_folder(folder, tmp_path_factory, monkeypatch):
    """Not even an installed module that is imported first by the user's, and tries what is not installed."""
    installed = tmp_path_factory.mktemp("installed")
    write(
        installed,
        ownm_library="try:\n    import ownm_optional\nexcept ImportError:\n    ownm_optional = None\n",
    )
    monkeypatch.syspath_prepend(str(installed))
    write(folder, ownm_user="import ownm_library\nfrom ownm_library import ownm_optional\n")
    write(folder, ownm_optional="raise SystemExit\n", ownm_library="raise SystemExit\n")
    find_own_module("ownm_user", str(folder))
    assert importlib.import_module("ownm_user").ownm_optional is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ownm_optional")


@pytest.mark.parametrize("names", [("__init__", "part"), ("part",)])
def test_a_package(folder, names):
    (folder / "ownm_package").mkdir()
    for name in names:
        (folder / "ownm_package" / f"{name}.py").write_text("import ownm_beside\nNAME = __name__\n")
    write(folder, ownm_beside="")
    find_own_module("ownm_package.part", str(folder))
    assert importlib.import_module("ownm_package.part").NAME == "ownm_package.part"


def test_one_finder_for_a_folder(folder):
    for name in ("ownm_x", "ownm_y", "ownm_x"):
        find_own_module(name, str(folder))
    assert [name for name, place in own_modules() if place == str(folder)] == ["ownm_x", "ownm_y"]


@pytest.mark.parametrize(
    ("extra", "packages"), [("detection", {"faster-coco-eval"}), ("notebook", {"pandas", "matplotlib"})]
)
def test_the_command_for_an_extra_names_its_packages(extra, packages):
    pip, install, *named = shlex.split(install_command(extra))
    assert (pip, install) == ("pip", "install")
    assert {requirement.partition(">=")[0] for requirement in named} == packages


def test_without_an_installation_the_sources_are_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert shlex.split(install_command("images")) == ["pip", "install", ".[images]"]
