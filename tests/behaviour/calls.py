"""The public calls: their signatures, what they take in place of files, and what they refuse."""

import dataclasses
import gc
import inspect
import re
import warnings
from pathlib import Path

import numpy as np

import calibrators.tensorrt
import trtint8
from tests.behaviour.command_line import inside, run
from tests.behaviour.files import prepare, samples
from tests.behaviour.graphs import graph_lines, operators
from tests.behaviour.models import CASES
from tests.behaviour.text import decibels, number

_QUOTED = re.compile(r"'([^'\s]+)'")

#: Classes that a user makes.
_MADE = (
    "BatchAxes",
    "BuildOptions",
    "CalibrationTable",
    "DetectionAgreement",
    "Gpu",
    "InputSpec",
    "MeanAveragePrecision",
    "Preprocessing",
    "RayExecutor",
    "ShapeRange",
    "StateSequences",
)

_COMMANDS = (
    *(
        "demo",
        "doctor",
        "calibrate",
        "quantize",
        "migrate",
        "lint",
        "build",
        "audit",
        "validate",
        "sensitivity",
    ),
    *("tune", "run", "bench", "deploy", "report", "compare", "table"),
    *(f"table {action}" for action in ("show", "diff", "convert", "drop", "merge", "extract", "set", "edit")),
)
_OPTION = re.compile(r"(?<![\w-])--?[a-z](?:[a-z0-9-]*[a-z0-9])?(?![\w-])")  # none that a line break divides


def surface_lines():
    """The public names with their parameters and fields."""
    lines = []
    for name in trtint8.__all__:
        found = getattr(trtint8, name)
        if inspect.isfunction(found):
            lines.append(f"{name}({_parameters(found)})")
        elif inspect.isclass(found):
            lines += _class_lines(name, found)
    return [*lines, *(f"calibrators.tensorrt.{name}" for name in calibrators.tensorrt.__all__)]


def _parameters(function):
    """Parameters with those defaults that are plain values."""
    told, keyword = [], False
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not keyword:
            told.append("*")
            keyword = True
        plain = isinstance(one.default, (bool, int, float, str, tuple, type(None)))
        default = "" if one.default is one.empty else f"={one.default!r}" if plain else "=..."
        told.append(f"{one.name}{default}")
    return ", ".join(told)


def _class_lines(name, found):
    if issubclass(found, Exception):
        return [f"{name} is {' '.join(one.__name__ for one in found.__mro__[1:-2])}"]
    lines = [f"{name}({_parameters(found)})"] if name in _MADE else [name]
    if dataclasses.is_dataclass(found) and name not in _MADE and name != "Batches":
        lines += [f"{name}.{one.name}" for one in dataclasses.fields(found) if not one.name.startswith("_")]
    if name == "Batches":
        return lines
    fields = {one.name for one in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    for member, value in sorted(vars(found).items()):
        if member.startswith("_") or member in fields:
            continue
        if inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)):
            lines.append(f"{name}.{member}({_parameters(getattr(found, member))})")
        else:
            lines.append(f"{name}.{member}")
    return lines


def option_lines():
    """The options of every verb, as its help names them."""
    lines = []
    for command in _COMMANDS:
        status, out, _error = run(f"{command} --help")
        options = sorted(set(_OPTION.findall(out)) - {"-h", "--help"})
        lines += [f"{command}: status {status}", *(f"{command} {option}" for option in options)]
    return lines


class _Outcomes:
    """Lines of what calls return or raise."""

    def __init__(self):
        self.lines = []

    def call(self, label, function, shown=str):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = function()
                told = shown(result)
            except Exception as error:  # noqa: BLE001  # the class is what is kept
                result, told = None, f"{type(error).__name__} {_names(error)}".rstrip()
        lines = [told] if isinstance(told, str) else told
        self.lines += [f"{label}: {line}" for line in lines]
        self.lines += sorted(
            {
                f"{label}: warns {_names(one.message)}".rstrip()
                for one in caught
                if issubclass(one.category, UserWarning)
            }
        )
        return result


def _names(message):
    return " ".join(sorted(set(_QUOTED.findall(str(message)))))


def _amax(table):
    return " ".join(f"{name} {number(value)}" for name, value in table.amax.items())


