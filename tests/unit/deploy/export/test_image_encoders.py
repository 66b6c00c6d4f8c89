"""Published encoders of images, and the towers of models that see, exported: as transformers computes them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chipwise.deploy.export.onnx import build, export, random_weights
from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.image.gives import given_shape, gives, without_projector
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import from_config, resolve
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes

transformers = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 99, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {"model_type": "llama", **TEXT}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # of the output: one vector, or the states
    "CLIP": ("CLIPVisionConfig", "CLIPVisionModelWithProjection", SIZES | {"projection_dim": 16, "hidden_act": "gelu"}),
    "SigLIP": ("SiglipVisionConfig", "SiglipVisionModel", SIZES),
    "DINOv2": ("Dinov2Config", "Dinov2Model", SIZES | {"use_swiglu_ffn": True}),
    "DINOv2 with registers": ("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", SIZES),
    "ViT": ("ViTConfig", "ViTModel", SIZES),
    "BEiT": (
        "BeitConfig",
        "BeitForImageClassification",
        SIZES | {"use_relative_position_bias": True, "use_mask_token": False, "num_labels": 5},
    ),
}
SEEING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "LLaVA": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {"vision_config": {"model_type": "clip_vision_model", **SIZES, "hidden_act": "gelu"}, "text_config": LLAMA},
    ),
    "SmolVLM": (
        "Idefics3Config",
        "Idefics3ForConditionalGeneration",
        {"vision_config": SIZES, "text_config": LLAMA, "scale_factor": 2},
    ),
    "InternVL": (
        "InternVLConfig",
        "InternVLForConditionalGeneration",
        {
            "vision_config": SIZES | {"image_size": [32, 32], "patch_size": [8, 8], "attention_bias": True},
            "text_config": {"model_type": "qwen2", **TEXT},
            "downsample_ratio": 0.5,
        },
    ),
}
NAMES = (  # a part of a weight's name there, and here
    (r"^(model\.)?(vision_model|vision_tower)\.", ""),
    (r"^beit\.layers\.(\d+)\.relative_position_bias\.relative_position_bias_table$", r"positions.\1.weight"),
    (r"^beit\.pooler\.layernorm\.", "norm."),
    (r"^beit\.", ""),
    (r"^classifier\.", "head."),
    (r"^model\.", ""),
    (r"^embeddings\.(class_embedding|cls_token)$", "stem.prefix.weight"),
    (r"^embeddings\.mask_token$", "stem.mask.weight"),
    (r"^embeddings\.(patch_embedding|patch_embeddings\.projection)\.", "stem.projection."),
    (r"^embeddings\.(position_embedding\.weight|position_embeddings)$", "positions.weight"),
    (r"^pre_layrnorm\.", "embedding_norm."),
    (r"^(post_layernorm|layernorm)\.", "norm."),
    (r"^visual_projection\.", "projection."),
    (r"^pooler\.dense\.", "pooler."),
    (r"^encoder\.layers?\.", "layers."),
    (r"\.(layer_norm1|norm1|layernorm_before)\.", ".attention_norm."),
    (r"\.(layer_norm2|norm2|layernorm_after)\.", ".ffn_norm."),
    (r"\.(layer_scale1\.lambda1|lambda_1)$", ".attention_scale.weight"),
    (r"\.(layer_scale2\.lambda1|lambda_2)$", ".ffn_scale.weight"),
    (r"^head\.attention\.out_proj\.", "pool.out."),
    (r"\.(self_attn|attention)\.([qkv])_proj\.", r".attention.\2."),
    (r"\.(self_attn|attention)\.(out_proj|o_proj|projection_layer)\.", ".attention.out."),
    (r"\.mlp\.(gate|up|down)_proj\.", r".ffn.\1."),
    (r"\.mlp\.fc1\.", ".ffn.up."),
    (r"\.mlp\.fc2\.", ".ffn.down."),
    (r"^head\.probe$", "pool.query.weight"),
    (r"^head\.layernorm\.", "pool.norm."),
    (r"^head\.ffn\.", "pool.ffn."),
    (r"^multi_modal_projector\.layer_norm\.", "projector.norm."),
    (r"^multi_modal_projector\.linear_1\.", "projector.matrices.0."),
    (r"^multi_modal_projector\.linear_2\.", "projector.matrices.1."),
    (r"^connector\.modality_projection\.proj\.", "projector.matrices.0."),
)


def made(config: str, kind: str, sizes: dict[str, Any]) -> Any:
    """A model of transformers with random weights, none at its first value."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model


def weights_of(model: Any, arch: ArchSpec) -> dict[str, Any]:
    """Its weights by our names."""
    found: dict[str, Any] = {}
    shapes = weight_shapes(arch)
    for full, value in model.state_dict().items():
        name = full
        for there, here in NAMES:
            name = re.sub(there, here, name)
        if name.startswith("head.attention.in_proj"):
            for part, third in zip("qkv", value.chunk(3), strict=True):
                found[f"pool.{part}.{name.rpartition('_')[2]}"] = third.numpy()
        elif name == "embeddings.register_tokens":
            found["registers"] = value[0].numpy()
        elif name in shapes:
            found[name] = value.numpy().reshape(-1, shapes[name][-1]) if "prefix" in name else value.numpy()
    if "registers" in found:
        found["stem.prefix.weight"] = np.concatenate([found["stem.prefix.weight"], found.pop("registers")])
    return {name: value.reshape(shapes[name]) for name, value in found.items()}


