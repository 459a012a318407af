"""How much of everything is done, so that the usual stages fit into a quarter of an hour; reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: What the limits below add up to, at most.
MINUTES = 14.0

#: Share of a stage's time after which it begins nothing new.
SOFT = 0.85


@dataclass(frozen=True)
class Stage:
    """One process of its own.

    Attributes:
        name: What ``--stage`` calls it.
        module: The module that does it.
        title: What it shows.
        seconds: Its time limit in a run of :data:`MINUTES`.
        needs_gpu: False where a CPU is enough.
        usual: False for a stage that runs only where ``--stage`` names it.
    """

    name: str
    module: str
    title: str
    seconds: float
    needs_gpu: bool = True
    usual: bool = True


#: In the order in which they run: what matters most comes first, what may crash the driver comes last; then
#: what takes a call of its own.
STAGES = (
    Stage("smoke", "gpu_checks.stages.smoke", "Whether anything works at all", 60),
    Stage("speed", "gpu_checks.stages.speed", "INT8 beside FP16 at batch 64 and 1", 150),
    Stage("host", "gpu_checks.stages.host", "Calibration and FP32 on the CPU", 60, needs_gpu=False),
    Stage("implicit", "gpu_checks.stages.implicit", "Implicit INT8: the four calibrators and ranges", 140),
    Stage("explicit", "gpu_checks.stages.explicit", "Explicit INT8 beside implicit", 60),
    Stage("twin", "gpu_checks.stages.twin", "Integers followed on the CPU beside an engine's tensors", 60),
    Stage("transformer", "gpu_checks.stages.transformer", "A transformer: both routes beside FP16", 120),
    Stage("runtime", "gpu_checks.stages.runtime", "Throughput, latency and overhead", 60),
    Stage("threads", "gpu_checks.stages.threads", "Threads and soak", 40),
    Stage("faults", "gpu_checks.stages.faults", "Faults", 60),
    Stage("calibration", "gpu_checks.stages.calibration", "Calibration on the GPU in ONNX Runtime", 15),
    Stage("rtx", "gpu_checks.stages.rtx", "An engine that TensorRT for RTX built on the CPU", 12),
    Stage(
        "placement",
        "gpu_checks.stages.placement",
        "Layers in FP16 where INT8 is slower, by engines that are timed",
        600,
        usual=False,
    ),
)

#: Samples a calibration batch, and images at once in judging.
CALIBRATION_BATCH = 50
JUDGING_BATCH = 100

#: Builder optimization levels, below TensorRT's usual 3: on an H200, TensorRT 8.6 built a network of nine
#: layers in 23 s at level 1, and the ResNet-50-size one in 74 s (INT8 and FP16) and 53 s (FP16) at level 2.
SMALL_LEVEL = 1
LARGE_LEVEL = 2

#: The packed TensorRT 8.6 has stubs in the place of cuBLAS and cuDNN; kernels from everywhere else stay.
TACTIC_SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")

#: The batches that small networks are timed with.
SMALL_BATCHES = (1, 64)

#: The batches of ResNet-50 and of the encoder, those that are timed first, the one that both are tuned for,
#: seconds per measurement and of warming up before it.
BATCHES = (64, 1, 8, 256)
ENCODER_BATCHES = (64, 1)
FIRST_BATCHES = (64, 1)
TUNED_BATCH = 64
MEASURE_SECONDS, WARM_UP_SECONDS = 0.3, 0.1
ROUNDS = 5

#: The batches that placement is searched for; the share by which what is found may be slower than FP16 where
#: it is timed once more; and the most engines to find it with.
PLACEMENT_BATCHES = (64, 1)
PLACEMENT_NOISE = 0.02
PLACEMENT_ENGINES = 12

#: Threads, contexts per thread, inferences per context; length of the endurance run, in seconds.
THREADS, CONTEXTS, INFERENCES = 4, 4, 2500
SOAK_SECONDS = 10.0

#: Seconds that one fault may take.
FAULT_SECONDS = 50.0


def deadlines(stages: Sequence[Stage], minutes: float, soak: float) -> dict[str, float]:
    """When each stage has to be over, in seconds from the beginning.

    What a stage does not need is left to those after it.

    Args:
        stages: The stages that run, in order.
        minutes: What a run of all of them may take, without a longer soak.
        soak: Seconds of soak, which the stage "threads" gets on top where it is longer than usual.
    """
    ends, end = {}, 0.0
    for stage in stages:
        end += stage.seconds * minutes / MINUTES
        if stage.name == "threads":
            end += max(0.0, soak - SOAK_SECONDS) / SOFT
        ends[stage.name] = end
    return ends


def described(minutes: float, soak: float) -> Mapping[str, str]:
    """The limits in words, for the report."""
    return {
        "whole run": f"{minutes:g} minutes, and what the soak takes beyond {SOAK_SECONDS:g} s",
        "builds": f"builder optimization level {SMALL_LEVEL} for the small networks, {LARGE_LEVEL} for "
        f"the large ones (TensorRT's usual is 3); one timing cache for all; of the tactic sources "
        f"{' and '.join(TACTIC_SOURCES)}",
        "calibration": f"batches of {CALIBRATION_BATCH}",
        "times": f"{MEASURE_SECONDS:g} s per measurement; comparisons in {ROUNDS} rounds that alternate",
        "ResNet-50-size": f"random weights, batches {', '.join(map(str, BATCHES))}, tuned for {TUNED_BATCH}",
        "encoder": f"random weights, batches {', '.join(map(str, ENCODER_BATCHES))}, tuned for {TUNED_BATCH}",
        "threads": f"{THREADS} threads x {CONTEXTS} contexts x {INFERENCES} inferences; soak {soak:g} s",
    }
