"""What the library makes of one network, as lines of text."""

import json
import re
import warnings

import numpy as np
import onnx

import trtint8
from tests.behaviour.command_line import inside, run
from tests.behaviour.graphs import constants, graph_lines, operators
from tests.behaviour.text import decibels, json_lines, number
from trtint8.quantization.targets import TARGETS

_TARGETS = tuple(dict.fromkeys(("tensorrt", "rtx", *TARGETS)))
_QUANTIZE = "quantize {} table.json -o other.onnx --json"
_QUOTED = re.compile(r"'([^'\s]+)'")


def save(case, folder, name=None):
    """Writes a case's model and samples; returns the path of the model."""
    path = folder / f"{name or case.name}.onnx"
    model = case.network()
    if case.name == "external_data":
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=64)
    else:
        onnx.save(model, path)
    for suffix, seed in (("", 0), (".held", 1)):
        samples = case.samples(seed)
        if isinstance(samples, dict):
            np.savez(folder / f"{path.stem}{suffix}.npz", **samples)
    return path


def network_lines(case, folder):
    """All that is kept of one network."""
    path = save(case, folder)
    with inside(folder):
        if "quantized" in case.kinds:
            return [*_inputs(path.name), *_linted(path.name), *_compared("mended.onnx", path.name, case)]
        lines = _inputs(path.name)
        if case.cut_at:
            lines += _refused(path.name, case)
            float_part, rest = _cut(path.name, case)
            lines += ["== cut", *graph_lines(float_part), "== rest", *graph_lines(rest)]
        table, ranges = _ranges(path.name, case)
        table.save("table.json")
        quantized = trtint8.quantize(path.name, table)
        onnx.save(quantized, "quantized.onnx")
        lines += [*ranges, "== Q/DQ model", *graph_lines(quantized)]
        lines += ["== placement", *_decisions(_QUANTIZE.format(path.name))]
        lines += _compared("quantized.onnx", path.name, case)
        lines += _found(quantized)
        if "sensitivity" in case.kinds:
            lines += _sensitivity(path.name, table, case)
        if "equalize" in case.kinds:
            lines += _equalized(path.name, table, case)
        return lines


def target_lines(case, folder):
    """What is decided otherwise for other targets, and for FP16."""
    path = save(case, folder)
    with inside(folder):
        if case.cut_at:
            _cut(path.name, case)
        _warned(lambda: _minmax(path.name, case).save("table.json"))
        command = _QUANTIZE.format(path.name)
        plain, targets = _decisions(command), {}
        for target in _TARGETS:
            for half in ("", " --float16"):
                more = "" if target == "tensorrt" else f" --target {target}"
                told = _decisions(f"{command}{more}{half}")
                if told != plain:
                    different = tuple(line for line in told if line not in plain)
                    targets.setdefault(different, []).append(f"{target}{half}")
        return [line for told, names in targets.items() for line in (f"-- {', '.join(names)}", *told)]


def _cut(path, case):
    """Leaves the part that stays in float in the model's file; returns it, and the rest."""
    parts = trtint8.cut_model(path, case.cut_at)
    onnx.save(parts[0], path)
    return parts


def _minmax(path, case, **options):
    return trtint8.calibrate(path, case.samples(), method="minmax", progress=False, **options)


