"""A network for reading text, which a package brings, and pictures of lines of text for it."""

from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

OUTPUT = Path("example_output")

#: The height that the network was made for, and a width for twenty letters.
SIZE = 48, 320


def line(words: list[str], random: np.random.Generator) -> np.ndarray:
    """Some words of a text, as a scanner may see them: float32 from -1 to 1, (3, height, width)."""
    height, width = SIZE
    paper, ink = random.integers(180, 256), random.integers(0, 90)
    picture = Image.new("RGB", (width, height), (paper,) * 3)
    font = ImageFont.load_default(int(random.integers(20, 34)))
    start = random.integers(0, len(words) - 20)
    text = words[start]
    for word in words[start + 1 : start + 20]:
        if font.getlength(f"{text} {word}") > width - 12:
            break
        text = f"{text} {word}"
    ImageDraw.Draw(picture).text((6, 5), text, (ink,) * 3, font)
    turned = picture.rotate(random.uniform(-1, 1), Image.Resampling.BICUBIC, fillcolor=(paper,) * 3)
    seen = turned.filter(ImageFilter.GaussianBlur(random.uniform(0, 1)))
    noisy = np.asarray(seen) + random.normal(0, 6, (height, width, 3))
    return np.float32(noisy.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1)


def main() -> None:
    """Writes the network, and lines of Python's documentation to calibrate with and to judge by."""
    package = find_spec("rapidocr_onnxruntime")
    if package is None:
        raise SystemExit("run: pip install rapidocr-onnxruntime")
    OUTPUT.mkdir(exist_ok=True)
    network = onnx.load(Path(package.origin).parent / "models/ch_PP-OCRv4_rec_infer.onnx")
    for dimension, size in zip(network.graph.input[0].type.tensor_type.shape.dim[2:], SIZE, strict=True):
        dimension.dim_value = size
    onnx.save(network, OUTPUT / "reader.onnx")
    words = " ".join(topics.values()).replace("*", "").replace('"', "").split()
    random = np.random.default_rng(0)
    for name, count in {"calibration": 64, "heldout": 256}.items():
        np.savez(OUTPUT / f"{name}.npz", x=np.stack([line(words, random) for _ in range(count)]))


if __name__ == "__main__":
    main()
