"""A minimal C++ program that runs an engine, and the same in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrators.errors import UnsupportedError
from trtint8.deployment.content import Files, readme, template
from trtint8.deployment.packages import requirements_file, runtime_packages
from trtint8.deployment.source import DeploySource
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
    return {
        "main.cpp": template("cpp/main.cpp.in"),
        "model.hpp": model_header(source),
        "CMakeLists.txt": template(
            "cpp/CMakeLists.txt.in", library="tensorrt_rtx" if source.is_rtx else "nvinfer"
        ),
        "model.engine": source.engine,
        "model.json": source.description(),
        "preprocess.py": template("shared/preprocess.py.in"),
        "run.py": template("shared/run.py.in"),
        "requirements.txt": requirements_file(source),
        "README.md": readme("cpp/README.md.in", source, environment=runtime_packages(source).environment),
    }


def model_header(source: DeploySource) -> str:
    """What the program knows of the engine: names, sizes, the shapes of an inference, preprocessing.

    Raises:
        UnsupportedError: An element type has no size in whole bytes.
    """
    wanted = source.preprocessing
    profile = source.info.profiles[0] if source.info.profiles else {}
    inputs = []
    for spec in source.info.inputs:
        shape = profile[spec.name].opt if spec.name in profile else spec.shape
        inputs.append(f"    {{{_string(spec.name)}, {_size(spec)}, {{{_listed(shape)}}}}},")
    outputs = [f"    {{{_string(spec.name)}, {_size(spec)}, {{}}}}," for spec in source.info.outputs]
    image = source.image_input if wanted else None
    return template(
        "cpp/model.hpp.in",
        inputs="\n".join(inputs),
        outputs="\n".join(outputs),
        image=_string(image.name if image else ""),
        is_float32="true" if image is not None and image.dtype == "float32" else "false",
        scale=_float(wanted.scale if wanted else 1.0),
        mean=", ".join(_float(_channel(wanted.mean, i) if wanted else 0.0) for i in range(3)),
        std=", ".join(_float(_channel(wanted.std, i) if wanted else 1.0) for i in range(3)),
        nchw="true" if wanted is None or wanted.layout == "NCHW" else "false",
        bgr="true" if wanted is not None and wanted.channels == "BGR" else "false",
    )


def _size(spec: TensorSpec) -> int:
    if spec.dtype not in _BYTES:
        raise UnsupportedError(
            f"the C++ program has no element type for '{spec.name}' of {spec.dtype}; export the model with "
            "another type there"
        )
    return _BYTES[spec.dtype]


def _channel(values: Sequence[float], index: int) -> float:
    return values[index] if len(values) > 1 else values[0]


def _float(value: float) -> str:
    """A float literal of C++."""
    text = f"{value:.9g}"
    return f"{text if math.isfinite(value) and any(c in text for c in '.e') else text + '.0'}f"


def _listed(shape: Sequence[int | str | None]) -> str:
    return ", ".join(str(dim) for dim in shape)


def _string(text: str) -> str:
    """A string literal of C++; what is not ASCII stands in octal, byte by byte."""
    return '"' + "".join(_letter(byte) for byte in text.encode()) + '"'


def _letter(byte: int) -> str:
    letter = chr(byte)
    return letter if 32 <= byte < 127 and letter not in '"\\' else f"\\{byte:03o}"
