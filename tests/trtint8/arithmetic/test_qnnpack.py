"""What is between QNNPACK's layers, beside PyTorch's engine of that name.

PyTorch's own products multiply by a float32 (see ``test_simulation``); its other kernels on
uint8 are QNNPACK's own code.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.trtint8.arithmetic.simulated import outputs_of, simulated, values
from tests.trtint8.onnx_models import Shaped
from trtint8.quantization.config import quantize

torch = pytest.importorskip("torch", reason="PyTorch is not installed, whose engine QNNPACK is compared")


@pytest.fixture(autouse=True)
def engine():
    if "qnnpack" not in torch.backends.quantized.supported_engines:
        pytest.skip("this PyTorch was built without QNNPACK")
    before, torch.backends.quantized.engine = torch.backends.quantized.engine, "qnnpack"
    yield
    torch.backends.quantized.engine = before


def quantized(array, config):
    integers = torch.from_numpy(quantize(array, config).astype(np.uint8))
    # PyTorch itself would multiply by 1 / scale.
    found = torch._make_per_tensor_quantized_tensor(integers, float(config.scale), config.offset)
    return found.contiguous(memory_format=torch.channels_last)


KERNELS = {
    "Add": lambda x, scale, offset: torch.ops.quantized.add(x, x, scale, offset),
    "Sigmoid": torch.ops.quantized.sigmoid,
    "Tanh": lambda x, _scale, _offset: torch.tanh(x),
    "LeakyRelu": lambda x, scale, offset: torch.ops.quantized.leaky_relu(x, 0.125, False, scale, offset),
    "HardSwish": torch.ops.quantized.hardswish,
    "MaxPool": lambda x, _scale, _offset: torch.nn.functional.max_pool2d(x, 2),
    "AveragePool": lambda x, _scale, _offset: torch.nn.functional.avg_pool2d(x, 2),
    "GlobalAveragePool": lambda x, _scale, _offset: torch.nn.functional.adaptive_avg_pool2d(x, 1),
}
#: The same in float64, by which ties are known.
EXACT = {
    "Add": lambda x: x + x,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "LeakyRelu": lambda x: np.where(x > 0, x, 0.125 * x),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "MaxPool": lambda x: _windows(x).max(axis=(3, 5)),
    "AveragePool": lambda x: _windows(x).mean(axis=(3, 5)),
    "GlobalAveragePool": lambda x: x.mean(axis=(2, 3), keepdims=True),
}
ATTRIBUTES = {
    "LeakyRelu": {"alpha": 0.125},
    "MaxPool": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "AveragePool": {"kernel_shape": [2, 2], "strides": [2, 2]},
}


def _windows(x):
    return x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch calls these types deprecated
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("operator", KERNELS)
def test_kernels_between_layers(operator, seed):
    """Floats between the integers, rounded half to even, are what the kernels compute: bit for bit, but for
    ties, which floats may miss on either side.
    """
    images = values((2, 1, 16, 16), seed, 1.0 + seed)
    g = Shaped()
    inputs = ["x", "x"] if operator == "Add" else ["x"]
    y = g.op(operator, inputs, "y", **ATTRIBUTES.get(operator, {}))
    kernel = g.constant(np.float32([[[[1.0]]]]))
    last = g.Conv("last", y, kernel, kernel_shape=[1, 1])
    model = g.model({"x": list(images.shape)}, last)
    model.graph.output.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, None))
    amax = float(np.abs(images).max())
    wide = 2.5 * amax if operator == "Add" else amax
    simulation = simulated(model, {"x": amax, "y_out": wide, "last_out": 4 * amax}, "qnnpack")
    x, out = (simulation.stored.outputs[name] for name in ("x", "y_out"))
    theirs = KERNELS[operator](quantized(images, x), float(out.scale), out.offset)
    assert (theirs.q_scale(), theirs.q_zero_point()) == (pytest.approx(float(out.scale)), out.offset)
    found, _ = outputs_of(simulation, {"x": images})
    ours = np.rint(found[y] / out.scale).astype(int) + out.offset
    apart = np.abs(ours - theirs.int_repr().numpy().astype(int))
    exact = EXACT[operator]((quantize(images, x) - x.offset) * np.float64(x.scale)) / out.scale
    beside_a_tie = np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 1e-3
    assert apart.max() <= 1
    assert not apart[~beside_a_tie].any()
