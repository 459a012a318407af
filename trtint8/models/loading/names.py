"""Checks that the names in a model are text: protobuf hands on as bytes what is not UTF-8."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.message import Message

from calibrators.errors import ModelError


def check_names(model: onnx.ModelProto, name: str) -> None:
    """Refuses a model with a name that is no text.

    Args:
        model: The model. Of its constant tensors the values are not looked at.
        name: What to call the model in messages.

    Raises:
        ModelError: A name of a node, a tensor, an operator or anything else is not UTF-8.
    """
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            _check(message.name, name)
            _check(message.doc_string, name)
            waiting.extend(message.external_data)
            continue
        for kind, value in message.ListFields():
            if kind.message_type is not None:
                waiting.extend([value] if isinstance(value, Message) else value)
            elif kind.type == kind.TYPE_STRING:
                for text in [value] if isinstance(value, (str, bytes)) else value:
                    _check(text, name)


def _check(text: str | bytes, name: str) -> None:
    if isinstance(text, bytes):
        raise ModelError(f"'{name}' holds the name {text[:80]!r}, which is not UTF-8; export it again")
