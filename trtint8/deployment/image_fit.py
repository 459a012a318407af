"""Whether an engine takes what preprocessing makes of raw images, as far as that is certain."""

from __future__ import annotations

from calibrators.data.images.files import MOST_PIXELS
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, CalibrationDataError
from trtint8.engine.file import EngineInfo, TensorSpec
from trtint8.engine.profiles import ShapeRange


def check_images_fit(info: EngineInfo, spec: TensorSpec | None, wanted: Preprocessing) -> None:
    """Refuses preprocessing that makes what an engine does not take, whatever the raw images are.

    Args:
        info: What is known of the engine.
        spec: Its input that takes images; None where there is none.
        wanted: The preprocessing.

    Raises:
        CalibrationDataError: No input takes images in that layout, the number of values for ``mean`` or
            ``std`` is not that of the channels, the crop is larger than what it is cut from, or the engine
            takes no images of the size that is made.
    """
    channels = spec.shape[wanted.layout.index("C")] if spec is not None else None
    if spec is None or not spec.dtype.startswith(("float", "bfloat")) or channels not in (1, 3):
        inputs = ", ".join(
            f"'{one.name}' ({one.dtype}, {shape_text(one.shape, ' x ')})" for one in info.inputs
        )
        raise CalibrationDataError(
            f"preprocessing makes floating-point images in {wanted.layout} with 1 or 3 channels, and "
            f"no input of the engine takes them: {inputs}; leave the preprocessing out or correct its layout"
        )
    for name, values in (("mean", wanted.mean), ("std", wanted.std)):
        if len(values) not in (1, channels):
            raise CalibrationDataError(
                f"{Argument('preprocessing')} has {len(values)} values for {name}, and the engine takes "
                f"'{spec.name}' with {channels} channel; give one value"
            )
    _check_crop(wanted)
    _check_size(info, spec, wanted)


def _check_crop(wanted: Preprocessing) -> None:
    if wanted.crop is None or wanted.resize is None:
        return
    if isinstance(wanted.resize, tuple):
        wanted.prepared_size(1, 1)  # which refuses a larger crop; images of all sizes become the same
    elif wanted.resize < min(wanted.crop):
        raise CalibrationDataError(
            f"preprocessing cannot crop {shape_text(wanted.crop)} (height x width) from images whose shorter "
            f"side is resized to {wanted.resize}; give a larger resize or a smaller crop"
        )


def _check_size(info: EngineInfo, spec: TensorSpec, wanted: Preprocessing) -> None:
    taken = _sizes_taken(info, spec, wanted.layout)
    if any(_may_make(wanted, heights, widths) for heights, widths in taken):
        return
    size = _size_made(wanted)
    made = f"of {shape_text(size)}" if size else f"whose shorter side is {wanted.resize}"
    sizes = " or ".join(_sizes_text(heights, widths) for heights, widths in taken)
    raise CalibrationDataError(
        f"preprocessing makes images {made}, and the engine takes '{spec.name}' of {sizes} (height x width); "
        "correct resize, crop or letterbox"
    )


def _size_made(wanted: Preprocessing) -> tuple[int, int] | None:
    """The height and width of all prepared images; None where these depend on the raw images."""
    size = wanted.letterbox or wanted.crop or wanted.resize
    return size if isinstance(size, tuple) else None


def _may_make(wanted: Preprocessing, heights: range, widths: range) -> bool:
    """Whether raw images of some size become images of one of these sizes."""
    size = _size_made(wanted)
    if size is not None:
        return size[0] in heights and size[1] in widths
    if not isinstance(wanted.resize, int):
        return True
    # One side gets this length, and the other one any from there on.
    shorter = wanted.resize
    return (shorter in heights and shorter < widths.stop) or (shorter in widths and shorter < heights.stop)


def _sizes_taken(info: EngineInfo, spec: TensorSpec, layout: str) -> list[tuple[range, range]]:
    """The heights and the widths that an input takes, for each profile of the engine."""
    height, width = layout.index("H"), layout.index("W")
    found = [profile.get(spec.name) for profile in info.profiles] or [None]
    return [(_lengths(spec, shapes, height), _lengths(spec, shapes, width)) for shapes in found]


def _lengths(spec: TensorSpec, shapes: ShapeRange | None, axis: int) -> range:
    size = spec.shape[axis]
    if isinstance(size, int):
        return range(size, size + 1)
    return range(1, MOST_PIXELS + 1) if shapes is None else range(shapes.min[axis], shapes.max[axis] + 1)


def _sizes_text(heights: range, widths: range) -> str:
    smallest = shape_text((heights.start, widths.start))
    largest = shape_text((heights.stop - 1, widths.stop - 1))
    return smallest if smallest == largest else f"{smallest} to {largest}"
