"""A user's script with every public name, read by a type checker and never run."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

import trtint8
from calibrators.tensorrt import EntropyCalibrator2, LegacyCalibrator


def batches() -> Iterator[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]]:
    yield {"images": np.zeros((8, 3, 224, 224), np.float32)}


def from_model_to_engine(folder: Path) -> trtint8.BuildResult:
    inputs: tuple[trtint8.InputSpec, ...] = trtint8.model_inputs("resnet50.onnx")
    reveal_type(inputs[0].shape)
    raw = trtint8.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize=256)
    table: trtint8.CalibrationTable = trtint8.calibrate(
        "resnet50.onnx", folder / "images", method="percentile", preprocessing=raw, checkpoint="c.bin"
    )
    reveal_type(trtint8.calibrate("resnet50.onnx", batches, executor=trtint8.RayExecutor(workers=4)))
    reveal_type(table.override({"images": 2.64}).save("resnet50.table.json"))
    reveal_type(trtint8.quantize("resnet50.onnx", table, keep_float=["/fc/*"], target="rtx"))
    reveal_type(trtint8.quantize("resnet50.onnx", table, target="rtx", float16=True, keep_int8=["*"]))
    reveal_type(trtint8.quantize("resnet50.onnx", table, equalize=folder / "images", preprocessing=raw))
    files: trtint8.QuantizedFiles = trtint8.write_quantized("resnet50.onnx", table, folder / "q.onnx")
    reveal_type(files.quantized.placement)
    reveal_type(trtint8.doctor())
    reveal_type(trtint8.run_engine("resnet50.engine", folder / "images", output=folder / "o.npz"))
    shapes = trtint8.ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224))
    result = trtint8.build_int8_engine(
        "resnet50.onnx",
        table,
        "resnet50.engine",
        profiles=[{"images": shapes}],
        options=trtint8.BuildOptions(optimization_level=3),
    )
    reveal_type(result.info)
    return result


def own_network(network: object, config: object, table: trtint8.CalibrationTable) -> trtint8.SetRanges:
    missing: tuple[trtint8.MissingRange, ...] = trtint8.set_dynamic_ranges(network, table).missing
    reveal_type(missing[0].layer)
    reveal_type(trtint8.set_dynamic_ranges(network, {"x": 2.0, "y": (-1.0, 1.0)}, config=config).given)
    trtint8.set_dynamic_ranges(network, "m.cache", config=config, keep_float=["head*"])
    return trtint8.set_dynamic_ranges(network, Path("m.cache"), config=config, keep_float={"head": "fp16"})


class Module:
    """Has what a module of PyTorch has."""

    def eval(self) -> "Module":
        return self

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, object]]:
        yield prefix, recurse


def from_pytorch(module: Module, loader: list[tuple[object, object]], example: object) -> None:
    table = trtint8.calibrate(module, loader, example_inputs=example)
    reveal_type(trtint8.quantize(module, table, example_inputs={"x": example}))
    reveal_type(trtint8.build_int8_engine(module, loader, "x.engine", example_inputs=example).float_model)
    trtint8.validate("x.engine", loader, reference=module, example_inputs=(example,))


def stateful(table: trtint8.CalibrationTable) -> None:
    steps = trtint8.BatchAxes("steps.npz", {"state": 1})
    reveal_type(trtint8.calibrate("vad.onnx", steps).amax)
    speech = trtint8.StateSequences("speech.npz", {"state": "next_state"}, axes={"input": 0})
    trtint8.validate("vad.int8.onnx", speech, reference="vad.onnx")
    trtint8.build_int8_engine("vad.onnx", speech, "vad.engine")
    reveal_type(speech.states)


def elsewhere(raw: trtint8.Preprocessing) -> None:
    reveal_type(trtint8.deploy("resnet50.engine", "triton", "models", preprocessing=raw))


def from_calibrators() -> None:
    inputs = trtint8.model_inputs("resnet50.onnx")
    calibrator = EntropyCalibrator2("calibration.npz", inputs, batch_size=32, cache="resnet50.cache")
    reveal_type(calibrator.table)
    trtint8.build_int8_engine("resnet50.onnx", calibrator, "resnet50.engine", dynamic_ranges={"images": 2.64})
    legacy = LegacyCalibrator("calibration.npz", inputs, quantile=0.999)
    trtint8.build_int8_engine("resnet50.onnx", legacy, "resnet50.engine")


def run(data: trtint8.Batches) -> None:
    info: trtint8.EngineInfo = trtint8.read_engine_info("resnet50.engine")
    reveal_type(info.int8_layers)
    with trtint8.Engine.load("resnet50.engine", allow_host_code=True) as engine:
        for feed in data:
            reveal_type(engine.infer(feed))
            reveal_type(engine.infer(feed, on_device=True))
            reveal_type(engine.infer(feed, outputs={"logits": np.empty((8, 1000), np.float32)}, stream=1))
            reveal_type(engine.infer_async(feed).result())
            reveal_type(engine.bind(feed)(feed))
            reveal_type(engine.bind(feed, on_device=True, stream=1)())
        reveal_type(trtint8.refit(engine, {"fc.weight": np.zeros((10, 2), np.float32)}))
    measured: trtint8.Benchmarks = trtint8.bench(["resnet50.engine"], baseline="resnet50.onnx")
    reports: tuple[trtint8.BenchReport, ...] = measured.reports
    reveal_type(reports[0].throughput)


def largest_error(
    feeds: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    outputs: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    reference_outputs: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
) -> float:
    return -float(np.abs(outputs["y"] - reference_outputs["y"]).max())


def judge() -> trtint8.Accuracy:
    boxes = trtint8.MeanAveragePrecision(lambda outputs: [], truth=[])
    same = trtint8.DetectionAgreement(lambda outputs: [], score=0.4)
    accuracy = trtint8.validate(
        "int8.onnx", "heldout.npz", reference="fp32.onnx", metrics=["top1", boxes, same, largest_error]
    )
    reveal_type(accuracy.top1)
    reveal_type(accuracy.outputs)
    sensitivity: trtint8.Sensitivity = trtint8.measure_sensitivity(
        "fp32.onnx", "fp32.table.json", "heldout.npz", checkpoint="sensitivity.partial"
    )
    reveal_type(sensitivity.worst_first)
    tuned: trtint8.Tuned = trtint8.tune("fp32.onnx", "calibration.npz", "labelled.npz", max_drop=0.3)
    reveal_type(tuned.candidate.keep_float)
    reveal_type(trtint8.tune("fp32.onnx", "c.npz", "d.npz", metric=largest_error, minimum=-0.5).fits)
    reveal_type(trtint8.write_report(["out/"], "report.html", model="fp32.onnx", data="heldout.npz"))
    compared: trtint8.RunComparison = trtint8.compare_runs(["entropy/net.engine", "mse/net.engine"])
    rows: tuple[trtint8.ComparedRow, ...] = compared.rows
    reveal_type(rows[0].values)
    reveal_type(trtint8.write_comparison(compared, "comparison.html"))
    return accuracy


def what_int8_would_gain() -> str:
    audit: trtint8.Audit = trtint8.audit("resnet50.onnx", "resnet50.table.json", "RTX 4090")
    engine: trtint8.AuditedEngine = audit.engine("INT8+FP16")
    kernel: trtint8.AuditedKernel = engine.kernels[0]
    part: trtint8.AuditedPart = engine.part("requantization")
    reveal_type(kernel.traffic)
    reveal_type(part.seconds)
    own = trtint8.Gpu("RTX 9000", "8.9", 800, 70, 280, 560, 48, "measured")
    return trtint8.audit("resnet50.onnx", "resnet50.table.json", own, keep_float=["/fc/*"]).verdict


def models_made_elsewhere() -> int | None:
    findings: list[trtint8.Finding] = trtint8.lint("qat.onnx")
    reveal_type(findings[0].message)
    mended: trtint8.Mended = trtint8.mend("qat.onnx")
    reveal_type(mended.save("mended.onnx"))
    migrated: trtint8.Migrated = trtint8.migrate("fp32.onnx", "implicit.cache", fill=True)
    reveal_type(migrated.save("migrated.onnx"))
    head, rest = trtint8.cut_model("fp32.onnx", ["features"])
    reveal_type(rest)
    inputs = trtint8.model_inputs(head)
    return trtint8.count_int8_layers(migrated.graph_model, inputs, migrated.placement.quantized_nodes)


def errors() -> str:
    try:
        from_model_to_engine(Path())
    except (
        trtint8.ModelError,
        trtint8.CalibrationDataError,
        trtint8.TableError,
        trtint8.OutputError,
    ) as error:
        return f"mend the input: {error}"
    except (trtint8.GpuUnavailableError, trtint8.GpuMemoryError, trtint8.UnsupportedError) as error:
        return f"another machine: {error}"
    except (trtint8.BuildError, trtint8.EngineError, trtint8.WorkerError) as error:
        return f"TensorRT or Ray: {error}"
    except trtint8.TrtInt8Error as error:
        return str(error)
    return trtint8.__version__
