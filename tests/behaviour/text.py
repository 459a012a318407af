"""Results as lines of text, and the comparison of such lines, in which numbers may differ by a little."""

import difflib
import json
import math
import re

#: How far numbers may be apart: processors, and versions of ONNX Runtime, round differently, and INT8 turns
#: the least difference into a step where a value lies between two.
_RELATIVE, _ABSOLUTE = 0.02, 2e-6

#: The same for ratios to noise, which few values decide in networks as small as these.
_NOISE = re.compile(r" dB\b|sqnr_db|max_error")
_NOISE_RELATIVE = 0.06

#: A number with a point or an exponent, which stands by itself. Others are counts, which are exact.
_NUMBER = re.compile(r"(?<![\w./-])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.]*\w)")

#: Decibels above which noise is that of float32.
_NO_NOISE = 90

_HASH = re.compile(r"\b[0-9a-f]{32,}\b")

#: What is another on every machine, or with every version of a package, by the name of its field.
_MASKED = re.compile(
    r"(.*_)?(fingerprint|sha256|seconds|versions?|created_by|bytes|ms|per_second)|data|samples_per"
)


def number(value):
    """A float with four digits."""
    value = float(value)
    return str(value) if not math.isfinite(value) else repr(float(f"{value:.4g}"))


def decibels(value):
    """A ratio to noise."""
    return "no noise" if value > _NO_NOISE else f"{number(value)} dB"


def json_lines(value, path="", masked=()):
    """A JSON value as one line per number or text, and one per element of a list of objects.

    Args:
        value: The value.
        path: Where it stands, like ``outputs.name``.
        masked: Names of fields of which only types are shown, beside those that differ between machines.
    """
    if isinstance(value, dict) and value and not _hidden(path.rsplit(".", 1)[-1], masked):
        return [
            line
            for key, one in sorted(value.items())
            for line in json_lines(one, f"{path}.{key}" if path else key, masked)
        ]
    if (
        isinstance(value, list)
        and any(isinstance(one, (dict, list)) for one in value)
        and not _hidden(path.rsplit(".", 1)[-1], masked)
    ):
        return [f"{path}[{index}]: {_compact(one, masked)}" for index, one in enumerate(value)]
    return [f"{path}: {_field(path.rsplit('.', 1)[-1], value, masked)}"]


def _field(name, value, masked):
    """The value of a field, or its types where it is hidden."""
    if name == "seconds_left":  # how far a fast run has come by then depends on the machine
        return "float | NoneType"
    if _hidden(name, masked):
        return _types(value)
    if name in ("sqnr_db", "value") and isinstance(value, float) and value > _NO_NOISE:
        return "no noise"
    return _compact(value, masked)


def _hidden(name, masked):
    return name in masked or _MASKED.fullmatch(name)


def _compact(value, masked):
    if isinstance(value, dict):
        inner = (f"{key} {_field(key, one, masked)}" for key, one in sorted(value.items()))
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_compact(one, masked) for one in value) + "]"
    if isinstance(value, float):
        return number(value)
    return _HASH.sub("hash", json.dumps(value, ensure_ascii=False))


def _types(value):
    """The types in a value, with what the elements of a list have in common."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_types(one)}" for key, one in sorted(value.items())) + "}"
    if isinstance(value, list):
        if value and all(isinstance(one, dict) for one in value):
            keys = sorted({key for one in value for key in one})
            every = {key: [one[key] for one in value if key in one] for key in keys}
            return "[{" + ", ".join(f"{key} {_merged(ones)}" for key, ones in every.items()) + "}]"
        return f"[{_merged(value)}]"
    return type(value).__name__


def _merged(values):
    if values and all(isinstance(one, list) for one in values):
        return _types([one for inner in values for one in inner])
    return " or ".join(sorted({_types(one) for one in values}))


def difference(expected, found):
    """What was found and not expected, as a short unified diff; empty where both say the same.

    Args:
        expected: The lines of the file.
        found: The lines of now.

    Returns:
        The lines of the diff, with those of ``expected`` in place of those that differ by rounding.
    """
    pairs = difflib.SequenceMatcher(
        None, *([_NUMBER.sub("#", one) for one in lines] for lines in (expected, found)), autojunk=False
    )
    rounded = list(found)
    for tag, low, high, start, _stop in pairs.get_opcodes():
        if tag == "equal":
            for offset, line in enumerate(expected[low:high]):
                if _near(line, found[start + offset]):
                    rounded[start + offset] = line
    return list(difflib.unified_diff(expected, rounded, "expected", "found", n=1, lineterm=""))


def _near(expected, found):
    relative = _NOISE_RELATIVE if _NOISE.search(expected) else _RELATIVE
    return all(
        math.isclose(float(a), float(b), rel_tol=relative, abs_tol=_ABSOLUTE)
        for a, b in zip(_NUMBER.findall(expected), _NUMBER.findall(found), strict=True)
    )