def _warned(call):
    """What a call returns, and lines that say which warnings it gives, by the names in them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    names = sorted(
        {(one.category.__name__, *sorted(set(_QUOTED.findall(str(one.message))))) for one in caught}
    )
    return result, [f"warns {' '.join(one)}" for one in names]


def _inputs(path):
    lines = [
        f"{one.name} {np.dtype(one.dtype).name} {'x'.join(map(str, one.shape))}"
        for one in trtint8.model_inputs(path)
    ]
    return ["== inputs", *lines]


def _refused(path, case):
    try:
        trtint8.calibrate(path, case.samples(), progress=False)
    except trtint8.TrtInt8Error as error:
        return ["== whole", f"{type(error).__name__} {' '.join(sorted(set(_QUOTED.findall(str(error)))))}"]
    return ["== whole", "calibrated"]


def _ranges(path, case):
    """The table by minmax, and lines with the range of every tensor by every method that has one answer."""
    tables, lines = {}, []
    methods = ["minmax", "percentile"]
    methods += [] if "ties" in case.kinds else ["entropy", "mse"]
    methods += ["auto"] if "auto" in case.kinds else []
    for method in methods:
        if method in ("minmax", "auto"):
            tables[method], warned = _warned(
                lambda method=method: trtint8.calibrate(path, case.samples(), method=method, progress=False)
            )
            lines += [f"{method} {line}" for line in warned]
        else:
            tables[method] = tables["minmax"].with_method(method)
    table = tables["minmax"]
    placed = _minmax(path, case, tensors="placed")
    for name in table.amax:
        numbers = " ".join(number(one.amax[name]) for one in tables.values())
        lines.append(f"{name} {numbers}{' placed' if name in placed.amax else ''}")
    others = {name for one in (placed, *tables.values()) for name in one.amax} - table.amax.keys()
    lines += [f"only in some: {name}" for name in sorted(others)]
    lines += [f"loses: {name}" for name in sorted(table.excessive_losses)]
    return table, [f"== ranges: {' '.join(tables)}", *lines]


def _decisions(command):
    """What one quantization decides, in lines."""
    status, out, error = run(command)
    if status:
        return [f"status {status} {' '.join(sorted(set(_QUOTED.findall(error))))}"]
    result = json.loads(out)
    lines = [f"{result['nodes_in_int8']} of {result['nodes_that_multiply']} in INT8"]
    lines += sorted(
        f"{one['operator']} {one['node']}: {'INT8' if one['quantized'] else 'float'}, {one['reason']}"
        for one in result["decisions"]
    )
    lines += [f"one scale: {' '.join(group)}" for group in result["shared_scales"]]
    lines += sorted(f"{name}: {one['state']} {one['dominator']}" for name, one in result["tensors"].items())
    if result["float32"] is not None:
        written = onnx.load(result["model"])
        lines += [f"FP32 {name}: {reason}" for name, reason in sorted(result["float32"].items())]
        lines += [f"FP16 {operators(written)}; {constants(written.graph)}"]
    return lines


def _compared(judged, reference, case):
    """How far the INT8 model is from the float one."""
    accuracy, warned = _warned(
        lambda: trtint8.validate(judged, case.samples(1), reference=reference, progress=False)
    )
    lines = [f"{one.name} {decibels(one.sqnr_db)} cosine {number(one.cosine)}" for one in accuracy.outputs]
    lines += [f"{one.name}: {type(one.value).__name__} of {accuracy.samples}" for one in accuracy.measures]
    return ["== validate", *warned, *lines]


def _found(model):
    findings = trtint8.lint(model)
    return ["== lint", *(f"{one.rule} {one.node}: {one.message}" for one in findings)]


def _linted(path):
    """The findings on a model made elsewhere, and what it becomes."""
    status, out, _error = run(f"lint {path} --fix -o mended.onnx --json")
    assert status == 0
    found = json.loads(out)
    lines = _found(onnx.load(path))
    lines += [f"{name} {json.dumps(found[name])}" for name in ("quantized_nodes", "restored")]
    lines += [f"filled {name} {number(amax)}" for name, amax in sorted(found["filled"].items())]
    return [*lines, "== mended", *graph_lines(onnx.load("mended.onnx"))]


def _sensitivity(path, table, case):
    found = trtint8.measure_sensitivity(path, table, case.samples(1), tolerance_db=0, progress=False)
    lines = [
        f"{one.operator} {one.node}: only {decibels(one.only.sqnr_db)}, "
        f"without {decibels(one.without.sqnr_db)}, {len(one.suspects)} suspects"
        for one in found.layers
    ]
    return [
        "== sensitivity",
        f"quantized {decibels(found.quantized.sqnr_db)} of {found.samples}",
        *sorted(lines),
    ]


def _equalized(path, table, case):
    table.save("table.json")
    status, out, _error = run(
        f"quantize {path} table.json -o equalized.onnx --json --equalize {case.name}.npz"
    )
    result = json.loads(out)["equalization"] if status == 0 else {}
    return [
        "== equalize",
        f"status {status}",
        *json_lines(result, masked=("strength", "smallest", "largest")),
    ]
