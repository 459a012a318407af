"""Installs TensorRT's real Python bindings for tests, once, into a cache, without a GPU.

8.6.1 runs on its own libraries. Those of 10 and 11 are not on PyPI, and importing the bindings calls nothing
in them, so stubs of the few functions that the bindings link against take their place: classes, enums,
signatures and the calibrators' trampolines are all in the bindings themselves.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

VERSIONS = ("8.6.1", "10.16.1", "11.4.0")

_ENTRY_POINTS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


class NotAvailableError(Exception):
    """Why the bindings cannot be had here."""


@dataclass(frozen=True)
class Bindings:
    """Installed bindings.

    Attributes:
        version: Like "8.6.1".
        environment: What a Python process needs to import them as ``tensorrt``.
    """

    version: str
    environment: dict[str, str]


def prepare(version: str) -> Bindings:
    """Installs bindings where they are not in the cache yet; several processes may ask at once.

    Raises:
        NotAvailableError: This machine cannot have them.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotAvailableError(f"the bindings are for x86-64 Linux, not {sys.platform} {platform.machine()}")
    if version.startswith("8.") and sys.version_info >= (3, 12):
        raise NotAvailableError("TensorRT 8.6 has bindings up to Python 3.11")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    cache = Path(os.environ.get("TRTINT8_TEST_CACHE", Path.home() / ".cache" / "trtint8" / "bindings"))
    folder = cache / f"{version}-{tag}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _install_into(folder, version)
    except (OSError, zipfile.BadZipFile) as error:
        raise NotAvailableError(f"the bindings cannot be installed into '{cache}' ({error})") from error
    paths = {
        name: os.pathsep.join(filter(None, (str(folder / part), os.environ.get(name))))
        for name, part in (("PYTHONPATH", "site"), ("LD_LIBRARY_PATH", "lib"))
    }
    return Bindings(version, {**paths, "TRTINT8_BINDINGS": version})


def _install_into(folder: Path, version: str) -> None:
    # In the same place, so that a rename completes it: a crash leaves nothing that looks finished. Always of
    # the same name, so that what a crash left does not stay.
    scratch = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    site, libraries = scratch / "new" / "site", scratch / "new" / "lib"
    site.mkdir(parents=True)
    libraries.mkdir()
    try:
        _install(version, scratch, site, libraries)
        (scratch / "new").rename(folder)
    finally:
        shutil.rmtree(scratch)


def _install(version: str, scratch: Path, site: Path, libraries: Path) -> None:
    for tool in ("gcc", "nm"):
        # Asked before anything is downloaded.
        if shutil.which(tool) is None:
            raise NotAvailableError(f"{tool} is not installed")
    if version.startswith("8."):
        # This wheel is tagged for Python 3.10 alone, but its libraries know no Python.
        wheel = _download(scratch, "tensorrt==8.6.0", python="3.10")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                # The kernels are 990 MB, and only a builder on a GPU opens them.
                if ".so" in name and Path(name).name.startswith("lib") and "builder_resource" not in name:
                    with archive.open(name) as source, (libraries / Path(name).name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        wheel.unlink()
        _stub_plugin_dependencies(scratch, libraries)
        wheel = _download(scratch, f"tensorrt-bindings=={version}")
    else:
        stub = "\n".join(f"void *{name}(void) {{ return 0; }}" for name in _ENTRY_POINTS)
        major = version.split(".")[0]
        for library in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
            _compile(stub, libraries / f"lib{library}.so.{major}", scratch)
        wheel = _download(scratch, f"tensorrt-cu12-bindings=={version}.*")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "tensorrt_bindings").rename(site / "tensorrt")


def _stub_plugin_dependencies(scratch: Path, libraries: Path) -> None:
    """TensorRT 8's plugins link against cuBLAS and cuDNN; without a GPU nobody calls them."""
    listed = _run(["nm", "-D", "--undefined-only", str(libraries / "libnvinfer_plugin.so.8")])
    for library in ("libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.8"):
        ending = f"@{library}"
        names = [
            line.split()[-1].removesuffix(ending) for line in listed.splitlines() if line.endswith(ending)
        ]
        script = scratch / "stub.map"
        script.write_text(f"{library} {{ global: *; }};\n")
        source = "\n".join(f"int {name}(void) {{ return 1; }}" for name in names)
        _compile(source, libraries / library, scratch, f"-Wl,--version-script={script}")


def _compile(source: str, target: Path, scratch: Path, *options: str) -> None:
    file = scratch / "stub.c"
    file.write_text(source + "\n")
    _run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", *options, "-o", str(target), str(file)])


def _download(scratch: Path, requirement: str, python: str | None = None) -> Path:
    folder = scratch / "wheels"
    version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    _run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-cache-dir", "--dest", str(folder), "--python-version", version, "--implementation", "cp"),
            *("--platform", "manylinux_2_17_x86_64", "--platform", "manylinux_2_28_x86_64"),
            *("--only-binary=:all:", requirement),
        ]
    )
    (wheel,) = folder.glob(f"{requirement.split('=')[0].replace('-', '_')}-*.whl")
    return wheel


def _run(command: list[str]) -> str:
    what = "pip download" if "pip" in command else command[0]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800).stdout
    except subprocess.TimeoutExpired as error:
        raise NotAvailableError(f"{what} took more than half an hour") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise NotAvailableError(f"{what} failed: {lines[-1]}") from error
