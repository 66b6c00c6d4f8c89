"""Spaces of image classifiers and ranking models on chips that are not here: rows are priced as estimates are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise import api
from chipwise.core.files import build
from chipwise.design.run.spec import TargetSpec
from chipwise.design.targets.representable import check_space
from chipwise.design.targets.sheet import SheetTarget
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec

LAYER = {"heads": [1, 2, 4], "ffn": ["gelu"], "ffn_width": [64, 256]}
IMAGE = {"size": 28, "classes": 10, "channels": 1, "patch": [4, 14], "stem": ["patches", "conv8"], "pooling": ["mean"]}
ASKED = {**IMAGE, "question": 7, "words": 40, "merge": ["none", "join"], "image_in": ["prefix", "cross"]}
RANKED = {"items": 1000, "history": 20, "candidates": 32, "mixing": ["attention", "hstu"]}
COMMON = {"d_model": [32, 128], "depth": [1, 4], "head_size": [16], "layers": "alike", "weights": ["fp32", "int8"]}
SPACES: dict[str, dict[str, Any]] = {
    "images": {**COMMON, "norm": "layernorm", "image": IMAGE, "layer": LAYER},
    "questions": {**COMMON, "norm": "layernorm", "image": ASKED, "layer": LAYER},
    "ranking": {**COMMON, "ranking": RANKED, "layer": {**LAYER, "ffn": ["relu", "none"]}},
}


def target(kind: str, device: str, runtime: str = "onnxruntime", **changes: Any) -> tuple[SheetTarget, SearchSpace]:
    space = SearchSpace(build(SpaceSpec, SPACES[kind] | changes))
    served = TargetSpec(device=device, runtime=runtime)
    asked = {"workload": Workload(prompt_tokens=1, new_tokens=1), "seed": 0, "energy": False}
    return SheetTarget(space, datasheet.load(device), served=served, **asked), space


@pytest.mark.parametrize("kind", list(SPACES))
@pytest.mark.parametrize("device", ["raspberry-pi-5", "snapdragon-8-elite"])
def test_rows_cost_what_estimates_say(kind: str, device: str) -> None:
    """The sum of blocks against the estimate of each whole design, which `chipwise estimate` prints."""
    there, space = target(kind, device)
    rows = space.sample(16, np.random.default_rng(3))
    found = there.metrics(rows)
    assert set(found) - {"fps"} == {"ttft_p50", "ttft_p99", "peak_memory", "parameters"}  # nothing follows the pass
    assert "fps" not in found or np.allclose(found["fps"], 1 / found["ttft_p50"])
    for i, row in enumerate(rows):
        design = space.design(row)
        bounds = there.predict(design)
        assert found["ttft_p50"][i] == pytest.approx(bounds["ttft_p50"][0], rel=0.03)
        assert found["peak_memory"][i] == pytest.approx(bounds["peak_memory"][0], rel=0.03)
        assert found["parameters"][i] == bounds["parameters"][0] == design.arch.parameters()
    design = space.design(rows[0])
    stored = {"fp32": "fp32", "int8": "int8_own"}[design.weights]
    single = api.estimate(design.arch, device=device, runtime="onnxruntime", weights=stored)
    assert there.predict(design)["ttft_p50"][0] == pytest.approx(single.ttft_s)


def test_a_law_of_whole_runs_moves_the_rows_too() -> None:
    """ViTs in PyTorch are priced by a law of whole passes, which rows follow; designs that it leaves out are refused.

    Where heads do not fill the width kernels are priced one by one, 2.4 times quicker here than the law: a search over
    both would choose between two cost models.
    """
    with pytest.raises(Unsupported, match="the two kinds of prediction are not comparable; name another runtime"):
        target("images", "h100-sxm", "torch-compile", weights=["bf16"])
    plain = {**IMAGE, "patch": [2, 4, 7, 14], "stem": ["patches"]}
    layer = {**LAYER, "heads": [2], "ffn_width": [64, 128, 256, 512]}
    changes = {"image": plain, "layer": layer, "d_model": [32], "depth": [1, 2, 4, 8], "weights": ["bf16"]}
    there, space = target("images", "h100-sxm", "torch-compile", **changes)
    rows = space.sample(24, np.random.default_rng(3))
    found = there.metrics(rows)["ttft_p50"]
    whole = np.array([there.predict(space.design(row))["ttft_p50"][0] for row in rows], float)
    assert np.abs(np.log(found / whole)).mean() < 0.1


def test_what_was_measured_there_moves_predictions() -> None:
    """Three designs that took twice as long as predicted: the next is predicted slower, and surer."""
    there, space = target("images", "raspberry-pi-5")
    designs = [space.design(row) for row in space.sample(4, np.random.default_rng(0))]
    before = there.predict(designs[3])["ttft_p50"]
    there.learn([(each, {"ttft_p50": 2 * there.predict(each)["ttft_p50"][0]}) for each in designs[:3]])
    after = there.predict(designs[3])["ttft_p50"]
    assert 1.5 * before[0] < after[0] < 2.01 * before[0]
    assert after[2] / after[1] < before[2] / before[1]
    assert there.novelty(designs[3]) == 0.0


def test_what_no_sheet_prices_is_refused_in_words() -> None:
    with pytest.raises(Unsupported, match=r"llama\.cpp serves models of text, not of images"):
        check_space(SearchSpace(build(SpaceSpec, SPACES["images"])), "llama.cpp")
    with pytest.raises(Unsupported, match="watts nor joules"):
        SheetTarget(
            SearchSpace(build(SpaceSpec, SPACES["images"])),
            datasheet.load("raspberry-pi-5"),
            served=TargetSpec(device="raspberry-pi-5", runtime="onnxruntime"),
            workload=Workload(),
            seed=0,
            energy=True,
        )
