"""Writes the equations of Einsum in lower case, because TensorRT's parser refuses other letters."""

from __future__ import annotations

import string

import onnx_ir as ir


class LowerCaseEinsumPass(ir.passes.InPlacePass):
    """Gives every axis of an Einsum a lower-case letter; which one means nothing."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the equations that have upper-case letters."""
        changed = False
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            equation = node.attributes.get_string("equation") if node.op_type == "Einsum" else None
            if equation and (other := in_lower_case(equation)) != equation:
                node.attributes["equation"] = ir.AttrString("equation", other)
                changed = True
        return ir.passes.PassResult(model, changed)


def in_lower_case(equation: str) -> str:
    """The equation with a lower-case letter in place of each upper-case one; as it is with too many axes.

    Args:
        equation: Like ``BSD,DE->BSE``.
    """
    letters = {letter for letter in equation if letter.isascii() and letter.isalpha()}
    free = [letter for letter in string.ascii_lowercase if letter not in letters]
    upper = sorted(letter for letter in letters if letter.isupper())
    if len(upper) > len(free):
        return equation
    # The letter's own lower case where it is free, so that equations stay readable.
    chosen: dict[str, str | int | None] = {
        letter: letter.lower() for letter in upper if letter.lower() in free
    }
    rest = [letter for letter in free if letter not in chosen.values()]
    chosen |= dict(zip((letter for letter in upper if letter not in chosen), rest, strict=False))
    return equation.translate(str.maketrans(chosen))
