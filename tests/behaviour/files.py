"""Files that verbs and calls are given: networks and their samples, and files that are wrong in one way."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.behaviour.models import CASES, Net
from tests.behaviour.networks import save


def prepare(folder, names):
    """Writes those of the files that are known by these names; of a network, the samples as well."""
    for name in names:
        stem = name.split(".")[0]
        if stem in CASES and not (folder / f"{stem}.onnx").exists():
            save(CASES[stem], folder)
        elif name in _FILES:
            _FILES[name](folder / name)


def samples(seed=0, **changes):
    """Samples of the network three_nodes, with the first values changed."""
    images = np.random.default_rng(seed).standard_normal((12, 3, 12, 12)).astype(np.float32)
    for index, value in enumerate(changes.values()):
        images[0, 0, 0, index] = value
    return images


def _arrays(**arrays):
    return lambda path: np.savez(path, **arrays)


def _text(text):
    return lambda path: path.write_text(text)


def _bytes(data):
    return lambda path: path.write_bytes(data)


def _changed(change):
    """A writer of the network three_nodes after a change."""

    def write(path):
        model = CASES["three_nodes"].model()
        change(model)
        onnx.save(model, path)

    return write


def _unsorted(model):
    model.graph.node.insert(0, model.graph.node.pop())


def _twice(model):
    model.graph.node[2].output[0] = model.graph.node[0].output[0]


def _unknown(model):
    model.graph.node[1].op_type = "Rellu"


def _unfed(model):
    model.graph.node[0].input[1] = "nowhere"


def _new_opset(model):
    model.opset_import[0].version = 999


def _no_output(model):
    del model.graph.output[:]


def _wrong_weights(model):
    del model.graph.initializer[0].dims[1:]


def _nan_weights(model):
    values = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    values.flat[0] = np.nan
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "first.weight"))


def _lost_data(path):
    onnx.save(
        CASES["external_data"].model(),
        path,
        save_as_external_data=True,
        location="lost.data",
        size_threshold=64,
    )
    (path.parent / "lost.data").unlink()


def _no_layers(path):
    n = Net("no_layers")
    onnx.save(n.model(n.op("Relu", "relu", n.input("images", "batch", 3, 12, 12))), path)


def _words(path):
    n = Net("words")
    text = n.input("words", "batch", dtype=TensorProto.STRING)
    node = helper.make_node("StringNormalizer", [text], ["out"], name="normalizer")
    n.nodes.append(node)
    onnx.save(n.model("out", dtype=TensorProto.STRING), path)


def _table(**amax):
    return json.dumps({"format": "trtint8-calibration-table", "version": 1, "method": "minmax", "amax": amax})


_CACHE = "TRT-8601-EntropyCalibration2\nimages: 3c010204\nrelu_out: 3c810204\n"

_FILES = {
    "empty.onnx": _bytes(b""),
    "noise.onnx": _bytes(bytes(range(256)) * 4),
    "cut_short.onnx": lambda path: path.write_bytes(CASES["three_nodes"].model().SerializeToString()[:900]),
    "unsorted.onnx": _changed(_unsorted),
    "twice.onnx": _changed(_twice),
    "unknown.onnx": _changed(_unknown),
    "unfed.onnx": _changed(_unfed),
    "new_opset_999.onnx": _changed(_new_opset),
    "no_output.onnx": _changed(_no_output),
    "wrong_weights.onnx": _changed(_wrong_weights),
    "nan_weights.onnx": _changed(_nan_weights),
    "lost.onnx": _lost_data,
    "no_layers.onnx": _no_layers,
    "words.onnx": _words,
    "empty.npz": _arrays(images=np.zeros((0, 3, 12, 12), np.float32)),
    "other_name.npz": _arrays(pictures=samples()),
    "narrow.npz": _arrays(images=samples()[:, :2]),
    "flat.npz": _arrays(images=samples()[0, 0]),
    "doubles.npz": _arrays(images=samples().astype(np.float64)),
    "nan.npz": _arrays(images=samples(a=np.nan)),
    "infinite.npz": _arrays(images=samples(a=np.inf)),
    "outlier.npz": _arrays(images=samples(a=3000.0)),
    "zeros.npz": _arrays(images=np.zeros((4, 3, 12, 12), np.float32)),
    "texts.npz": _arrays(images=np.array([["a", "b"]])),
    "not.npz": _text("no archive"),
    "pixels.npz": _arrays(images=np.random.default_rng(1).integers(0, 256, (12, 12, 12, 3), np.uint8)),
    "sequences.npz": _arrays(step=np.random.default_rng(2).standard_normal((4, 5, 6)).astype(np.float32)),
    "labelled.npz": _arrays(
        images=np.random.default_rng(4).standard_normal((24, 3, 16, 16)).astype(np.float32),
        labels=np.arange(24) % 10,
    ),
    "few_labels.npz": _arrays(images=samples()[:, :, :, :], labels=np.arange(3)),
    "labels.npy": lambda path: np.save(path, np.arange(12) % 10),
    "no.json": _text("{"),
    "other.json": _text('{"format": "something else"}'),
    "negative.json": _text(_table(images=-1.0)),
    "nan.json": _text(_table(images=1.0).replace("1.0", "NaN")),
    "partial.json": _text(_table(images=2.64)),
    "foreign.json": _text(_table(left=2.64, right=1.5)),
    "three.cache": _text(_CACHE),
    "headless.cache": _text("images: 3c010204\n"),
    "hex.cache": _text(_CACHE.replace("3c010204", "zzz")),
    "minus.cache": _text(_CACHE.replace("3c010204", "bc010204")),
    "ranges.txt": _text("images: 2.64\nrelu_out: 0, 5.5\n"),
    "bad_ranges.txt": _text("images: wide\n"),
    "preprocess.toml": _text("mean = [0.4, 0.5, 0.6]\nstd = [0.2, 0.2, 0.3]\n"),
    "bad.toml": _text("mean = [0.4, 0.5\n"),
    "unknown.toml": _text("colour = 1\n"),
    "noise.engine": _bytes(bytes(range(256)) * 4),
    "classes.txt": _text("".join(f"class {index}\n" for index in range(10))),
}
