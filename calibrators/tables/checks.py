"""Checks of the names and the ranges that a calibration table is made of.

Whether a table was made for a model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from calibrators import records
from calibrators.checks import is_number, warn_user
from calibrators.errors import Argument, TableError, advice, counted, enumerated

#: The largest range whose scale, of symmetric INT8, is a float32.
_LARGEST_AMAX = 127 * float(np.finfo(np.float32).max)


def check_names(names: Iterable[object]) -> None:
    """Refuses what is no text that files can hold.

    Args:
        names: Names of tensors and methods.

    Raises:
        TableError: One is no text, or holds half of a character.
    """
    for name in names:
        if not isinstance(name, str):
            raise TableError(f"the name {name!r:.80} is no text; give names of tensors")
        if not _is_unicode(name):
            raise TableError(f"the name {name!r:.80} holds a lone surrogate, which is no text; correct it")


def check_lines(texts: Iterable[object]) -> None:
    """Refuses fingerprints, names of tools and versions that a table's file does not hold.

    Args:
        texts: All of them.

    Raises:
        TableError: One is no text of the form of :data:`calibrators.records.Line`.
    """
    for text in texts:
        if not records.is_line(text):
            raise TableError(
                f"the provenance of a table holds {text!r:.80}, which is no text of one line and at most 200 "
                "characters; give the fingerprint of the model or of the samples, or a tool and its version"
            )


def check_ranges(ranges: Mapping[str, object]) -> None:
    """Refuses ranges of which one is no number that a table holds: not negative, and with a float32 scale.

    Raises:
        TableError: There is one.
    """
    bad = {name: value for name, value in ranges.items() if not _is_range(value)}
    _refuse(bad, "a range must be a number that is not negative, and no larger than a float32 holds")


def check_ranges_by_hand(ranges: Mapping[str, object]) -> None:
    """Refuses the same, and zero, which nobody sets by hand, with what is zero as a float32.

    Raises:
        TableError: There is one.
    """
    bad = {name: value for name, value in ranges.items() if not (_is_range(value) and _has_scale(value))}
    _refuse(
        bad, "a range set by hand must be a positive number, neither too small nor too large for a float32"
    )


def _refuse(bad: Mapping[str, object], rule: str) -> None:
    if bad:
        shown = enumerated(f"'{name}' ({value!r:.80})" for name, value in bad.items())
        raise TableError(f"{rule}: {shown}")


def _is_range(value: object) -> bool:
    try:
        return is_number(value) and 0 <= float(value) <= _LARGEST_AMAX  # type: ignore[arg-type]
    except OverflowError:  # an integer larger than any float
        return False


def _has_scale(amax: object) -> bool:
    """Whether the scale of symmetric INT8 is more than 0 as a float32."""
    return bool(np.float32(float(amax) / 127) > 0)  # type: ignore[arg-type]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


#: Names that TensorRT gives to tensors that a model does not have, such as weights and the product in a Gemm:
#: "(Unnamed Layer* 26) [Constant]_output" in caches of 8.6, "fc.weight_output" by the parser of later ones.
_TENSORRTS_OWN = re.compile(r"^\(Unnamed Layer\* |_output$")


def check_model(
    names: Collection[str],
    imported: Sequence[str],
    made_for: tuple[str | None, str | None],
    fingerprint: str,
    tensors: Iterable[str],
    known: Iterable[str],
) -> None:
    """Refuses a model that a table was not made for.

    Args:
        names: Names of the tensors that the table has ranges for.
        imported: Those of them whose range was not set by hand.
        made_for: The fingerprints of the model that the table was made for, and of the model that it was cut
            from; None where the table does not say.
        fingerprint: The model's fingerprint.
        tensors: Names of the tensors whose ranges are needed.
        known: Names of all tensors of the model, with which the table's names are compared where the table
            was made for another one or does not say for which; without any, nothing is compared.

    Raises:
        TableError: The table was made for another model, is stale, or lacks a range.

    Warns:
        UserWarning: The table does not say which model it was made for, and has names of other tensors.
    """
    missing = [name for name in tensors if name not in names]
    shown = enumerated(f"'{name}'" for name in missing)
    count = counted(len(missing), "tensor")
    model, cut_from = made_for
    made_for_other = model is not None and fingerprint not in made_for
    if made_for_other and missing:
        raise TableError(
            f"the table was made for another model: it has no range for {shown}; calibrate this one"
        )
    of_model = frozenset(known)
    strange = [name for name in names if of_model and name not in of_model]
    if made_for_other and strange:
        raise TableError(
            f"the table was made for another model: {len(strange)} of its {counted(len(names), 'tensor')} "
            f"('{strange[0]}' among them) are not in this one; calibrate this one"
        )
    if made_for_other:
        state = (
            "is stale: the model has the same tensors but its"
            if of_model
            else "is stale, or of another model:"
        )
        raise TableError(
            f"the table {state} weights or nodes have changed since it was calibrated "
            f"(fingerprint {model} then, {fingerprint} now); calibrate again"
        )
    if missing:
        what, instead = "the table", "calibrate this model"
        if cut_from == fingerprint:
            what = "the table is of the model up to a cut, and"
            same = f"cut the model at the same tensors ({Argument('cut_at')})"
            instead = advice(same, "calibrate the whole model")
        elif cut_from is not None:
            same = f"calibrate the model up to the same cut ({Argument('cut_at')})"
            instead = advice(same, instead)
        raise TableError(f"{what} has no range for {count}: {shown}; {instead}, or set them by hand")
    if model is None:
        _compare_names(len(names), imported, of_model)


def _compare_names(count: int, imported: Sequence[str], known: frozenset[str]) -> None:
    """Warns of tensors that the model lacks, and refuses a table without a single tensor of the model."""
    strange = [name for name in imported if name not in known]
    if not (known and strange):
        return
    if len(strange) == count:
        raise TableError(
            f"none of the table's {counted(len(strange), 'tensor')} ('{strange[0]}' among them) is in the "
            "model; give the table of this model, or calibrate it"
        )
    strange = [name for name in strange if not _TENSORRTS_OWN.search(name)]
    if not strange:
        return
    warn_user(
        f"{len(strange)} of the table's {counted(len(imported), 'tensor')} ('{strange[0]}' among them) are "
        "not in the model, and the table does not say which model it was made for; make sure that it was "
        "this one"
    )
