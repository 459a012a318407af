"""Networks that no library has, or only with much around them, each small."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def vision_transformer(layers: int) -> nn.Module:
    """Torchvision's ViT-B/16 with fewer layers."""
    from torchvision.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(224, 16, layers, 12, 768, 3072)
    return model


class _Encoder(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: torch.Tensor) -> Any:
        return self.encoder(features).last_hidden_state


def whisper_encoder() -> nn.Module:
    """Whisper's encoder with two layers, for two seconds of log-mel features."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        encoder_layers=2,
        d_model=128,
        encoder_attention_heads=4,
        encoder_ffn_dim=512,
        max_source_positions=100,
    )
    return _Encoder(WhisperEncoder(config))


class LatentDecoder(nn.Module):
    """Images of the latents of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import AutoencoderKL

        self.model = AutoencoderKL(
            block_out_channels=(32, 64),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=8,
        )

    def forward(self, x: torch.Tensor) -> Any:
        """Runs the network."""
        return self.model.decode(x, return_dict=False)[0]


class MelSpectrogram(nn.Module):
    """Sound to the logarithm of mel bands, with the Fourier transform as a convolution.

    Args:
        rate: Samples per second.
        window: Samples per frame.
        bands: Mel bands.
    """

    def __init__(self, rate: int = 16000, window: int = 400, bands: int = 40) -> None:
        super().__init__()
        bins = window // 2 + 1
        angles = 2 * torch.pi / window * torch.outer(torch.arange(bins), torch.arange(window))
        self.waves = nn.Conv1d(1, 2 * bins, window, window // 2, bias=False)
        waves = torch.cat([angles.cos(), angles.sin()]) * torch.hann_window(window)
        self.waves.weight = nn.Parameter(waves[:, None])
        top = 2595 * math.log10(1 + rate / 2 / 700)
        edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
        hertz = torch.linspace(0, rate / 2, bins)[:, None]
        rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
        self.mel = nn.Parameter(torch.minimum(rising, falling).clamp(min=0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        real, imaginary = self.waves(x[:, None]).chunk(2, 1)
        power = (real**2 + imaginary**2).transpose(1, 2)
        return (power @ self.mel + 1e-6).log()


def _block(wide: int, channels: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.SiLU()
    )


class _Split(nn.Module):
    """A stage that splits channels, runs bottlenecks on one half, and joins all parts."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = nn.Conv2d(channels, channels, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(_block(half, half), _block(half, half)) for _ in range(depth)
        )
        self.last = nn.Conv2d(channels + depth * half, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """A detector with a split-and-join backbone, pyramid pooling, an upward path and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _Split(32, 1))
        self.middle = nn.Sequential(_block(32, 64, 2), _Split(64, 2))
        self.deep = nn.Sequential(_block(64, 128, 2), _Split(128, 1))
        self.reduce, self.join = nn.Conv2d(128, 64, 1), nn.Conv2d(256, 128, 1)
        self.up = nn.Sequential(nn.Conv2d(128, 64, 1), _Split(64, 1))
        self.heads = nn.ModuleList(nn.Sequential(_block(c, 64), nn.Conv2d(64, 144, 1)) for c in (64, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        middle = self.middle(self.stem(x))
        deep = self.reduce(self.deep(middle))
        pooled = [deep]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        deep = self.join(torch.cat(pooled, 1))
        up = functional.interpolate(self.reduce(deep), scale_factor=2.0)
        levels = [self.heads[0](self.up(torch.cat([up, middle], 1))), self.heads[1](deep)]
        flat = torch.cat([level.flatten(2) for level in levels], 2)
        boxes, scores = flat.split((64, 80), 1)
        bins = boxes.view(boxes.shape[0], 4, 16, -1).softmax(2)
        distances = (bins * torch.arange(16.0).view(1, 1, 16, 1)).sum(2)
        return torch.cat([distances, scores.sigmoid()], 1)


class UNet(nn.Module):
    """Two levels down by pooling and up by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 16), _block(16, 32), _block(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = nn.ModuleList([_block(64, 32), _block(32, 16)])
        self.last = nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.down[2](functional.max_pool2d(second, 2))
        for up, join, skip in zip(self.up, self.join, (second, first), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.last(x)


class SuperResolution(nn.Module):
    """Residual convolutions and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))
        self.last = nn.Conv2d(32, 12, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        found = self.first(x)
        for conv in self.body:
            found = found + functional.leaky_relu(conv(found), 0.2)
        return functional.pixel_shuffle(self.last(found), 2)


class Recurrent(nn.Module):
    """A recurrent layer in both directions and a classifier of its last state."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer = layer(32, 64, batch_first=True, bidirectional=True)
        self.last = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        return self.last(self.layer(x)[0][:, -1])


class TemporalConvolutions(nn.Module):
    """Dilated convolutions along one axis with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(16, 32, 1)
        self.body = nn.ModuleList(nn.Conv1d(32, 32, 3, padding=d, dilation=d) for d in (1, 2, 4, 8))
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        x = self.first(x)
        for conv in self.body:
            x = x + conv(x).relu()
        return self.last(x.mean(2))


class Autoencoder(nn.Module):
    """Strided convolutions, a bottleneck, and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.middle = nn.Sequential(nn.Linear(2048, 64), nn.Linear(64, 2048))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        return self.decoder(self.middle(self.encoder(x)).view(-1, 32, 8, 8))


class EinsumAttention(nn.Module):
    """Attention whose products are Einsum with upper-case letters."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.projection = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        q, k, v = (part.unflatten(2, (4, 32)) for part in self.qkv(x).chunk(3, 2))
        weights = (torch.einsum("BIHD,BJHD->BHIJ", q, k) / 32**0.5).softmax(3)
        return self.projection(torch.einsum("BHIJ,BJHD->BIHD", weights, v).flatten(2))


class GroupedQueryAttention(nn.Module):
    """Attention with four heads of queries and two of keys and values, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.projection = nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        q = self.q(x).unflatten(2, (4, 32)).transpose(1, 2)
        k, v = (part.unflatten(2, (2, 32)).transpose(1, 2) for part in self.kv(x).chunk(2, 2))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(found.transpose(1, 2).flatten(2))


def perceptron() -> nn.Module:
    """Linear layers with GELU."""
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
