r"""How much of the accuracy that outlier channels cost a transformer exact equalization restores.

python scripts/bench_equalization.py vit.onnx calibration.npz heldout.npz \
    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225

The network is rewritten into an equal function in which some channels are larger: they are multiplied where
they are produced, and divided in the weights that read them (or in the other operand of a product). Every
layer runs in INT8. The judge is the SQNR of the first output on held-out samples. The FP32 column is the
largest difference between the outputs of the rewritten and of the original network, over the largest output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

import trtint8
from calibrators.data.opening import open_batches
from calibrators.operators import operator_of
from trtint8.equalization.following.constants import shapes_of_samples
from trtint8.equalization.following.follow import follow_channels
from trtint8.equalization.following.labelling import NetworkChannels
from trtint8.equalization.forms import Form, apply_factors, find_forms
from trtint8.models.model import load_float_model, prepare
from trtint8.models.serialization import to_proto

PLACES = ("norm", "v", "qk", "up")


@dataclass(frozen=True)
class Setup:
    """What all experiments share: the model, the data, and how both are used."""

    model: Path
    calibration: Path
    held_out: Path
    method: str
    keywords: Mapping[str, Any]
    calibration_samples: int
    held_out_samples: int

    def sqnr(self, network: Any, *, equalize: bool) -> float:
        """SQNR in dB of the network in INT8, calibrated as it is, or equalized and calibrated anew."""
        data = {"limit": self.calibration_samples, "progress": False, **self.keywords}
        table = trtint8.calibrate(network, self.calibration, method=self.method, tensors="placed", **data)
        if equalize:
            quantized = trtint8.quantize(network, table, equalize=self.calibration, **data)
        else:
            quantized = trtint8.quantize(network, table)
        return self._sqnr_of(quantized)

    def difference(self, network: onnx.ModelProto) -> float:
        """The largest difference from the original in FP32, over the largest magnitude of the output."""
        original = list(self._outputs(str(self.model)))
        rewritten = self._outputs(network.SerializeToString())
        largest = max(np.abs(one).max() for one in original)
        differences = (np.abs(one - other).max() for one, other in zip(original, rewritten, strict=True))
        return float(max(differences) / largest)

    def _sqnr_of(self, quantized: Any) -> float | None:
        accuracy = trtint8.validate(
            quantized,
            self.held_out,
            reference=self.model,
            metrics=["sqnr"],
            limit=self.held_out_samples,
            progress=False,
            **self.keywords,
        )
        return accuracy.outputs[0].sqnr_db

    def _outputs(self, model: str | bytes) -> Iterator[NDArray[np.float32]]:
        import onnxruntime  # late, so that trtint8 has turned its telemetry off

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        inputs = trtint8.model_inputs(self.model)
        for feed in open_batches(self.held_out, inputs, limit=self.held_out_samples, **self.keywords):
            yield session.run(None, feed)[0]


class Network:
    """The model, and where its channels can be multiplied."""

    def __init__(self, setup: Setup) -> None:
        prepared = prepare(load_float_model(setup.model))
        self.model: ir.Model = prepared.graph_model
        feed = next(iter(open_batches(setup.calibration, prepared.inputs, limit=2, **setup.keywords)))
        shapes = shapes_of_samples(self.model, feed)
        self.channels: NetworkChannels = follow_channels(self.model, shapes)
        self.nodes = {node.name: node for node in self.model.graph}
        self.forms: dict[str, list[Form]] = {place: [] for place in PLACES}
        for form in find_forms(self.channels):
            self.forms[self._place(form)].append(form)

    def _place(self, form: Form) -> str:
        if not form.readings:
            return "qk"
        if operator_of(self.nodes[form.producers[0]]).affine:
            return "norm"
        return "v" if self._passes_a_product(form) else "up"

    def _passes_a_product(self, form: Form) -> bool:
        """Whether a product of two activations lies between a form's producer and its reader."""
        value = self.nodes[form.readings[0].node].inputs[0]
        while (node := value.producer()).name not in form.producers:
            if node.op_type == "MatMul" and not node.inputs[1].is_initializer():
                return True
            computed = [one for one in node.inputs if one is not None and one.producer() is not None]
            value = computed[0]
        return False

    def with_outliers(self, outliers: Mapping[str, tuple[int, float]], seed: int) -> onnx.ModelProto:
        """An equal function with larger channels.

        Args:
            outliers: Name of a place to the number of channels per layer, and how much larger they become.
            seed: Seed of the choice of channels.
        """
        random = np.random.default_rng(seed)
        factors = np.ones(len(self.channels.representatives))
        for place, (count, times) in outliers.items():
            for form in self.forms[place]:
                factors[random.choice(form.representatives, count, replace=False)] = 1 / times
        copy = self.model.clone()
        apply_factors(copy, self.channels, factors)
        return to_proto(copy)


def main() -> None:
    """Prints one line per experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("--mean", default="0,0,0")
    parser.add_argument("--std", default="1,1,1")
    parser.add_argument("--method", default="mse")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds per place; default 2")
    parser.add_argument("--times", type=float, nargs="+", default=[10, 30, 100])
    parser.add_argument("--channels", type=int, default=4, help="outlier channels per layer; default 4")
    parser.add_argument("--calibration-samples", type=int, default=200)
    parser.add_argument("--held-out-samples", type=int, default=500)
    options = parser.parse_args()
    mean, std = (tuple(float(one) for one in text.split(",")) for text in (options.mean, options.std))
    setup = Setup(
        options.model,
        options.calibration,
        options.held_out,
        options.method,
        {"preprocessing": trtint8.Preprocessing(mean=mean, std=std)},
        options.calibration_samples,
        options.held_out_samples,
    )
    network = Network(setup)
    sizes = ", ".join(f"{len(forms)} of {place}" for place, forms in network.forms.items())
    print(f"{options.model.name}, {options.method}, layers: {sizes}")
    unharmed = setup.sqnr(setup.model, equalize=False)
    print(f"unharmed: {unharmed:.1f} dB, equalized {setup.sqnr(setup.model, equalize=True):.1f} dB")
    print(f"{'outliers':24} {'seed':>4} {'FP32':>8} {'INT8':>6} {'equalized':>9} {'of unharmed':>11}")
    experiments = {"v x 40, up x 60": {"v": (4, 40.0), "up": (6, 60.0)}}
    experiments |= {
        f"{place} x {times:g}": {place: (options.channels, times)}
        for place in PLACES
        for times in options.times
    }
    for name, outliers in experiments.items():
        for seed in range(options.seeds):
            harmed = network.with_outliers(outliers, seed)
            before, after = (setup.sqnr(harmed, equalize=equalize) for equalize in (False, True))
            print(
                f"{name:24} {seed:4} {setup.difference(harmed):8.1e} {before:6.1f} {after:9.1f} "
                f"{after - unharmed:+11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
