"""ONNX Runtime with its TensorRT execution provider.

The options are those of "NVIDIA TensorRT Execution Provider" in ONNX Runtime's documentation
(onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html).
"""

from __future__ import annotations

from calibrators.errors import UnsupportedError
from calibrators.tables.files import FORMATS
from trtint8.deployment.content import Files, files_of_programs, paragraphs, readme, template
from trtint8.deployment.source import QDQ_FILE, Code, DeploySource, json_document, markdown_code
from trtint8.models.model import Model

#: The folder in which ONNX Runtime keeps engines, and looks for the calibration table.
_CACHE = "trt_cache"

_TABLE = "calibration.flatbuffers"


def ort_trt_files(source: DeploySource) -> Files:
    """The Q/DQ model, the calibration table, the provider's options and a program that opens a session.

    Args:
        source: The engine; it does not go along, because ONNX Runtime builds its own.

    Raises:
        UnsupportedError: There is neither a Q/DQ model nor a table.
    """
    if source.qdq_model is not None:
        source = source.for_full_tensorrt("ONNX Runtime").typed_as_model()
    qdq = source.qdq_files()
    if not qdq and source.table is None:
        raise UnsupportedError(
            f"ONNX Runtime builds its own engines from an ONNX model, and '{source.engine}' has neither a "
            "Q/DQ model nor a calibration table beside it; build it from the float model with trtint8"
        )
    files: dict[str, str | bytes | Model] = dict(qdq)
    if source.table is not None:
        files[f"{_CACHE}/{_TABLE}"] = FORMATS["onnxruntime"].render(source.table.amax)
    return {
        **files,
        "options.json": json_document(provider_options(source)),
        **files_of_programs(source),
        "session.py": template("ort_trt/session.py.in"),
        "README.md": readme(
            "ort_trt/README.md.in",
            source,
            model=_model_text(source),
            profiles=_profiles_text(source),
        ),
    }


def provider_options(source: DeploySource) -> dict[str, object]:
    """What ``session.py`` opens and with which options of the provider.

    The profiles of the engine become the provider's, whose form is ``input:1x3x224x224,other:...``. It takes
    several profiles as further entries for the same inputs, and none for names with a colon or a comma.
    """
    options: dict[str, object] = {
        "trt_int8_enable": True,
        "trt_fp16_enable": True,
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": _CACHE,
        "trt_timing_cache_enable": True,
    }
    for option in ("min", "opt", "max") if _has_profiles(source) else ():
        shapes = ",".join(
            f"{name}:{'x'.join(map(str, getattr(shape, option)))}"
            for profile in source.info.profiles
            for name, shape in profile.items()
        )
        options[f"trt_profile_{option}_shapes"] = shapes
    return {
        "model": QDQ_FILE if source.qdq_model else None,
        "table": _TABLE if source.table is not None else None,
        "provider_options": options,
    }


def _has_profiles(source: DeploySource) -> bool:
    """Whether the provider can be given the engine's profiles."""
    names = {name for profile in source.info.profiles for name in profile}
    return bool(names) and not any(set(name) & set(":,") for name in names)


def _profiles_text(source: DeploySource) -> Code:
    if _has_profiles(source):
        return Code("`options.json` has the options of the provider, the engine's profiles among them.")
    if not source.info.profiles:
        return Code("`options.json` has the options of the provider.")
    return Code(
        "`options.json` has the options of the provider, but not the engine's profiles, because it takes "
        "none for names with a colon or a comma: it builds anew for shapes that it has not seen."
    )


def _model_text(source: DeploySource) -> Code:
    table = markdown_code(f"{_CACHE}/{_TABLE}")
    if source.qdq_model is None:
        return paragraphs("ort_trt/table_only.md.in", table=table)
    placed = Code(f" {source.placed}" if source.placed else "")
    text = Code(f"{paragraphs('ort_trt/qdq_model.md.in', model=markdown_code(QDQ_FILE))}{placed}")
    if source.table is not None:
        text = Code(f"{text}\n\n{paragraphs('ort_trt/table_beside.md.in', table=table)}")
    return text
