"""Networks of many architectures with random weights, each with inputs of the form that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zoo_bench import small_networks

#: One batch of inputs of that many samples, in the order of the module's arguments.
Inputs = Callable[[int], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Architecture:
    """A network.

    Attributes:
        make: Makes the module.
        inputs: Makes inputs.
        names: Names of the inputs.
    """

    make: Callable[[], nn.Module]
    inputs: Inputs
    names: tuple[str, ...] = ("x",)


def images(size: int, channels: int = 3) -> Inputs:
    """Normally distributed images, N x channels x size x size."""
    return lambda samples: (torch.randn(samples, channels, size, size),)


def features(*shape: int) -> Inputs:
    """Normally distributed values of that shape per sample."""
    return lambda samples: (torch.randn(samples, *shape),)


def tokens(length: int, vocabulary: int) -> Inputs:
    """Token ids and a mask in which the last quarter of every second sample is padding."""

    def make(samples: int) -> tuple[torch.Tensor, ...]:
        mask = torch.ones(samples, length, dtype=torch.int64)
        mask[::2, length - length // 4 :] = 0
        return torch.randint(0, vocabulary, (samples, length)), mask

    return make


def _pairs(samples: int) -> tuple[torch.Tensor, ...]:
    """Token ids, their mask, and the segments of two sentences each."""
    ids, mask = tokens(32, 1000)(samples)
    return ids, mask, (torch.arange(32) >= torch.randint(8, 20, (samples, 1))).long()


def _diffusion(samples: int) -> tuple[torch.Tensor, ...]:
    """Latents, steps, and embeddings of eight tokens."""
    latents, text = torch.randn(samples, 4, 16, 16), torch.randn(samples, 8, 64)
    return latents, torch.randint(0, 1000, (samples,)), text


class _Logits(nn.Module):
    """A model of transformers, torchvision or timm whose output is one tensor."""

    def __init__(self, model: nn.Module, key: str | None = None) -> None:
        super().__init__()
        self.model, self.key = model, key

    def forward(self, *inputs: torch.Tensor) -> Any:
        if len(inputs) == 2:
            found = self.model(input_ids=inputs[0], attention_mask=inputs[1])
        else:
            found = self.model(*inputs)
        return found[self.key] if self.key else found


def _torchvision(name: str, key: str | None = None, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
        return _Logits(model, key) if key else model

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model

    return make


def _transformers(model: str, config: str, key: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**options))
        return _Logits(made, key)

    return make


def _diffusion_unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return _Logits(model, "sample")


_BERT = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
_MODERN = {**_BERT, **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0)}
_MODERN |= dict.fromkeys(("eos_token_id", "sep_token_id"), 1)
_VIT = {**_BERT, "image_size": 112, "patch_size": 14}
_TEXT, _TEXT_NAMES = tokens(32, 1000), ("input_ids", "attention_mask")

#: Name to architecture.
ARCHITECTURES: dict[str, Architecture] = {
    **{
        name: Architecture(_torchvision(name), images(size))
        for name, size in {
            "alexnet": 224,
            "resnet18": 96,
            "resnet50": 96,
            "resnext50_32x4d": 64,
            "wide_resnet50_2": 64,
            "densenet121": 64,
            "squeezenet1_1": 96,
            "shufflenet_v2_x1_0": 96,
            "mobilenet_v2": 96,
            "mobilenet_v3_small": 96,
            "mnasnet0_5": 96,
            "efficientnet_b0": 96,
            "efficientnet_v2_s": 96,
            "regnet_y_400mf": 96,
            "convnext_tiny": 96,
        }.items()
    },
    "googlenet": Architecture(_torchvision("googlenet", aux_logits=False, init_weights=False), images(96)),
    "inception_v3": Architecture(
        _torchvision("inception_v3", aux_logits=False, init_weights=False), images(128)
    ),
    "swin_t": Architecture(_torchvision("swin_t"), images(112)),
    "vit_b_16, 4 layers": Architecture(lambda: small_networks.vision_transformer(layers=4), images(224)),
    "deeplabv3_mobilenet": Architecture(
        _torchvision("deeplabv3_mobilenet_v3_large", "out", weights_backbone=None), images(128)
    ),
    "lraspp_mobilenet": Architecture(
        _torchvision("lraspp_mobilenet_v3_large", "out", weights_backbone=None), images(128)
    ),
    "r3d_18": Architecture(_torchvision("r3d_18"), features(3, 8, 48, 48)),
    **{
        name: Architecture(_timm(name, **options), images(size))
        for name, size, options in (
            ("vit_tiny_patch16_224", 224, {}),
            ("deit_tiny_patch16_224", 224, {}),
            ("mixer_s32_224", 224, {}),
            ("repvgg_a0", 96, {}),
            ("ghostnet_100", 96, {}),
            ("levit_128s", 224, {}),
            ("poolformer_s12", 96, {}),
            ("mobilevit_xxs", 128, {}),
            ("edgenext_xx_small", 128, {}),
            ("efficientvit_b0", 128, {}),
            ("hrnet_w18_small", 96, {}),
            ("xcit_nano_12_p16_224", 224, {}),
            ("pvt_v2_b0", 128, {}),
            ("coat_tiny", 224, {}),
            ("nfnet_f0", 96, {}),
            ("convmixer_768_32", 96, {}),
        )
    },
    **{
        name: Architecture(_transformers(model, config, key, vocab_size=1000, **options), _TEXT, _TEXT_NAMES)
        for name, model, config, key, options in (
            ("bert, 2 layers", "BertModel", "BertConfig", "last_hidden_state", _BERT),
            ("roberta, 2 layers", "RobertaModel", "RobertaConfig", "last_hidden_state", _BERT),
            (
                "distilbert, 2 layers",
                "DistilBertModel",
                "DistilBertConfig",
                "last_hidden_state",
                {"n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 512},
            ),
            (
                "t5 encoder, 2 layers",
                "T5EncoderModel",
                "T5Config",
                "last_hidden_state",
                {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_kv": 32, "d_ff": 512},
            ),
            (
                "llama, 2 layers",
                "LlamaForCausalLM",
                "LlamaConfig",
                "logits",
                {**_BERT, "num_key_value_heads": 2, "use_cache": False},
            ),
            (
                "gpt2, 2 layers",
                "GPT2LMHeadModel",
                "GPT2Config",
                "logits",
                {"n_layer": 2, "n_embd": 128, "n_head": 4, "use_cache": False},
            ),
            (
                "qwen3, 2 layers",
                "Qwen3ForCausalLM",
                "Qwen3Config",
                "logits",
                {**_BERT, "num_key_value_heads": 2, "head_dim": 32, "use_cache": False},
            ),
            (
                "gemma 3, 2 layers",
                "Gemma3ForCausalLM",
                "Gemma3TextConfig",
                "logits",
                {**_BERT, "num_key_value_heads": 2, "head_dim": 32, "use_cache": False},
            ),
            (
                "mamba, 2 layers",
                "MambaForCausalLM",
                "MambaConfig",
                "logits",
                {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "use_cache": False},
            ),
            (
                "modernbert, 2 layers",
                "ModernBertModel",
                "ModernBertConfig",
                "last_hidden_state",
                _MODERN,
            ),
            (
                "deberta v2, 2 layers",
                "DebertaV2Model",
                "DebertaV2Config",
                "last_hidden_state",
                {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
            ),
            (
                "bart, 2 layers",
                "BartModel",
                "BartConfig",
                "last_hidden_state",
                {
                    "d_model": 128,
                    "encoder_layers": 1,
                    "decoder_layers": 1,
                    "encoder_attention_heads": 4,
                    "decoder_attention_heads": 4,
                    "encoder_ffn_dim": 512,
                    "decoder_ffn_dim": 512,
                    "use_cache": False,
                },
            ),
        )
    },
    "segformer_b0": Architecture(
        _transformers("SegformerForSemanticSegmentation", "SegformerConfig", "logits", num_labels=19),
        images(128),
    ),
    "dinov2, 2 layers": Architecture(
        _transformers("Dinov2Model", "Dinov2Config", "last_hidden_state", **_VIT), images(112)
    ),
    "swin v2, 4 layers": Architecture(
        _transformers(
            "Swinv2ForImageClassification",
            "Swinv2Config",
            "logits",
            image_size=64,
            embed_dim=48,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        images(64),
    ),
    "convnext v2": Architecture(
        _transformers(
            "ConvNextV2ForImageClassification",
            "ConvNextV2Config",
            "logits",
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 2, 1],
        ),
        images(96),
    ),
    "depth anything, 4 layers": Architecture(
        _transformers(
            "DepthAnythingForDepthEstimation",
            "DepthAnythingConfig",
            "predicted_depth",
            backbone_config={
                "model_type": "dinov2",
                **_VIT,
                "num_hidden_layers": 4,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
                "reshape_hidden_states": False,
            },
            reassemble_hidden_size=128,
            neck_hidden_sizes=[16, 32, 48, 64],
            fusion_hidden_size=32,
            head_hidden_size=16,
        ),
        images(112),
    ),
    "detr, 2 layers": Architecture(
        _transformers(
            "DetrForObjectDetection",
            "DetrConfig",
            "logits",
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config={"model_type": "resnet", "depths": [1, 1, 1, 1], "out_features": ["stage4"]},
            d_model=128,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=512,
            decoder_ffn_dim=512,
            num_queries=50,
        ),
        images(128),
    ),
    "whisper encoder, 2 layers": Architecture(lambda: small_networks.whisper_encoder(), features(80, 200)),
    "wav2vec2, 2 layers": Architecture(
        _transformers(
            "Wav2Vec2Model",
            "Wav2Vec2Config",
            "last_hidden_state",
            **{
                **_BERT,
                "conv_dim": [64] * 7,
                "num_conv_pos_embeddings": 16,
                "num_conv_pos_embedding_groups": 4,
            },
        ),
        features(8000),
    ),
    "wav2vec2 conformer, 2 layers": Architecture(
        _transformers(
            "Wav2Vec2ConformerModel",
            "Wav2Vec2ConformerConfig",
            "last_hidden_state",
            **_BERT,
            position_embeddings_type="relative",
            max_source_positions=400,
            conv_dim=[64] * 7,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        ),
        features(8000),
    ),
    "sentence pairs, 2 layers": Architecture(
        _transformers(
            "BertForSequenceClassification", "BertConfig", "logits", **_BERT, vocab_size=1000, num_labels=3
        ),
        _pairs,
        (*_TEXT_NAMES, "token_type_ids"),
    ),
    "diffusion unet": Architecture(
        _diffusion_unet, _diffusion, ("sample", "timestep", "encoder_hidden_states")
    ),
    "latent decoder": Architecture(small_networks.LatentDecoder, features(4, 16, 16)),
    "mel spectrogram": Architecture(small_networks.MelSpectrogram, features(16000)),
    "yolov8-like": Architecture(small_networks.YoloLike, images(160)),
    "unet": Architecture(small_networks.UNet, images(64)),
    "super-resolution": Architecture(small_networks.SuperResolution, images(48)),
    "lstm": Architecture(lambda: small_networks.Recurrent(nn.LSTM), features(24, 32)),
    "gru": Architecture(lambda: small_networks.Recurrent(nn.GRU), features(24, 32)),
    "temporal convolutions": Architecture(small_networks.TemporalConvolutions, features(16, 200)),
    "autoencoder": Architecture(small_networks.Autoencoder, images(32)),
    "einsum attention": Architecture(small_networks.EinsumAttention, features(48, 128)),
    "grouped-query attention": Architecture(small_networks.GroupedQueryAttention, features(48, 128)),
    "perceptron": Architecture(small_networks.perceptron, features(64)),
}
