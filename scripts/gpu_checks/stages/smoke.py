"""Whether anything works at all: TensorRT starts, calibrates, builds and runs the demo model. A minute.

What is left behind answers questions that only a device can: the calibration cache that TensorRT writes, what
its inspector says, and how a plan begins. They are kept in the folder ``smoke``.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.cuda import open_device, primary_context
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import collected, shared_logger
from gpu_checks.checking import Check
from gpu_checks.records import Finding
from gpu_checks.subjects import Subject, load_subject, small_options
from trtint8 import BuildResult, Engine, build_int8_engine
from trtint8.builder.config import attach_timing_cache

_TABLE = "Smoke test, on the demo model"
_BATCH, _HEAD_BYTES = 32, 32


def run(check: Check) -> None:
    """Runs the stage."""
    found = flavor.load("tensorrt")
    check.attempt(_TABLE, "a device is opened", _opened)
    check.attempt(_TABLE, f"the builder of {found} starts", lambda: _started(found))
    smoke = _Smoke(check, found, load_subject("demo", None), check.folder("smoke"))
    built: list[BuildResult] = []
    check.attempt(_TABLE, "calibrate and build", lambda: smoke.build(built))
    if not built:
        check.skip(_TABLE, "everything after the build", "there is no engine")
        return
    check.attempt(_TABLE, "the plan begins", lambda: smoke.head(built[0]))
    check.attempt(_TABLE, "the timing cache is taken again", smoke.timings)
    check.attempt(_TABLE, "the inspector", lambda: smoke.inspect(built[0]))
    check.attempt(_TABLE, "infer", lambda: smoke.infer(built[0]))
    check.attempt(_TABLE, "bound, graph, future, on the device", lambda: smoke.other_ways(built[0]))


def _opened() -> Finding:
    device = open_device()
    with device.active():
        free, total = device.memory()
    return Finding({"through": type(device).__name__, "free GB": free / 1e9, "of": total / 1e9}, True)


def _started(found: Flavor) -> Finding:
    trt = found.module
    with primary_context(0), collected(trt) as log:
        builder = trt.Builder(shared_logger(trt))
        figures = {
            "fast INT8": bool(getattr(builder, "platform_has_fast_int8", True)),
            "DLA cores": int(builder.num_DLA_cores),
        }
        del builder
    return Finding({**figures, "says": log.reason() if log.errors else ""}, not log.errors)


@dataclass
class _Smoke:
    check: Check
    flavor: Flavor
    subject: Subject
    folder: Path

    def build(self, built: list[BuildResult]) -> Finding:
        """INT8 by EntropyCalibrator2 where TensorRT has it, else with Q/DQ pairs."""
        cache, calibration, calibrator = self.folder / "demo.cache", self.subject.calibration, None
        if self.flavor.implicit_int8:
            for stale in (cache, Path(f"{cache}.json")):
                stale.unlink(missing_ok=True)
            calibrator = calibrator_class("EntropyCalibrator2", self.flavor)(
                calibration, self.subject.inputs, batch_size=_BATCH, cache=cache, progress=False
            )
        result = build_int8_engine(
            self.subject.model,
            calibrator or calibration,
            self.check.settings.scratch / "smoke.engine",
            target="tensorrt",
            route="implicit" if calibrator else "explicit",
            profiles=self.subject.profiles,
            options=small_options(self.check, fp16=True),
            progress=False,
        )
        built.append(result)
        shutil.copy(f"{result.engine}.json", self.folder / "demo.engine.json")
        figures: dict[str, Any] = {"build s": result.seconds, "route": result.info.route}
        if calibrator is not None:
            text = cache.read_text().splitlines()
            figures |= {"batches": calibrator.batches, "cache": text[0], "tensors in it": len(text) - 1}
        share = result.info.int8_layers
        return Finding(
            {**figures, "in INT8": "not reported" if share is None else f"{share[0]} of {share[1]}"}, True
        )

    def timings(self) -> Finding:
        """Whether TensorRT takes the timings of the build before for another one."""
        trt = self.flavor.module
        with primary_context(0), collected(trt) as log:
            builder = trt.Builder(shared_logger(trt))
            config = builder.create_builder_config()
            attach_timing_cache(config, self.check.timings, log)
            del config, builder
        return Finding({"bytes": self.check.timings.stat().st_size}, True)

    def head(self, result: BuildResult) -> Finding:
        """The first bytes, in which the version is looked for."""
        head = result.engine.read_bytes()[:_HEAD_BYTES]
        (self.folder / "plan.head").write_bytes(head)
        library = self.flavor.library_version
        figures = {
            "bytes": head.hex(" ", 4),
            "version": ".".join(map(str, head[24:28])),
            "library": str(library),
        }
        return Finding(figures, tuple(head[24:27]) == library)

    def inspect(self, result: BuildResult) -> Finding:
        """What the layer report is read from."""
        trt = self.flavor.module
        with Engine.load(result.engine) as engine, engine.device.active():
            inspector = engine.raw.create_engine_inspector()
            text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
            del inspector
        (self.folder / "inspector.json").write_text(text)
        layers = result.info.layers
        summary = layers.weighted_summary(result.info.quantized_nodes) if layers else {}
        figures = {name: len(nodes) for name, nodes in sorted(summary.items())}
        return Finding({"characters": len(text), **figures}, layers is not None and "unknown" not in summary)

    def infer(self, result: BuildResult) -> Finding:
        """The classes of held-out images."""
        images, labels = self.subject.images[:_BATCH], self.subject.labels[:_BATCH]
        with Engine.load(result.engine) as engine:
            (logits,) = engine.infer({self.subject.input: images}).values()
        top1 = 100 * float((np.asarray(logits).argmax(1) == labels).mean())
        return Finding({"top-1 %": top1, "of images": len(labels)}, top1 > 90)

    def other_ways(self, result: BuildResult) -> Finding:
        """Whether all ways to run it compute the same."""
        feed = {self.subject.input: self.subject.images[:8]}
        with Engine.load(result.engine) as engine:
            (name,) = (spec.name for spec in engine.outputs)
            wanted = engine.infer(feed)[name]
            with engine.bind(feed) as bound, engine.bind(feed, cuda_graph=True) as graph:
                found = {
                    "bound": bound(feed)[name].copy(),
                    "graph": graph(feed)[name].copy(),
                    "graph again": graph(feed)[name].copy(),
                    "future": engine.infer_async(feed).result()[name],
                    "on the device": engine.infer(feed, on_device=True)[name].numpy(),
                }
        same = {way: bool(np.array_equal(values, wanted)) for way, values in found.items()}
        return Finding(same, all(same.values()))