def call_lines(folder):
    """What the calls do that verbs do not show."""
    with inside(folder):
        prepare(
            folder,
            [
                "three_nodes.onnx",
                "resnet.onnx",
                "qat.onnx",
                "ranges.txt",
                "three.cache",
                "labels.npy",
                "pixels.npz",
            ],
        )
        out = _Outcomes()
        _calibrations(out)
        _tables(out)
        _models(out)
        _judgements(out)
        return out.lines


def _calibrations(out):
    model, images = CASES["three_nodes"].model(), samples()

    def calibrate(label, given=model, data=images, **options):
        options = {"method": "minmax", "progress": False, **options}
        return out.call(label, lambda: trtint8.calibrate(given, data, **options), _amax)

    plain = calibrate("an array")
    for label, data in (
        ("a dict", {"images": images}),
        ("feeds", [{"images": one[None]} for one in images]),
        ("feeds of several", [{"images": images[:5]}, {"images": images[5:]}]),
        ("a generator", lambda: ({"images": one[None]} for one in images)),
        ("an .npz", "three_nodes.npz"),
        ("a path", Path("three_nodes.npz")),
    ):
        calibrate(label, data=data)
    calibrate("a file", given="three_nodes.onnx")
    calibrate("bytes", given=model.SerializeToString())
    for options in (
        {"shuffle": True, "seed": 3},
        {"batch_size": 5},
        {"limit": 4},
        {"limit": 4, "shuffle": True, "seed": 1},
        {"tensors": "placed"},
        {"checkpoint": "run.checkpoint"},
        {"threads": 1},
        {"batch_size": 0},
        {"limit": 0},
        {"method": "best"},
        {"tensors": "some"},
        {"device": "tpu"},
        {"executor": "cluster"},
        {"threads": -1},
        {"resume": True},
        {"checkpoint_seconds": -1.0},
    ):
        table = calibrate(" ".join(f"{key}={value}" for key, value in options.items()), **options)
        if (
            table is not None
            and plain is not None
            and options.keys() <= {"shuffle", "seed", "batch_size", "threads"}
        ):
            same = (table.provenance.data, table.amax) == (plain.provenance.data, plain.amax)
            out.lines.append(f"  the same table: {same}")
    for label, data in (
        ("nothing", None),
        ("no samples", images[:0]),
        ("a number", 3),
        ("doubles", images.astype(np.float64)),
        ("integers", images.astype(np.int32)),
        ("three channels too few", images[:, :1]),
        ("a NaN", samples(a=np.nan)),
        ("an empty list", []),
        ("feeds of another name", [{"pictures": images[:1]}]),
        ("feeds and one more", [{"images": images[:1], "more": images[:1]}]),
        ("a generator that is used up", iter([{"images": images[:1]}])),
    ):
        calibrate(label, data=data)
    for label, given in (
        ("a model of text", "no such model"),
        ("a model of a number", 3),
        ("empty bytes", b""),
        ("Q/DQ", "qat.onnx"),
    ):
        calibrate(label, given=given)
    pixels = np.load("pixels.npz")["images"]
    calibrate(
        "pixels", data=pixels, preprocessing=trtint8.Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    )
    calibrate("pixels without", data=pixels)
    out.call("preprocessing", lambda: trtint8.Preprocessing(std=(0.0,)))
    out.call("preprocessing layout", lambda: trtint8.Preprocessing(layout="CHWN"))
    step = np.random.default_rng(5).standard_normal((4, 5, 6)).astype(np.float32)
    state = CASES["state_lstm"].model()
    states = {"hidden": "rnn_out1", "cell": "rnn_out2"}
    calibrate("sequences", given=state, data=trtint8.StateSequences({"step": step}, states))
    calibrate(
        "sequences along axis 1",
        given=state,
        data=trtint8.StateSequences({"step": np.swapaxes(step, 0, 1)}, states, {"step": 1}),
    )
    calibrate(
        "samples along axis 3", data=trtint8.BatchAxes({"images": np.moveaxis(images, 0, 3)}, {"images": 3})
    )
    calibrate("axes of another name", data=trtint8.BatchAxes({"images": images}, {"pictures": 1}))


