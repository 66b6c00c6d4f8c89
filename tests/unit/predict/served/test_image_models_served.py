"""Image models on data sheets: one request is one image; the law of published PyTorch runs; pencil counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import chipwise
from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import default_runtime
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.pool import PoolOp
from chipwise.model.published.read import resolve
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import grouped
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import cache_bytes
from chipwise.predict.served.request import Request
from chipwise.predict.whole_runs import vision

VIT = "google/vit-base-patch16-224"


def parts_of(arch: ArchSpec, *, batch: int = 1, runtime: str = "onnxruntime") -> list:
    """The kernels of a pass on an H100."""
    groups, errors = grouped(
        [Request(model=arch, deployment=Deployment(device="h100-sxm", runtime=runtime), batch=batch)]
    )
    assert not errors
    asked = groups[0].prefill()
    return list(lower_pass(asked.setting, asked.step))


def test_the_products_of_a_vit_by_pencil() -> None:
    """ViT-B/16, two images: 2 x 196 patches of 768 values, 2 x 197 positions, and one row an image for the classes."""
    parts = [part for part in parts_of(resolve(VIT), batch=2) if isinstance(part.op, Matmul)]
    products = {part.place: (int(part.op.m[0]), part.op.k, part.op.n) for part in parts}
    assert products["stem.patches"] == (392, 768, 768)
    assert products["layers 0-11.attention.qkv"] == (394, 768, 2304)
    assert products["layers 0-11.ffn.up"] == (394, 768, 3072)
    assert products["head.logits"] == (2, 768, 1000)


def test_the_products_of_cross_attention_by_pencil() -> None:
    """Two questions of 5 words about 4 x 4 patches: 10 rows in the layer, 32 tokens of images under keys and values."""
    block = Attention(heads=2, kv_heads=2, head_size=16, rope=False, causal=False)
    stem = ImageStem(image_size=16, patch=4, prefix_tokens=0, bias=False)
    arch = ArchSpec(
        stem=QuestionStem(image=stem, question=Question(words=9, tokens=5), projector=Projector(widths=(64, 64))),
        head=Classes(count=10, pooling="last"),
        d_model=64,
        layers=(Layer(attention=block, cross=block, ffn=FeedForward(width=96, gated=False, activation="gelu")),),
        max_tokens=16 + 5,
        norm="layernorm",
        positions="learned",
    )
    parts = parts_of(arch, batch=2)
    products = {part.place: part.op for part in parts if isinstance(part.op, Matmul)}
    found = {place: (int(np.ravel(op.m)[0]), op.k, op.n) for place, op in products.items()}
    assert found["projector.1"] == (32, 64, 64)
    assert found["layers 0.attention.qkv"] == (10, 64, 96)
    assert found["layers 0.cross.q"] == (10, 64, 32)
    assert found["layers 0.cross.kv"] == (32, 64, 64)
    (cross,) = (part.op for part in parts if part.place == "layers 0.cross.attend")
    assert cross.work().flops == 2 * 2 * 5 * 16 * (4 * 16 + 5)
    assert cache_bytes(cross, 5) == 0  # one pass: nothing is kept


def test_a_prompt_length_means_nothing_for_images() -> None:
    sizes = ((7, 1), (900, 99))
    one, other = (chipwise.estimate(VIT, device="h100-sxm", prompt=prompt, new=new) for prompt, new in sizes)
    assert one.ttft_s == other.ttft_s
    assert one.metrics["image_s"].value == pytest.approx(one.ttft_s)
    assert not {"tpot_p50", "usd_per_1k_input_tokens", "joules_per_token"} & one.metrics.keys()


def test_compiled_pytorch_follows_the_law_of_published_runs() -> None:
    """The same seconds and interval as the law itself gives for the model's sizes."""
    sheet = datasheet.load("rtx-4090")
    found = chipwise.estimate(VIT, device="rtx-4090", batch=64)
    model = vision.VisionTransformer(image_size=224, patch=16, width=768, depth=12, heads=12, mlp_hidden=3072)
    law = vision.step_s(model, vision.Setup(device=sheet, dtype="amp_bf16"), batch=64)
    assert found.runtime == "torch-compile"
    assert found.metrics["ttft_p50"] == law
    assert found.metrics["image_s"].value == pytest.approx(law.value / 64)
    assert "image models in PyTorch" in found.provenance


@pytest.mark.parametrize("name", [VIT, "facebook/dinov2-with-registers-small", "google/siglip-base-patch16-224"])
def test_a_known_model_has_the_sizes_that_the_law_counts(name: str) -> None:
    arch = resolve(name)
    model = vision.plain(arch)
    assert model is not None
    assert not arch.reads_tokens
    assert model.tokens == arch.stem.tokens
    weights = sum(p.count * p.op.k * p.op.n for p in parts_of(arch) if type(p.op) is Matmul and "pool" not in p.place)
    assert weights == pytest.approx(arch.parameters(), rel=0.12)


def test_images_run_where_their_runtimes_do() -> None:
    names = {name: default_runtime(datasheet.load(name), images=True) for name in ("rtx-4090", "apple-m3", "h100-sxm")}
    assert names == {"rtx-4090": "torch-compile", "apple-m3": "onnxruntime", "h100-sxm": "torch-compile"}


def test_pooling_by_attention_squares_and_convolutions_are_priced() -> None:
    siglip = parts_of(resolve("google/siglip-base-patch16-224"))
    assert [p.op.query_tokens for p in siglip if p.place == "head.pool.attend"] == [1]
    arch = resolve(VIT)
    stem = ImageStem(image_size=224, patch=16, convs=(24, 48), prefix_tokens=0)
    layers = tuple(replace(layer, attention=replace(layer.attention, square=7)) for layer in arch.layers)
    changed = parts_of(
        replace(arch, stem=stem, head=replace(arch.head, pooling="mean"), layers=layers, max_tokens=196), batch=3
    )
    assert [int(p.op.positions) for p in changed if isinstance(p.op, ConvOp)] == [112**2, 56**2]
    attend = [p.op for p in changed if isinstance(p.op, AttentionOp)]
    assert [(int(op.batch[0]), op.query_tokens) for op in attend] == [(3 * 4, 49)]
    assert [int(p.op.positions[0]) for p in changed if isinstance(p.op, PoolOp)] == [196]


def test_memory_holds_the_weights_once() -> None:
    """86.57 M parameters in BF16, biases and positions included, within 1 %."""
    found = chipwise.estimate(VIT, device="h100-sxm")
    assert found.memory_bytes["weights"] == pytest.approx(2 * resolve(VIT).parameters(), rel=0.01)
    assert found.memory_bytes["cache"] == 0


def test_explaining_speaks_of_images() -> None:
    found = chipwise.explain(VIT, device="rtx-4090", batch=8)
    assert "one pass over 8 images of 197 positions" in found.case.asked


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090"])
def test_a_pyramid_whose_first_stage_has_three_heads_is_not_split_in_two(device: str) -> None:
    """Its last stage has 24 heads, which two devices divide."""
    name = "microsoft/swin-tiny-patch4-window7-224"
    assert chipwise.explain(name, device=device).advice
    with pytest.raises(SpecError, match="2 devices do not divide the 3 heads"):
        chipwise.estimate(name, device=device, tp=2)


def test_training_counts_the_positions_of_images() -> None:
    prompts = [chipwise.estimate_training(VIT, device="h100-sxm", batch=4, prompt=prompt) for prompt in (64, 2048)]
    assert prompts[0].step == prompts[1].step
