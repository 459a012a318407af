"""A container that runs an engine."""

from __future__ import annotations

from trtint8.deployment.content import Files, readme, template
from trtint8.deployment.source import DeploySource


def docker_files(source: DeploySource) -> Files:
    """A Dockerfile, and the program and the engine that go into the image."""
    requirements = runtime_requirements(source)
    return {
        "Dockerfile": template("docker/Dockerfile.in"),
        "requirements.txt": "\n".join(requirements) + "\n",
        "model.engine": source.engine,
        "model.json": source.description(),
        "preprocess.py": template("shared/preprocess.py.in"),
        "run.py": template("shared/run.py.in"),
        "README.md": readme("docker/README.md.in", source, requirements=", ".join(requirements)),
    }


def runtime_requirements(source: DeploySource) -> list[str]:
    """The packages that ``run.py`` needs: the TensorRT that built the engine, and bindings of CUDA."""
    package = "tensorrt-rtx-cu12" if source.is_rtx else "tensorrt-cu12"
    version = source.info.tensorrt_version
    pinned = f"=={version}" if version.count(".") >= 3 else f"=={version}.*"
    return [f"{package}{pinned}", "cuda-bindings>=12.8,<13", "numpy>=1.26", "pillow>=10", "ml_dtypes>=0.4"]
