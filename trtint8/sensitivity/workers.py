"""Measurement by workers: what every one of them does with the batches that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calibrators.data.inputs import InputSpec
from calibrators.host.work import BatchFunction, check_sees
from trtint8.models.model import load_model
from trtint8.quantization.placement import place
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.probe import BatchEffects, Probe
from trtint8.simulation.layers import Quantizer


@dataclass(frozen=True)
class SensitivityWork:
    """Runs all variants of a network on single batches.

    Attributes:
        model: The prepared model, serialized; or, beyond 2 GiB, its path.
        inputs: The model's inputs.
        amax: The ranges that placement needs.
        keep_float: Names of nodes, or patterns, that stay in float.
        skip: How many of the data's first samples are compared with a checkpoint and not run.
        effects: A meter without data, whose scales hold.
        samples: How many samples the data has; None where that is not known.
        every_sample: Whether each of them shows what the layers cost.
        threads: Threads per operator.
    """

    model: bytes | Path
    inputs: tuple[InputSpec, ...]
    amax: Mapping[str, float]
    keep_float: tuple[str, ...]
    skip: int
    effects: EffectMeter
    samples: int | None
    every_sample: bool
    threads: int

    def open(self) -> BatchFunction[BatchEffects]:
        """Opens the model."""
        check_sees(self.model)
        graph_model = load_model(self.model).graph_model
        quantizer = Quantizer.of(place(graph_model, self.keep_float), self.amax)
        probe = Probe(
            graph_model,
            quantizer,
            self.inputs,
            self.skip,
            self.effects,
            samples=self.samples,
            every_sample=self.every_sample,
            threads=self.threads,
        )
        return probe.run