def _tables(out):
    model = CASES["three_nodes"].model()
    table = trtint8.calibrate(model, samples(), method="minmax", progress=False)
    for method in ("entropy", "percentile", "mse", "best"):
        out.call(f"with_method {method}", lambda method=method: table.with_method(method), _amax)
    out.call("override", lambda: table.override({"images": 2.5, "relu_out": (-6, 6)}), _amax)
    out.call("override wider", lambda: table.override({"images": (-1, 4)}), _amax)
    for label, ranges in (
        ("unknown", {"nowhere": 1.0}),
        ("negative", {"images": -1.0}),
        ("text", {"images": "wide"}),
        ("infinite", {"images": np.inf}),
    ):
        out.call(f"override {label}", lambda ranges=ranges: table.override(ranges), _amax)
    out.call("without", lambda: table.without(["first_out"]), _amax)
    out.call("without nothing", lambda: table.without(["nowhere"]), _amax)
    other = trtint8.CalibrationTable({"images": 1.0, "more": 2.0})
    out.call("merged", lambda: table.merged(other), _amax)
    out.call(
        "diff",
        lambda: table.diff(other),
        lambda found: [
            f"{one.name} {one.first} {number(one.ratio)}"
            if one.first is None
            else f"{one.name} {number(one.first)} {number(one.ratio)}"
            for one in found
        ],
    )
    out.call("scale", lambda: number(table.scale("images")))
    out.call("scale of another", lambda: table.scale("nowhere"))
    out.call(
        "peaks",
        lambda: table.peaks,
        lambda found: " ".join(f"{name} {number(value)}" for name, value in found.items()),
    )
    for name in ("t.json", "t.cache", "t.txt", "t.csv", "t.engine"):
        out.call(f"save {name}", lambda name=name: table.save(name), lambda _: "saved")
    for name in ("t.json", "t.cache", "t.txt", "t.csv", "three.cache", "missing.json", "three_nodes.npz"):
        out.call(
            f"load {name}",
            lambda name=name: trtint8.CalibrationTable.load(name),
            lambda found: f"{found.method} {_amax(found)}",
        )
    for amax in ({"x": -1.0}, {"x": np.nan}, {"x": np.inf}, {"": 1.0}, {"x": "a"}, {3: 1.0}):
        out.call(f"table of {amax}", lambda amax=amax: trtint8.CalibrationTable(amax), _amax)


def _models(out):
    model = CASES["resnet"].model()
    table = trtint8.calibrate(model, CASES["resnet"].samples(), method="minmax", progress=False)

    def quantize(label, given=model, ranges=table, **options):
        return out.call(label, lambda: trtint8.quantize(given, ranges, **options), operators)

    quantize("quantize")
    quantize("keep_float", keep_float=["a_*"])
    quantize("a pattern of nothing", keep_float=["nothing*"])
    quantize("a pattern as text", keep_float="a_*")
    quantize("keep_int8 alone", keep_int8=["a_*"])
    quantize("float16", float16=True)
    quantize("float16 float32_io", float16=True, float32_io=True)
    quantize("float16 rtx", float16=True, target="rtx", keep_int8=["*"])
    quantize("an unknown target", target="tensorrt-7")
    quantize("a GPU without a target", compute_capability="8.6")
    quantize("a GPU", target="rtx", compute_capability="8.6")
    quantize("an old GPU", target="rtx", compute_capability="6.0")
    quantize("limit alone", limit=3)
    quantize("twice", given="qat.onnx")
    quantize("another table", ranges=trtint8.CalibrationTable({"left": 1.0}))
    quantize("a zero", ranges=table.override({"images": 1.0}).without(["images"]))
    quantize("a dict of ranges", ranges={"images": 1.0})
    out.call(
        "cut",
        lambda: trtint8.cut_model(model, ["a_relu2_out"]),
        lambda parts: [line for part in parts for line in (f"{operators(part)}", *graph_lines(part)[:4])],
    )
    for label, names in (
        ("nowhere", ["nowhere"]),
        ("the output", ["fc_out"]),
        ("an input", ["images"]),
        ("nothing", []),
        ("text", "a_relu2_out"),
    ):
        out.call(
            f"cut at {label}",
            lambda names=names: trtint8.cut_model(model, names),
            lambda parts: " | ".join(map(operators, parts)),
        )
    out.call("migrate", lambda: trtint8.migrate(model, table))
    out.call("migrate less", lambda: trtint8.migrate(model, table.without(["a_relu1_out"])))
    out.call(
        "migrate and fill",
        lambda: trtint8.migrate(model, table.without(["a_add_out", "pool_out"]), fill=True),
    )
    out.call("lint float", lambda: trtint8.lint(model))
    out.call("mend float", lambda: trtint8.mend(model))
    out.call("mend", lambda: trtint8.mend("qat.onnx"))
    out.call("model_inputs", lambda: trtint8.model_inputs(3))