def run(arch: ArchSpec, weights: Any, folder: Path, images: torch.Tensor, stored: str = "fp32") -> Any:
    path = export(Design(arch=arch, weights=stored), weights, folder / f"{stored}.onnx")
    return OnnxClassifier(path, batch=len(images)).prefill(images.numpy()).copy()


@pytest.mark.parametrize("name", MODELS)
def test_states_and_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """To 1e-4, for three images; int8 is near."""
    model = made(*MODELS[name])
    config = {**model.config.to_dict(), "architectures": [MODELS[name][1]]}
    arch = from_config(config, name=name)
    weights = weights_of(model, arch)
    assert weights.keys() == weight_shapes(arch).keys()
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = model(images)
    kind = gives(arch)
    expected = given.image_embeds if name == "CLIP" else given.pooler_output if kind == "vector" else given[0]
    assert tuple(expected.shape[1:]) == given_shape(arch, arch.stem)
    found = run(arch, weights, tmp_path, images)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)
    off = np.abs(run(arch, weights, tmp_path, images, "int8") - expected.numpy()).max()
    assert 0 < off < 0.2 * np.abs(expected.numpy()).max()


@pytest.mark.parametrize("name", SEEING)
def test_towers_and_projectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """The decoder's tokens of two images to 1e-4: patches alone, joined, normed and multiplied."""
    model = made(*SEEING[name])
    arch = from_config(model.config.to_dict(), name=name).towers[0]
    weights = weights_of(model, arch)
    assert weights.keys() == weight_shapes(arch).keys()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = model.model.get_image_features(pixel_values=images[None] if name == "SmolVLM" else images)
    expected = torch.stack(list(given.pooler_output)).reshape(2, -1, 24).numpy()
    IMAGE_ENCODER.require(arch, work="exported")
    stem = arch.stem_as(ImageStem)
    assert gives(arch) == "tokens"
    assert expected.shape[1:] == given_shape(arch, stem)
    np.testing.assert_allclose(run(arch, weights, tmp_path, images), expected, atol=1e-4, rtol=1e-4)
    alone = without_projector(arch)
    assert run(alone, weights, tmp_path, images).shape == (2, stem.tokens, 32)


KNOWN = (
    "facebook/dinov2-small", "facebook/dinov2-with-registers-giant", "google/siglip-so400m-patch14-384",
    "openai/clip-vit-large-patch14-336", "google/vit-base-patch16-224-in21k",
)  # fmt: skip
TOWERS = (
    "HuggingFaceTB/SmolVLM-256M-Instruct", "OpenGVLab/InternVL3-1B-hf", "llava-hf/llava-1.5-7b-hf",
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf", "google/paligemma-3b-pt-224",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KNOWN, *TOWERS])
def test_published_encoders_have_a_name_for_every_weight(name: str) -> None:
    arch = resolve(name)
    arch = arch.towers[0] if arch.towers else arch
    assert sum(math.prod(shape) for shape in weight_shapes(arch).values()) == arch.parameters()


@pytest.mark.parametrize("name", [*MODELS, *SEEING])
def test_the_lowering_has_the_products_and_attentions_of_the_graph(name: str) -> None:
    """Values of all matrices that are multiplied are those stored, and each layer's attention is there once."""
    config, _, sizes = (MODELS | SEEING)[name]
    config = getattr(transformers, config)(**sizes).to_dict()
    arch = from_config(config if name in SEEING else config | {"architectures": [MODELS[name][1]]}, name=name)
    arch = arch.towers[0] if arch.towers else arch
    design = Design(arch=arch)
    graph = build(design, random_weights(arch, seed=0)).graph
    sizes_of = {item.name: math.prod(item.dims) for item in graph.initializer}
    multiplied = [node for node in graph.node if node.op_type == "MatMul"]
    lowered = lower(design, Workload(batch=2), Phase.PREFILL).ops
    products = [item.op for item in lowered if isinstance(item.op, Matmul)]
    assert sorted(sizes_of[node.input[1]] for node in multiplied) == sorted(op.k * op.n for op in products)
    attentions = [item.op for item in lowered if isinstance(item.op, AttentionOp)]
    assert len(attentions) == sum(node.op_type == "MultiHeadAttention" for node in graph.node)
    norms = sum(node.op_type == "LayerNormalization" for node in graph.node)
    assert norms == sum(type(item.op).__name__ == "NormOp" for item in lowered)


def test_layers_that_nothing_reads_are_not_run() -> None:
    """LLaVA reads the states before CLIP's last layer: 23 of 24 attentions, and no norm after them."""
    tower = resolve("llava-hf/llava-1.5-7b-hf").towers[0]
    ops = lower(Design(arch=tower), Workload(), Phase.PREFILL).ops
    assert sum(isinstance(item.op, AttentionOp) for item in ops) == len(tower.layers) - 1 == 23
    assert not any(item.place == "norm" for item in ops)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Qwen/Qwen2-VL-2B-Instruct", "positions = 'rope'"),
        ("google/gemma-3-4b-pt", "a projector with a norm"),
        ("timm/eva02_tiny_patch14_224", "pooling = 'mean'"),
    ],
)
def test_what_is_not_built_is_named(name: str, missing: str) -> None:
    arch = resolve(name)
    with pytest.raises(Unsupported, match=missing):
        IMAGE_ENCODER.require(arch.towers[0] if arch.towers else arch, work="exported")
