"""Towers' projectors, pictures, batches of whole runs, shortages and remedies: by pencil."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_kernels_by_hand import setting, sizes

from chipwise.api import estimate_pictures
from chipwise.errors import SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served import picture_changes, pictures, stack_law
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.pictures import estimate_of, picture_of, shares_of
from chipwise.predict.served.remedies import Remedy, together
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp, Step
from chipwise.predict.served.shortage import NOTHING, Fitting, Shortage, would_fit
from chipwise.predict.served.stack_law import (
    Where,
    Work,
    link_bytes_per_s,
    sequences_held,
)
from chipwise.predict.served.table import _size
from chipwise.predict.served.towers import project, tower_setting
from chipwise_fitting import vendors
from chipwise_fitting.vendors import cell_terms, closed_batch_law

H100 = datasheet.load("h100-sxm")
HEADS = Attention(heads=4, kv_heads=4, head_size=4, rope=False, causal=False)
TOWER = ArchSpec(
    stem=ImageStem(image_size=32, patch=4, prefix_tokens=1),
    head=Projector(widths=(20, 30)),
    d_model=16,
    layers=(Layer(attention=HEADS, ffn=FeedForward(width=24)),) * 3,
    max_tokens=65,
    norm="layernorm",
    positions="learned",
)
READ = Step(batch=2, query_tokens=65, past_tokens=0)  # two images of 8 x 8 patches and a class token


def projected(projector: Projector, step: Step = READ) -> list[PlacedOp]:
    return list(project(setting(arch=replace(TOWER, head=projector)), step))


def test_tokens_of_a_tower_by_hand() -> None:
    """128 patches of 16 values through two matrices; averaged in fours 32; joined in fours 32 of 64 values."""
    assert sizes(projected(Projector(widths=(20, 30)))) == [
        ("0", 128, 16, 20),
        ("0.act", "gelu", 128 * 20),
        ("1", 128, 20, 30),
    ]
    pooled = projected(Projector(widths=(30,), pool=2))
    assert isinstance(pooled[0].op, PoolOp)
    assert (pooled[0].op.batch, pooled[0].op.positions, pooled[0].op.width) == (32, 4, 16)
    assert sizes(pooled[1:]) == [("0", 32, 16, 30)]
    joined = projected(Projector(widths=(30,), join=2, norm="layernorm"))
    assert sizes(joined) == [("norm", 128, 16), ("join", "transpose", 128 * 16), ("0", 32, 64, 30)]
    assert (joined[0].op.norm, joined[0].op.bias) == ("layernorm", True)
    over = projected(Projector(widths=(30,), join=2, norm="rmsnorm", norm_joined=True))
    assert sizes(over)[0] == ("norm", 32, 64)
    assert not over[0].op.bias
    deep = projected(Projector(widths=(30,), join=2, norm="layernorm", deeper=3))
    assert sizes(deep)[3:] == [
        ("deeper.norm", 32, 64),
        ("deeper.join", "transpose", 128 * 16),
        ("deeper.0", 32, 64, 30),
    ]
    assert [(part.count, part.owned) for part in deep] == [(1, 1)] * 3 + [(3, 3), (3, 1), (3, 3)]
    few = projected(Projector(widths=(30,), pool=16), replace(READ, batch=1))
    assert (few[0].op.batch, few[1].op.m) == (1, 1)  # at least one position
    assert [
        part.op.bias for part in projected(Projector(widths=(20, 30), bias=False)) if isinstance(part.op, Matmul)
    ] == [False] * 2


def test_towers_are_held_wide_without_what_nothing_reads() -> None:
    """Four heads on two devices, or whole on three; of three layers one is not read, and then no final norm."""
    served = setting(tp=2)
    found = tower_setting(TOWER, served)
    assert (found.plan.tp, len(found.arch.layers), found.arch.final_norm) == (2, 3, TOWER.final_norm)
    assert {found.formats.weights, found.formats.experts, found.formats.cache} == {served.formats.activations}
    cut = tower_setting(replace(TOWER, head=Projector(widths=(30,), unused_layers=1)), served)
    assert (len(cut.arch.layers), cut.arch.final_norm) == (2, False)
    odd = replace(TOWER, layers=(replace(TOWER.layers[0], ffn=FeedForward(width=9)),))
    assert tower_setting(odd, served).plan.tp == 1


@pytest.mark.parametrize(
    ("model", "asked", "size"),
    [
        ("flux.1-dev", {}, (1024, 1024, 1, 28)),
        ("flux.1-schnell", {}, (1024, 1024, 1, 4)),
        ("flux.1-schnell", {"steps": 9, "width": 512}, (1024, 512, 1, 9)),
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", {}, (480, 832, 81, 50)),
        ("DiT-XL/2", {}, (256, 256, 1, 250)),
        ("stable-diffusion-2-1", {}, (768, 768, 1, 50)),
        ("flux.1-dev", {"height": 16_384, "frames": 1}, (16_384, 1024, 1, 28)),
    ],
)  # fmt: skip
def test_usual_sizes_of_pictures(model: str, asked: dict[str, int], size: tuple[int, ...]) -> None:
    found = picture_of(model, device="h100-sxm", **asked)
    assert (found.height, found.width, found.frames, found.steps) == size
    assert (found.batch, found.devices, found.device.name) == (1, 1, "h100-sxm")


def test_pictures_of_impossible_sizes() -> None:
    for wrong in ({"height": 0}, {"width": 16_385}, {"frames": 0}, {"steps": -1}):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))}.*must be from 1 to 16,384"):
            picture_of("flux.1-dev", device="h100-sxm", **wrong)
    with pytest.raises(UnknownName, match="diffusers"):
        estimate_pictures("flux.1-dev", device="h100-sxm", runtime="vllm")
    for name in (None, "Diffusers", "pytorch", "torch"):
        assert estimate_pictures("flux.1-dev", device="h100-sxm", runtime=name).runtime == "diffusers"


def test_figures_of_a_batch_of_pictures() -> None:
    """Seconds by the law; watts of all devices over the batch's shares; the rest by rates. Videos are so named."""
    picture = picture_of("flux.1-dev", device="h100-sxm", batch=3, devices=2)
    found = estimate_of("flux.1-dev", picture)
    terms = pictures.constants()["pictures_s"].terms()
    seconds = float(pictures.value_of(pictures.picture_law(picture), terms))
    metrics = found.metrics
    assert metrics["latency_s"].value == pytest.approx(seconds)
    assert metrics["images_per_s"].value == pytest.approx(3 / seconds)
    assert 2 * 70 < metrics["power_w"].value <= 2 * H100.board_power_w
    assert metrics["joules_per_image"].value == pytest.approx(metrics["power_w"].value * seconds / 3)
    assert metrics["usd_per_1k_images"].value == pytest.approx(1000 * 2 * H100.price_usd_per_s * seconds / 3)
    assert found.setting == "3 images of 1024 x 1024, 28 steps, bf16"
    assert (found.model, found.device, found.devices, found.notes) == ("flux.1-dev", H100.label, 2, ())
    video = estimate_of("wan", picture_of("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", device="h100-sxm"))
    assert video.setting == "1 video of 832 x 480, 81 frames, 50 steps, bf16"
    assert {"videos_per_s", "joules_per_video", "usd_per_1k_videos"} <= video.metrics.keys()
    assert (
        found.provenance == f"predicted ({_situation('flux.1-dev', 'image')} device; rates of whole runs of diffusers)"
    )