def _judgements(out):
    case = CASES["resnet"]
    model, held = case.model(), case.samples(1)
    table = trtint8.calibrate(model, case.samples(), method="minmax", progress=False)
    quantized = trtint8.quantize(model, table)

    def judged(found):
        lines = [f"{one.name} {decibels(one.sqnr_db)}" for one in found.outputs]
        return [
            *lines,
            *(f"measure {one.name} {one.unit}" for one in found.measures),
            f"{found.samples} samples {sorted(found.also)}",
        ]

    def validate(label, data=held, **options):
        options = {"reference": model, "progress": False, **options}
        return out.call(label, lambda: trtint8.validate(quantized, data, **options), judged)

    validate("validate")
    validate("labels", labels=np.arange(12) % 10)
    validate("labels too few", labels=np.arange(3))
    validate("labels in a file", labels="labels.npy", metrics=["top1", "top5"])
    validate("a metric", metrics="sqnr", also={"float": model})
    validate("a function", metrics=lambda feeds, outputs: float(outputs["fc_out"].max()))
    validate("no metric", metrics=[])
    validate("an unknown metric", metrics="best")
    validate("a metric without labels", metrics="top1")
    validate("a limit of none", metrics=[], max_drop=1.0)
    validate("also a list", also=[model])
    validate("no samples", data={"images": held["images"][:0]})
    validate("another reference", reference=CASES["three_nodes"].model())

    def sensitivity(label, **options):
        options = {"progress": False, "tolerance_db": 0, **options}
        ranges = options.pop("table", table)
        return out.call(
            label,
            lambda: trtint8.measure_sensitivity(model, ranges, held, **options),
            lambda found: (
                f"{len(found.layers)} layers of {found.samples} samples, {decibels(found.quantized.sqnr_db)}"
            ),
        )

    sensitivity("sensitivity")
    sensitivity("sensitivity with labels", labels=np.arange(12) % 10)
    sensitivity("sensitivity of others", keep_float=["a_*"], limit=5)
    sensitivity("sensitivity of nothing", keep_float=["*"])
    sensitivity("sensitivity by an unknown tolerance", tolerance_db=-1)
    sensitivity("sensitivity of another table", table=trtint8.CalibrationTable({"left": 1.0}))
    for label, options in (
        ("resume", {"resume": True}),
        (
            "a profile without speed",
            {"profile": {"images": trtint8.ShapeRange((1, 3, 16, 16), (1, 3, 16, 16), (1, 3, 16, 16))}},
        ),
        ("an unknown GPU", {"speed": "nothing"}),
        ("an unknown target", {"target": "cpu"}),
        ("an unknown metric", {"metric": "best"}),
        ("no minutes", {"minutes": -1}),
    ):
        out.call(
            f"tune {label}",
            lambda options=options: trtint8.tune(model, case.samples(), held, progress=False, **options),
        )
    for label, call in (
        ("Engine.load", lambda: trtint8.Engine.load("missing.engine")),
        ("read_engine_info", lambda: trtint8.read_engine_info("missing.engine")),
        ("deploy", lambda: trtint8.deploy("missing.engine", "triton", "out")),
        ("deploy to", lambda: trtint8.deploy("missing.engine", "nowhere", "out")),
        ("audit", lambda: trtint8.audit(model, table, "nothing")),
        ("compare_runs", lambda: trtint8.compare_runs(["missing.engine", "other.engine"])),
        ("compare_runs of one", lambda: trtint8.compare_runs(["three.cache"])),
        ("set_dynamic_ranges", lambda: trtint8.set_dynamic_ranges(object(), {"x": 1.0})),
        (
            "build route",
            lambda: trtint8.build_int8_engine(model, table, "e.engine", route="both", progress=False),
        ),
        (
            "build target",
            lambda: trtint8.build_int8_engine(model, table, "e.engine", target="cpu", progress=False),
        ),
        ("ShapeRange", lambda: trtint8.ShapeRange((2, 3), (1, 3), (4, 3))),
        ("ShapeRange of ranks", lambda: trtint8.ShapeRange((2,), (1, 3), (4, 3))),
        ("BuildOptions", lambda: trtint8.BuildOptions(optimization_level=9)),
        ("BuildOptions pool", lambda: trtint8.BuildOptions(memory_pools={"nothing": 1})),
        ("RayExecutor", lambda: trtint8.RayExecutor(workers=0)),
    ):
        out.call(label, call, lambda found: type(found).__name__)
    gc.collect()
