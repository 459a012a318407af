"""A container."""

import pytest

from trtint8.deployment.docker import docker_files, runtime_requirements


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({}, "tensorrt-cu12==10.9.0.34"),
        ({"flavor": "rtx", "tensorrt_version": "1.7.1.116"}, "tensorrt-rtx-cu12==1.7.1.116"),
        ({"tensorrt_version": "8.6.1"}, "tensorrt-cu12==8.6.1.*"),
    ],
)
def test_the_tensorrt_that_built_the_engine_is_installed(make_source, changes, package):
    assert runtime_requirements(make_source(**changes))[0] == package


def test_the_files(make_source):
    source = make_source()
    files = docker_files(source)
    assert files["model.engine"] == source.engine
    assert files["requirements.txt"].startswith("tensorrt-cu12==10.9.0.34\n")
    # Whatever the image copies is there.
    copied = [line.split()[1:-1] for line in files["Dockerfile"].splitlines() if line.startswith("COPY")]
    assert {name for names in copied for name in names} <= set(files)
    assert "docker build -t net ." in files["README.md"]