def _situation(model: str, sort: str) -> str:
    held = pictures.constants()["pictures_s"]
    place = f"h100-sxm|text-to-{sort}"
    return held.situation(device="h100-sxm", vendor="NVIDIA", place=place, model=pictures.base_name(model))


def test_a_card_unlike_those_that_were_timed_is_at_least_as_unsure_as_a_vendor() -> None:
    near, far = (
        estimate_of("flux.1-schnell", picture_of("flux.1-schnell", device=name)) for name in ("h100-sxm", "rtx-4090")
    )
    least = stack_law.constants().halfwidth("unseen", "*") * (1 - 1e-12)  # a half-width is a logarithm of a ratio
    assert far.metrics["latency_s"].log_halfwidth >= least > near.metrics["latency_s"].log_halfwidth
    assert far.metrics["power_w"].log_halfwidth >= least / 2
    assert far.metrics["joules_per_image"].log_halfwidth >= least
    assert not near.notes
    assert sum("no diffusion model was timed on rtx-4090" in note for note in far.notes) == 1
    assert pictures._far(datasheet.load("mi300x"))


def test_shares_of_a_picture_leave_out_what_the_slower_hides() -> None:
    picture = picture_of("flux.1-dev", device="h100-sxm")
    terms = pictures.constants()["pictures_s"].terms()
    seconds = {each.terms[0][0]: float(pictures.value_of([each], terms)) for each in pictures.picture_law(picture)}
    shares = shares_of(picture)
    hidden = min("products", "launches", key=lambda name: seconds[name])
    total = sum(seconds.values()) - seconds[hidden]
    assert shares == {
        pictures.MEANINGS[name]: pytest.approx(seconds[name] / total)
        for name in pictures.MEANINGS
        if name != hidden and seconds.get(name)
    }


