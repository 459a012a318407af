"""A minimal C++ program that runs an engine, and the same in Python.

A container that runs an engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrators.data.inputs import shape_text
from calibrators.errors import UnsupportedError
from trtint8.deployment.content import Files, files_of_python, readme, template
from trtint8.deployment.source import Code, DeploySource, c_bool, c_literal, runtime_packages
from trtint8.engine.file import TensorSpec

#: NumPy's names of element types to their sizes in bytes.
_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
}


def cpp_files(source: DeploySource) -> Files:
    """The program, what it knows of the engine, and how it is compiled.

    Raises:
        UnsupportedError: An element type has no size in whole bytes.
    """
    source.check_engine("a C++ program")
    return {
        "main.cpp": template("cpp/main.cpp.in"),
        "model.hpp": model_header(source),
        "CMakeLists.txt": template(
            "cpp/CMakeLists.txt.in", library=Code("tensorrt_rtx" if source.is_rtx else "nvinfer")
        ),
        **files_of_python(source),
        "README.md": readme(
            "cpp/README.md.in", source, environment=Code(runtime_packages(source).environment)
        ),
    }


def model_header(source: DeploySource) -> Code:
    """What the program knows of the engine: names, sizes, the shapes of an inference, preprocessing.

    Raises:
        UnsupportedError: An element type has no size in whole bytes, or no profile says which sizes an input
            has.
    """
    wanted = source.preprocessing
    profile = source.info.profiles[0] if source.info.profiles else {}
    inputs = []
    for spec in source.info.inputs:
        shape = profile[spec.name].opt if spec.name in profile else spec.shape
        inputs.append(f"    {{{c_literal(spec.name)}, {_size(spec)}, {{{_sizes(spec, shape)}}}}},")
    outputs = [f"    {{{c_literal(spec.name)}, {_size(spec)}, {{}}}}," for spec in source.info.outputs]
    image = source.image_input if wanted else None
    return template(
        "cpp/model.hpp.in",
        inputs=Code("\n".join(inputs)),
        outputs=Code("\n".join(outputs)),
        image=c_literal(image.name if image else ""),
        is_float32=c_bool(image is not None and image.dtype == "float32"),
        scale=_float(wanted.scale if wanted else 1.0),
        mean=_floats(wanted.mean if wanted else (0.0,)),
        std=_floats(wanted.std if wanted else (1.0,)),
        nchw=c_bool(wanted is None or wanted.layout == "NCHW"),
        bgr=c_bool(wanted is not None and wanted.channels == "BGR"),
    )


def _size(spec: TensorSpec) -> int:
    if spec.dtype not in _BYTES:
        raise UnsupportedError(
            f"the C++ program has no element type for '{spec.name}' of {spec.dtype}; export the model with "
            "another type there"
        )
    return _BYTES[spec.dtype]


def _sizes(spec: TensorSpec, shape: Sequence[int | str | None]) -> str:
    """The sizes that an input is fed with."""
    if not all(isinstance(size, int) for size in shape):
        raise UnsupportedError(
            f"the C++ program feeds one shape, and no profile of the engine says which sizes '{spec.name}' "
            f"({shape_text(spec.shape, ' x ')}) has; build the engine again"
        )
    return ", ".join(map(str, shape))


def _floats(values: Sequence[float]) -> Code:
    """The values of three channels, of which one may stand for all."""
    return Code(", ".join(map(_float, values if len(values) > 1 else [*values] * 3)))


def _float(value: float) -> Code:
    """A float literal of C++."""
    text = f"{value:.9g}"
    return Code(f"{text if math.isfinite(value) and any(c in text for c in '.e') else text + '.0'}f")


def docker_files(source: DeploySource) -> Files:
    """A Dockerfile, and the program and the engine that go into the image.

    Raises:
        UnsupportedError: There are no packages of the TensorRT that built the engine.
    """
    source.check_engine("a container")
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
        **files_of_python(source),
        "README.md": readme(
            "docker/README.md.in", source, requirements=Code(", ".join(packages.requirements))
        ),
    }
