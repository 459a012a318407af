"""A container that runs an engine."""

from __future__ import annotations

from calibrators.errors import UnsupportedError
from trtint8.deployment.content import Files, readme, template
from trtint8.deployment.escapes import Code
from trtint8.deployment.packages import requirements_file, runtime_packages
from trtint8.deployment.source import DeploySource


def docker_files(source: DeploySource) -> Files:
    """A Dockerfile, and the program and the engine that go into the image.

    Raises:
        UnsupportedError: There are no packages of the TensorRT that built the engine.
    """
    packages = runtime_packages(source)
    if not packages.has_tensorrt:
        raise UnsupportedError(
            f"an image is made of packages of PyPI, which has no {source.tensorrt}; deploy the engine to "
            "triton or cpp, or build it with another TensorRT"
        )
    return {
        "Dockerfile": template(
            "docker/Dockerfile.in", python=Code(packages.python), environment=Code(packages.environment)
        ),
        "requirements.txt": requirements_file(source),
        "model.engine": source.engine,
        "model.json": source.description(),
        "preprocess.py": template("shared/preprocess.py.in"),
        "run.py": template("shared/run.py.in"),
        "README.md": readme(
            "docker/README.md.in", source, requirements=Code(", ".join(packages.requirements))
        ),
    }