def test_changes_that_are_tried_of_a_picture() -> None:
    picture = picture_of("flux.1-dev", device="h100-sxm", batch=2, devices=2)
    tried = {what: other for what, _, other in picture_changes._others(picture)}
    assert tried["4 steps instead of 28"].steps == 4
    assert tried["14 steps instead of 28"].steps == 14
    assert (tried["512 x 512 pixels"].height, tried["512 x 512 pixels"].width) == (512, 512)
    assert tried["a batch of 8"].batch == 8
    assert tried["4 devices"].devices == 4
    wide = picture.model.pixels
    assert tried[f"positions of {2 * wide} pixels instead of {wide}"].model.pixels == 2 * wide
    assert ("one pass a step instead of two" in tried) == (picture.model.passes > 1)
    few = picture_of("flux.1-schnell", device="h100-sxm")
    assert not any("steps" in what for what, _, _ in picture_changes._others(few))
    five = {what for what, _, _ in picture_changes._others(replace(few, steps=5))}
    assert {"4 steps instead of 5", "2 steps instead of 5"} <= five


def test_the_work_of_a_pass_by_sorts_of_kernels() -> None:
    product = PlacedOp(place="a", op=Matmul(m=4, k=8, n=16, weights="bf16", activations="bf16"), count=3)
    attend = PlacedOp(
        place="b", op=AttentionOp(batch=2, query_tokens=1, past_tokens=9, heads=2, kv_heads=1, head_size=8), count=2
    )
    norm = PlacedOp(place="c", op=NormOp(rows=4, width=8), count=5)
    summed = PlacedOp(place="d", op=CollectiveOp(collective="all_reduce", payload_bytes=100, devices=2), count=4)
    found = Work.of((product, attend, norm, summed), 2)

    def both(part: PlacedOp, name: str) -> float:
        return float(getattr(part.op.work(), name)) * part.count

    assert found.weight_bytes.tolist() == [both(product, "bytes")] * 2
    assert found.product_flops.tolist() == [both(product, "flops")] * 2
    assert found.cache_bytes.tolist() == [both(attend, "bytes") + both(norm, "bytes")] * 2
    assert found.attention_flops.tolist() == [both(attend, "flops")] * 2
    assert found.collective_bytes.tolist() == [both(summed, "bytes")] * 2
    assert (found.collectives, found.kernels) == (4.0, 10.0)


