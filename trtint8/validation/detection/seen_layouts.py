"""How outputs hold detections, by the first samples that show it.

The values of a single image may look like another layout than the one that all images have: the size of one
large object in its middle is no less than its centre, as is the second corner of a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8.validation.batch import ArrayForm, BatchForm, Outputs
from trtint8.validation.detection.rows import holds_rows

#: So many samples are looked at before the first batch is measured.
LOOKED_AT = 16


class SeenLayouts:
    """The layouts that were seen so far."""

    def __init__(self) -> None:
        self._seen: dict[str, ArrayForm] = {}

    def look(self, batches: Sequence[Outputs]) -> None:
        """Notes the layouts that several batches show together.

        Args:
            batches: The reference's outputs for each batch; one or more.
        """
        together = {name: _joined([outputs[name] for outputs in batches]) for name in batches[0]}
        self._note(BatchForm.of(together, None, 0))

    def applied_to(self, form: BatchForm) -> BatchForm:
        """The form of a batch, with the layouts that others before it have shown; notes what it shows."""
        self._note(form)
        return form.with_layouts(self._seen)

    def _note(self, form: BatchForm) -> None:
        for name, output in form.outputs.items():
            if output.holds_rows:
                self._seen.setdefault(name, output)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One output for all batches where it has the shape that it has where it holds rows first."""
    first = next((array for array in arrays if holds_rows(array)), None)
    if first is None:
        return arrays[0]
    return np.concatenate([array for array in arrays if array.shape[1:] == first.shape[1:]])
