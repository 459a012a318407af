"""Whether a table was made for a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from calibrators.display.counts import counted, enumerated
from calibrators.errors import TableError
from calibrators.user_warnings import warn_user

#: Names that TensorRT gives to tensors that a model does not have, such as weights and the product in a Gemm:
#: "(Unnamed Layer* 26) [Constant]_output" in caches of 8.6, "fc.weight_output" by the parser of later ones.
_TENSORRTS_OWN = re.compile(r"^\(Unnamed Layer\* |_output$")


def check_model(
    names: Collection[str],
    imported: Sequence[str],
    made_for: str | None,
    fingerprint: str,
    tensors: Iterable[str],
    known: Iterable[str],
) -> None:
    """Refuses a model that a table was not made for.

    Args:
        names: Names of the tensors that the table has ranges for.
        imported: Those of them whose range was not set by hand.
        made_for: The fingerprint of the model that the table was made for; None where it does not say.
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
    made_for_other = made_for is not None and made_for != fingerprint
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
            f"(fingerprint {made_for} then, {fingerprint} now); calibrate again"
        )
    if missing:
        raise TableError(
            f"the table has no range for {count}: {shown}; calibrate this model, or set them by hand"
        )
    if made_for is None:
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