def test_a_batch_is_its_prompts_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 requests of 512 tokens, of which 10 are held: 10 passes of 4 prompts, and 2,048 steps of 10."""
    served = resolved(Request(model="gpt2", deployment=Deployment(device="mi300x", runtime="vllm"))).setting
    where = Where(stack="vllm", device=datasheet.load("mi300x"))
    asked: list[Any] = []
    monkeypatch.setattr(vendors, "lower_pass", lambda setting, step: asked.append(step) or ())
    monkeypatch.setattr(vendors, "sequences_held", lambda *args: np.array([10.0]))
    laws: list[Any] = []
    monkeypatch.setattr(vendors, "pass_law", lambda work, where, **said: laws.append(said) or [])
    closed_batch_law(served, where, np.array([40]), np.array([512]))
    prompt, step = asked
    assert (prompt.batch.tolist(), prompt.query_tokens.tolist(), prompt.past_tokens.tolist()) == ([4], [512], [0])
    assert (step.batch.tolist(), step.query_tokens, step.past_tokens.tolist()) == ([10.0], 1, [512 + 256])
    first, second = laws
    assert (first["prompt"], first["sequences"], first["times"].tolist()) == (True, 0, [10.0])
    assert (second["prompt"], second["sequences"].tolist(), second["times"].tolist()) == (False, [10.0], [2048.0])
    asked.clear(), laws.clear()
    closed_batch_law(served, where, np.array([2, 3]), np.array([4096, 100]))
    assert asked[0].batch.tolist() == [1, 3]  # at least one prompt, and no more than there are
    asked.clear(), laws.clear()
    closed_batch_law(served, replace(where, stack="llama.cpp"), np.array([128]), np.array([512]))
    step, prompt = asked
    assert (prompt.batch.tolist(), prompt.query_tokens.tolist(), prompt.past_tokens.tolist()) == ([1], [128], [256])
    assert (step.batch.tolist(), step.query_tokens, step.past_tokens.tolist()) == ([1], 1, [768])
    assert [(said["prompt"], said["sequences"], said["times"].tolist()) for said in laws] == [
        (True, 0, [4.0]),
        (False, 1, [512]),
    ]


def listing(rates: dict[str, float]) -> Any:
    """A device ``x`` with these peak rates by format, in FLOP/s."""
    return SimpleNamespace(
        name="x", rate=lambda *formats: next((rates[name] for name in formats if name in rates), None)
    )


def test_where_a_run_was_and_what_its_terms_depend_on() -> None:
    where = Where(stack="vllm", device=H100, devices=4)
    own = "h100-sxm|vllm"
    assert where.levels == ("vllm", "NVIDIA", "h100-sxm", own, "tp4", f"{own}|tp4")
    assert where.place == own
    assert dict(cell_terms(where, 16, 2048)) == {f"cell|{own}|tp4|b16": 1.0, f"cell|{own}|tp4|l2048": 1.0}
    between = dict(cell_terms(where, 16 * math.sqrt(2), 128))
    assert between[f"cell|{own}|tp4|b16"] == pytest.approx(0.5)
    assert between[f"cell|{own}|tp4|l128"] == 1.0
    links = [link.bandwidth.number for link in H100.links if link.to == "device"]
    assert link_bytes_per_s(H100) == max(links)
    assert link_bytes_per_s(SimpleNamespace(links=())) == 50e9  # type: ignore[arg-type]
    rates = {"bf16": 3.0, "fp16": 2.0, "fp32": 1.0}
    for names, rate in ((("bf16", "fp16", "fp32"), 3.0), (("fp16", "fp32"), 2.0), (("fp32",), 1.0)):
        assert stack_law.peak_flops_per_s(listing({name: rates[name] for name in names})) == rate
    with pytest.raises(Unsupported, match="x lists no rate"):
        stack_law.peak_flops_per_s(listing({"int8": 1.0}))


def test_at_least_one_sequence_is_held_and_at_most_what_an_engine_takes() -> None:
    served = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm", runtime="vllm"))).setting
    batch = np.array([1, 200, 5000])
    assert sequences_held(served, H100, batch, np.array([8, 8, 8])).tolist() == [1, 200, 256]
    large = resolved(
        Request(model="meta-llama/Llama-2-70b-hf", deployment=Deployment(device="h100-sxm", runtime="vllm"))
    ).setting
    tight = sequences_held(large, H100, np.array([64]), np.array([8_000_000]))
    assert tight.tolist() == [1.0]
    # where weights leave nothing, two gigabytes are taken to be free
    step = sequences_held(large, H100, np.array([64, 64]), np.array([1000, 2000]))
    each = 80 * 2 * 8 * 128 * 2  # bytes of a position in 80 layers
    assert 0.85 < step[0] / (2e9 / (each * 1.8 * 1000)) < 1  # what norms and the like move counts too
    assert step[0] == pytest.approx(2 * step[1])


def short(**fields: Any) -> Shortage:
    known = {
        "said": "it needs 20 GB",
        "devices": 1,
        "needed_bytes": 20e9,
        "held_said": "16 GB",
        "fitting": (),
        "chip": None,
    }
    return Shortage(**(known | fields))


def test_what_is_said_of_a_shortage() -> None:
    narrow = Fitting(remedy=Remedy.of("weights", "int4"), needed_bytes=6e9)
    devices = Fitting(remedy=Remedy.of("tp", 2), needed_bytes=11e9)
    fewer = Fitting(remedy=Remedy.of("batch", 3), needed_bytes=12e9)
    both = Fitting(remedy=Remedy(changes=(("weights", "fp8"), ("tp", 4))), needed_bytes=5e9)
    assert [each.text for each in (narrow, devices, fewer, both)] == [
        "int4 fits (6 GB)",
        "2 devices fit (11 GB on each)",
        "3 requests in flight fit (12 GB)",
        "fp8 on 4 devices fits (5 GB each)",
    ]
    assert short().line == f"does not fit: needs 20 GB, has 16 GB; {NOTHING}"
    assert short(devices=2, fitting=(narrow, devices)).line == (
        "does not fit: needs 20 GB on each device, has 16 GB; int4 fits (6 GB), or 2 devices fit (11 GB on each)"
    )
    assert short(chip="b200").message == f"it needs 20 GB; {NOTHING}; b200 has enough memory"
    raised = "; or let the GPU have more: sudo sysctl iogpu.wired_limit_mb=123"
    assert short(fitting=(fewer,), limit_mib=123).message == f"it needs 20 GB; --batch 3 would fit{raised}"
    assert would_fit((narrow, both)) == "--weights int4 or --weights fp8 --tp 4 would fit"
    assert would_fit(()) == NOTHING


def test_changes_that_are_made_together() -> None:
    weights = [Remedy.of("weights", "fp8"), Remedy.of("weights", "int4")]
    devices = [Remedy.of("tp", 2), Remedy.of("tp", 4)]
    assert [each.changes for each in together((weights, devices, []))] == [
        (("weights", "fp8"), ("tp", 4)),
        (("weights", "int4"), ("tp", 4)),
    ]
    assert together((weights, [], [])) == []
    assert Remedy(changes=(("weights", "fp8"), ("tp", 1))).words == "weights in fp8 and 1 device"
    assert (weights[0].field, devices[1].option) == ("weights", "--tp 4")


def test_sizes_of_images_in_a_table() -> None:
    assert _size({"image_size": "640x480"}) == _size({"image_size": "640×480"}) == (640, 480)
    assert _size({}) == _size({"image_size": ""}) == (1024, 768)
    for wrong in ("640", "640x", "x480", "1234567x1", "a640x480"):
        with pytest.raises(SpecError, match="image_size"):
            _size({"image_size": wrong})
