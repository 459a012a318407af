"""Hostile documents and bytes: values that readers may not expect, and real files that were changed."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

#: Values of every type of JSON, at and beyond the limits of what readers expect.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 127, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, -0.0, 0.5,
    1e-320, 5e-324, 1e308, -1e308, 1e39, math.inf, -math.inf, math.nan, "", " ", "0", "1e400", "nan", "inf",
    "-inf", "x", "../../x", "a: b", "#a", "a\nb", "a\x00b", "\x0b", "\x1b[2J", "\u2028", "\ud800", "é" * 40,
    "a" * 5000, "8.6", "1.2.3", "a.b", "FP32", "Int8", "images", [], {}, [[]], [None], [0, 1], [1.5, "x"],
    {"": 0}, {"a": {"b": []}}, {"name": "x"}, [[1, 2], [3]], [{}] * 3, [-1] * 20, "7" * 400, [[[[[[]]]]]],
)  # fmt: skip

#: Any small document.
DOCUMENTS = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

#: Pieces of text that readers of lines and of binary forms treat in a way of their own.
TOKENS: tuple[bytes, ...] = (
    b"\n", b"\r", b"\x00", b"\xff", b"\x0b", b"\x0c", b"\x1c", b"\x1e", b"\x85", b"\xe2\x80\xa8", b":", b": ",
    b"\xef\xbb\xbf", b",", b"#", b'"', b"'", b"{", b"[", b"]", b"}", b"-", b"nan", b"inf", b"-inf", b"1e999",
    b"0x10", b"1_0", b"99999999999999999999999", b"NaN", b"Infinity", b"\\ud800", b"null",
    b"\xf0\x9f\x92\xa9",
    b"\xd9\xa3", b"PK\x03\x04", b"\x93NUMPY", b"(1, 3", b"descr", b"'|O'", b"\x7f" + b"\xff" * 7, b"TRT-",
    b"\xff" * 8, b"\x00" * 16, b"A" * 300, b"[" * 3000, b"\xc2\xa0", b"=", b"x" * 3,
)  # fmt: skip

#: Numbers whose bytes take the place of others in binary files.
_WORDS = (0, 1, 2, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1)


def change_document(chance: random.Random, document: Any, replacement: Any) -> Any:
    """A copy of a document with one value replaced, removed, doubled or moved under another name."""
    paths = list(_paths(document))
    copy = json.loads(json.dumps(document))
    if len(paths) == 1:
        return replacement
    *outer, last = chance.choice(paths[1:])
    holder = copy
    for key in outer:
        holder = holder[key]
    kind = chance.randrange(10)
    if kind < 6:
        holder[last] = replacement
    elif kind == 6:
        del holder[last]
    elif kind == 7 and isinstance(holder, list):
        holder.insert(last, replacement)
    elif isinstance(holder, dict):
        key = chance.choice([value for value in VALUES if isinstance(value, str)] + list(holder))
        holder[key] = holder.pop(last) if kind == 8 else replacement
    else:
        holder[last] = [holder[last]] * chance.choice((2, 100))
    return copy


def _paths(document: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [before]
    entries: Any = ()
    if isinstance(document, dict):
        entries = document.items()
    elif isinstance(document, list):
        entries = enumerate(document[:20])
    for key, value in entries:
        found += _paths(value, (*before, key))
    return found


def change_bytes(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A file's content after changes: bytes and words replaced, parts cut out, doubled or from elsewhere."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 8))):
        data = _changed_once(chance, data, others)
    return data


def _changed_once(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice((1, 2, 4, 8, 20, 100, len(data))))
    kind = chance.randrange(9)
    if kind == 0 and data:  # a bit
        start = min(start, len(data) - 1)
        return data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :]
    if kind == 1:  # any bytes
        size = chance.choice((1, 1, 2, 4, 8))
        return data[:start] + chance.randbytes(size) + data[start + size :]
    if kind == 2:  # a number of some size
        size, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
        word = (chance.choice(_WORDS) % (1 << 8 * size)).to_bytes(size, order)
        return data[:start] + word + data[start + size :]
    if kind == 3:  # the end is missing
        return data[:start]
    if kind == 4:  # a part is missing
        return data[:start] + data[stop:]
    if kind == 5:  # a part stands twice
        return data[:stop] + data[start:stop] * chance.choice((1, 1, 30)) + data[stop:]
    if kind == 6:  # a part of another file
        other = chance.choice(others)
        begin = chance.randrange(len(other) + 1)
        return data[:start] + other[begin : begin + chance.choice((4, 40, 400))] + data[stop:]
    token = chance.choice(TOKENS)
    return data[:start] + token + data[start if kind == 7 else min(len(data), start + len(token)) :]


#: Texts in models: names that others have, names that cannot be printed, and numbers.
_TEXTS = (
    "", "images", "first_out", "x", "\x1b[2J", "a\nb", "Conv", "Gemm", "../x", "N", "0", "4", "-1",
    "com.microsoft", "1e3", "99999999999999999999", "weights.bin", "m.onnx", "/dev/zero", "offset",
    "location", "length", "link.bin", "../secret.bin", "sub/link.bin", "own", "Inner", "Outer", "a", "b", "h",
)  # fmt: skip


def change_message(chance: random.Random, message: Any) -> None:
    """Exchanges a field of a protobuf message, at any depth, by what its type allows."""
    places = list(_fields(message))
    for _ in range(chance.choice((1, 1, 2, 4))):
        holder, field = chance.choice(places)
        _change_field(chance, holder, field, [other for other, _ in places])


def _fields(message: Any) -> list[tuple[Any, Any]]:
    found = [(message, field) for field in message.DESCRIPTOR.fields]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if isinstance(getattr(message, field.name), Sequence) else [value]:
                found += _fields(inner)
    return found


def _change_field(chance: random.Random, holder: Any, field: Any, others: list[Any]) -> None:
    present = getattr(holder, field.name)
    if isinstance(present, Sequence) and not isinstance(present, (str, bytes)):  # repeated
        kind = chance.randrange(3)
        if kind == 0 and len(present):
            del present[chance.randrange(len(present))]
        elif field.message_type is not None:
            same = [other for other in others if other.DESCRIPTOR is field.message_type]
            present.add().CopyFrom(
                copy.deepcopy(chance.choice(same)) if same else field.message_type._concrete_class()
            )
        elif kind == 1 and len(present):
            present[chance.randrange(len(present))] = _scalar(chance, field)
        else:
            present.append(_scalar(chance, field))
    elif isinstance(present, bytes) and len(present) >= 8 and chance.randrange(4):
        start = 4 * chance.randrange(len(present) // 4)
        word = chance.choice(_WORDS).to_bytes(8, "little")[: len(present) - start]
        setattr(holder, field.name, present[:start] + word + present[start + len(word) :])
    elif chance.randrange(3) == 0 or field.message_type is not None:
        holder.ClearField(field.name)
    else:
        setattr(holder, field.name, _scalar(chance, field))


def _scalar(chance: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        return chance.choice(_TEXTS).encode() if field.type == field.TYPE_BYTES else chance.choice(_TEXTS)
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return chance.choice((0.0, -1.0, 1e-38, 1e38, math.nan, math.inf))
    if kind == field.CPPTYPE_ENUM:
        return chance.choice([value.number for value in field.enum_type.values])
    numbers = [0, 1, 2, 3, 4, 7, 16, 100_000, (1 << 31) - 1]
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
        numbers += [-1, -2, -(1 << 31)]
    if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        numbers += [1 << 40, (1 << 63) - 1]
    return chance.choice(numbers)
