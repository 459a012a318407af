"""From the arrays that a data source holds to the feed dict that a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import (
    FeedDict,
    check_dtype,
    check_names,
    is_float,
    is_image_batch,
    listed,
    shape_text,
)
from calibrators.data.inputs import InputSpec
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError

#: The key that holds labels, which are never fed (unless the model has an input of this name).
LABELS = "labels"


@dataclass(frozen=True)
class Binding:
    """Which array goes into which input, and how it gets there.

    Attributes:
        inputs: The model's inputs.
        preprocessing: Applied to uint8 images on their way to a floating-point input; None feeds as is.
    """

    inputs: Sequence[InputSpec]
    preprocessing: Preprocessing | None = None

    def only_input(self, what: str) -> InputSpec:
        """The model's single input, for data that names none.

        Args:
            what: The data, for the message.

        Raises:
            CalibrationDataError: The model has several inputs.
        """
        if len(self.inputs) != 1:
            raise CalibrationDataError(
                f"{what} names no input and the model has {len(self.inputs)}: {listed(self.inputs)}; "
                "pass a dict or .npz with one array for each of these names"
            )
        return self.inputs[0]

    def split(self, arrays: Mapping[str, Any]) -> tuple[FeedDict, NDArray[Any] | None]:
        """Separates what is fed from the labels, and names it after the model's inputs.

        Args:
            arrays: Input name to array; ``labels`` are labels. With preprocessing, a model with one input
                takes the only array whatever its key.

        Returns:
            The arrays by input name, and the labels where there are any.

        Raises:
            CalibrationDataError: Names do not match the inputs, or a value is no NumPy array.
        """
        names = {spec.name for spec in self.inputs}
        fed = {name: array for name, array in arrays.items() if name != LABELS or name in names}
        if self.preprocessing is not None and len(fed) == len(self.inputs) == 1:
            fed = {self.inputs[0].name: next(iter(fed.values()))}
        check_names(fed, self.inputs)
        for name, array in fed.items():
            if not isinstance(array, np.ndarray):
                raise CalibrationDataError(
                    f"the data for input '{name}' is a {type(array).__name__}; convert it to a NumPy array"
                )
        return fed, None if LABELS in names else arrays.get(LABELS)

    def check(self, feed: FeedDict) -> None:
        """Refuses element types that the model does not take and preprocessing that does not apply.

        Args:
            feed: Arrays by input name, with their batch axis, not yet preprocessed.

        Raises:
            CalibrationDataError: Says which input, and the cast or the preprocessing to declare.
        """
        images = [name for name, array in feed.items() if is_image_batch(array)]
        if self.preprocessing is not None and not images:
            found = ", ".join(
                f"'{name}' is {a.dtype} of shape {shape_text(a.shape)}" for name, a in feed.items()
            )
            raise CalibrationDataError(
                f"preprocessing was given but the data is not uint8 images of shape (N, H, W, C): {found}; "
                "leave the preprocessing out or pass the raw images"
            )
        for spec in self.inputs:
            if self.preprocessing is None or spec.name not in images:
                check_dtype(feed[spec.name], spec)
            elif not is_float(spec.dtype):
                raise CalibrationDataError(
                    f"preprocessing makes floating-point images but input '{spec.name}' takes {spec.dtype}; "
                    "leave the preprocessing out"
                )

    def prepare(self, feed: FeedDict) -> FeedDict:
        """Preprocesses the images of a checked feed and makes every array C-contiguous.

        Args:
            feed: Arrays by input name, as :meth:`check` accepts them.

        Returns:
            What the model is fed. Preprocessed images get the input's floating-point type.
        """
        prepared = {}
        for spec in self.inputs:
            array = feed[spec.name]
            if self.preprocessing is not None and is_image_batch(array):
                array = self.preprocessing(array).astype(spec.dtype, copy=False)
            prepared[spec.name] = np.asarray(array, order="C")
        return prepared
