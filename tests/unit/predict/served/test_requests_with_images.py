"""Requests with images: longer prompts, a tower that is held and run, and nothing of it where all is text."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise import api
from chipwise.errors import SpecError, Unsupported
from chipwise.model.ops.matmul import Matmul
from chipwise.model.published.read import resolve
from chipwise.predict.served.deployment import Deployment, deployed
from chipwise.predict.served.estimate import estimate
from chipwise.predict.served.groups import groups_of
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request
from chipwise.predict.served.towers import of_tower

LLAVA, QWEN = "llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-VL-7B-Instruct"


def test_a_text_is_priced_as_if_there_were_no_tower() -> None:
    whole, text = resolve(LLAVA), resolve(LLAVA).without_towers()
    costs = [
        estimate(Request(model=arch, deployment=Deployment(device="h100-sxm"), prompt_tokens=100))
        for arch in (whole, text)
    ]
    assert costs[0].ttft_s == costs[1].ttft_s
    assert costs[0].memory_bytes == costs[1].memory_bytes


def test_llava_by_pencil() -> None:
    """Two images are two passes of 577 positions through 23 of 24 layers, and 1,152 tokens before the text's 100."""
    (group,) = groups_of([Request(model=LLAVA, deployment=Deployment(device="h100-sxm"), prompt_tokens=100, images=2)])
    assert group.prompt_tokens.tolist() == [1252]
    prefill = group.prefill()
    parts = [part for part in lower_pass(prefill.setting, prefill.step) if of_tower(part)]
    products = {part.place.split(".", 1)[1]: part for part in parts if isinstance(part.op, Matmul)}
    up = products["layers 0-22.ffn.up"]
    assert (up.count, up.op.m.tolist(), up.op.k, up.op.n) == (23, [2 * 577], 1024, 4096)
    assert (products["projector.0"].op.m.tolist(), products["projector.0"].op.n) == ([2 * 576], 4096)
    assert not any(of_tower(part) for part in lower_pass(group.decode().setting, group.decode().step))


def test_memory_holds_the_tower_once_however_many_images_come() -> None:
    """Its weights in 16 bits, without the last layer and norm, which nothing reads; the decoder is in FP8."""
    ask = {"model": LLAVA, "device": "h100-sxm", "prompt_tokens": 100, "weights": "fp8"}
    text, one, four = (estimate(Request(**deployed(ask), images=count)).memory_bytes["weights"] for count in (0, 1, 4))
    tower = resolve(LLAVA).towers[0]
    unread = tower.layer_parameters(tower.layers[0]) + tower.norm_parameters()
    vectors = tower.parameters() - unread
    assert one == four
    assert one - text == pytest.approx(2 * vectors, rel=1e-3)  # the embedding's bias and class token are in no kernel


def test_larger_images_take_longer_where_the_tower_reads_them_whole() -> None:
    times = [
        estimate(
            Request(model=model, deployment=Deployment(device="l4"), prompt_tokens=50, images=1, image_size=size)
        ).ttft_s
        for model in (QWEN, LLAVA)
        for size in ((448, 448), (1344, 1344))
    ]
    assert times[1] > 5 * times[0]  # nine times the patches
    assert times[3] == times[2]  # resized to 336 pixels either way


def test_images_of_any_size_share_a_table() -> None:
    """Rows of one setting are priced together, each with its own passes, as they are alone."""
    from chipwise.predict.served.estimate import estimates

    asked = [
        Request(model=QWEN, deployment=Deployment(device="h100-sxm"), prompt_tokens=50, images=count, image_size=size)
        for count, size in ((1, (448, 448)), (3, (700, 500)), (0, (448, 448)))
    ]
    together = estimates(asked)
    np.testing.assert_allclose([each.ttft_s for each in together], [estimate(each).ttft_s for each in asked], rtol=1e-6)


def test_tensor_parallel_towers_are_split_where_they_divide() -> None:
    halves = [
        estimate(
            Request(model=QWEN, deployment=Deployment(device="h100-sxm", tp=tp), images=1, prompt_tokens=8)
        ).memory_bytes["weights"]
        for tp in (1, 2)
    ]
    assert halves[1] < 0.6 * halves[0]
    odd = estimate(
        Request(
            model="Qwen/Qwen2.5-VL-72B-Instruct",
            deployment=Deployment(device="h100-sxm", tp=8),
            images=1,
            prompt_tokens=8,
        )
    )
    assert any(cost.place.startswith("image.") for cost in odd.prefill)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(SpecError, match="gpt2 has no tower that reads images"):
        api.estimate("gpt2", images=1)
    with pytest.raises(SpecError, match="images: must be from 0"):
        api.estimate(LLAVA, images=-1)
    with pytest.raises(SpecError, match="image_size"):
        api.estimate(LLAVA, images=1, image_size=(0, 5))
    with pytest.raises(SpecError, match="images: must be from 0 to 10,000"):
        api.estimate(LLAVA, images=10**6)


def test_sound_is_heard_in_windows() -> None:
    """Qwen2-Audio at 10 s: one window of 1,500 positions, 250 tokens and two marks; 40 s of Voxtral are two windows."""
    heard = Request(
        model="Qwen2-Audio-7B-Instruct", deployment=Deployment(device="h100-sxm"), prompt_tokens=50, audio_s=10.0
    )
    (group,) = groups_of([heard])
    assert (group.prompt_tokens.tolist(), group.tower_passes.tolist()) == ([50 + 252], [1])
    times = [
        api.estimate("Voxtral-Mini-3B-2507", device="l4", prompt=50, audio_s=seconds).ttft_s for seconds in (5, 30, 40)
    ]
    assert times[0] == times[1] < times[2]
    with pytest.raises(SpecError, match="has no tower that reads images"):
        api.estimate("Voxtral-Mini-3B-2507", images=1)
    with pytest.raises(SpecError, match="has no tower that hears"):
        api.estimate(LLAVA, audio_s=3)


def test_explanations_and_comparisons_take_images() -> None:
    found = api.explain(LLAVA, device="l4", prompt=20, images=1)
    assert any(cost.place.startswith("image.") for cost in found.case.estimate.prefill)
    assert found.case.asked.endswith("new tokens, an image of 1024 x 768 in each")
    table = api.compare([LLAVA, QWEN], devices=["l4"], prompt=20, images=1)
    assert all(cell.estimate is not None for cell in table.cells)


def test_this_machine_says_that_it_times_no_tower() -> None:
    from chipwise.predict.explain.cases import calibrated_case
    from support.machines import round_machine

    with pytest.raises(Unsupported, match=r"estimated from data sheets, not from this machine.s calibration"):
        calibrated_case(LLAVA, round_machine(), images=1)
