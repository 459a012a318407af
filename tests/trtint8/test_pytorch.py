"""From a module and a data loader of PyTorch to an engine."""

import importlib.util

import numpy as np
import pytest

import trtint8

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def torch():
    for name in ("onnxscript", "torchvision", "tensorrt_rtx"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    return pytest.importorskip("torch")


def ranges(table):
    return {name: np.float32(amax).tobytes() for name, amax in table.amax.items()}


@pytest.mark.filterwarnings("ignore:top-1")  # a network without training gives all samples one answer
@pytest.mark.slow
def test_resnet18_and_a_loader_give_what_onnx_and_npz_give(torch, tmp_path):
    import torchvision

    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None)
    images, labels = torch.randn(16, *SHAPE), torch.arange(16)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=8)
    example = torch.zeros(1, *SHAPE)
    np.savez(tmp_path / "images.npz", x=images.numpy(), labels=labels.numpy())

    built = trtint8.build_int8_engine(
        module,
        loader,
        tmp_path / "resnet18.engine",
        example_inputs=example,
        target="rtx",
        compute_capabilities=["8.6"],
        keep_int8=["*"],
        progress=False,
    )
    assert module.training
    assert built.float_model == tmp_path / "resnet18.float.onnx"
    assert built.info.int8_layers == (21, 21)

    from_files = {"data": tmp_path / "images.npz", "batch_size": 8, "progress": False}
    table = trtint8.calibrate(built.float_model, **from_files)
    assert ranges(built.table) == ranges(table)
    assert built.table.fingerprint == table.fingerprint
    every = trtint8.calibrate(module, loader, method="entropy", example_inputs=example, progress=False)
    assert ranges(every) == ranges(trtint8.calibrate(built.float_model, method="entropy", **from_files))
    assert len(every.amax) == 50

    by_module = trtint8.validate(
        built.engine, loader, reference=module, example_inputs=example, progress=False
    )
    by_files = trtint8.validate(built.engine, reference=built.float_model, **from_files)
    assert by_module.outputs == by_files.outputs
    assert by_module.outputs[0].name == "output"
    assert by_module.top1 == by_files.top1


@pytest.mark.slow
def test_what_else_takes_a_module(torch):
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    )
    images = torch.randn(16, 3, 8, 8)
    example = {"example_inputs": images[:1]}
    assert [spec.name for spec in trtint8.model_inputs(module, **example)] == ["input"]
    table = trtint8.calibrate(module, images, progress=False, **example)
    quantized = trtint8.quantize(module, table, **example)
    assert sum(node.op_type == "QuantizeLinear" for node in quantized.graph.node) > 0
    migrated = trtint8.migrate(module, table, fill=True, **example)
    assert migrated.placement.quantized_nodes
    measured = trtint8.measure_sensitivity(module, table, images, progress=False, **example)
    assert len(measured.worst_first) == 2
    tuned = trtint8.tune(
        module,
        table,
        images,
        metric="sqnr",
        minimum=5.0,
        round_weights=False,
        batch_size=4,
        progress=False,
        **example,
    )
    assert tuned.candidate is not None
    accuracy = trtint8.validate(
        quantized, images, reference=module, also={"again": module}, progress=False, **example
    )
    assert accuracy.outputs[0].sqnr_db > 10
