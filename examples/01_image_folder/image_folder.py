"""An engine from a folder of images, with a file that describes the preprocessing."""

from pathlib import Path

from PIL import Image

import trtint8
from trtint8.data import DEMO_MODEL, PIXEL_MEAN, PIXEL_STD, load_digits_split

OUTPUT = Path("example_output")

PREPROCESSING = f"""\
scale = "1/255"
mean = [{PIXEL_MEAN}]
std = [{PIXEL_STD}]
resize = [8, 8]
"""


def write_images(folder: Path, images, labels, count: int) -> None:
    """Writes images as PNG files, in one folder per class."""
    for index, (image, label) in enumerate(zip(images[:count], labels, strict=False)):
        path = folder / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        levels = (image[0] * PIXEL_STD + PIXEL_MEAN) * 255
        Image.fromarray(levels.round().clip(0, 255).astype("uint8")).resize((16, 16)).save(path)


def main() -> None:
    """Writes the images, builds the engine and validates it."""
    OUTPUT.mkdir(exist_ok=True)
    digits = load_digits_split()
    write_images(OUTPUT / "calibration", digits.train_images, digits.train_labels, 300)
    write_images(OUTPUT / "heldout", digits.heldout_images, digits.heldout_labels, 300)
    (OUTPUT / "preprocess.toml").write_text(PREPROCESSING)

    preprocessing = trtint8.Preprocessing.load(OUTPUT / "preprocess.toml")
    # INT8 gains nothing in a network as small as this one. Without keep_int8 its layers would stay in FP16.
    result = trtint8.build_int8_engine(
        DEMO_MODEL,
        OUTPUT / "calibration",
        OUTPUT / "digits.engine",
        keep_int8=["*"],
        preprocessing=preprocessing,
    )
    accuracy = trtint8.validate(
        result.engine, OUTPUT / "heldout", reference=DEMO_MODEL, preprocessing=preprocessing
    )
    print("weighted layers in INT8: {} of {}".format(*result.info.int8_layers))
    print(f"top-1: FP32 {accuracy.reference_top1.value:.2%}, INT8 {accuracy.top1.value:.2%}")


if __name__ == "__main__":
    main()
