"""A whole search for a model that answers questions about images, on a tiny budget and without timing anything."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from chipwise.api import search
from chipwise.design.report.record import load
from support.machines import core_like

RUN = {
    "name": "tiny-multimodal",
    "task": "multimodal",
    "constraints": {"ttft_p50": "<= 1 s", "accuracy": ">= 1 %"},
    "space": {
        "image": {
            "size": 32, "channels": 3, "classes": 14, "question": 8, "words": 40, "patch": [16],
            "merge": ["none", "join"], "image_in": ["prefix", "cross"],
        },
        "d_model": [16],
        "depth": [1, 2],
        "head_size": [16],
        "norm": "layernorm",
        "layer": {"heads": [1], "ffn": ["gelu"], "ffn_width": [32, 64]},
        "layers": "alike",
        "weights": ["int8"],
    },
    "data": {"source": "shapes", "images": 420},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "100k", "final": "25k", "workers": 1},
}  # fmt: skip


def machine(folder: Path) -> Path:
    """A profile of a made-up core that also knows what models of images consist of."""
    profile = core_like()
    plain = profile.terms["elementwise.add"]
    more = {f"elementwise.{name}": plain for name in ("split", "transpose", "pad")}
    more |= {"pool": plain, "conv.image": profile.terms["matmul.fp32.matrix"]}
    more |= {"attention.full": profile.terms["attention.prompt"]}
    replace(profile, terms={**profile.terms, **more}, runtime="onnxruntime").save(folder / "core.json")
    return folder / "core.json"


def test_a_search_ends_with_answers_in_its_report(tmp_path: Path) -> None:
    target = {"device": str(machine(tmp_path)), "runtime": "onnxruntime"}
    found = search(RUN | {"target": target}, out=tmp_path / "run")
    winner = found.trial(found.winner)
    assert (found.status, found.task) == ("finished", "multimodal")
    assert 0 < winner.test_loss < 1
    assert found.samples["questions"][0].keys() >= {"image", "question", "answer", "winner"}
    assert load(tmp_path / "run" / "record.json").samples == found.samples
    report = (tmp_path / "run" / "report.html").read_text()
    card = (tmp_path / "run" / "card.md").read_text()
    assert "What it answers" in report
    assert "data:image/png;base64" in report
    for text in (re.sub(r"<script.*?</script>", "", report, flags=re.S), card):
        assert "share of right answers" in text
        assert "bits per byte" not in text
    shipped = tmp_path / "run" / "winner"
    names = {path.name for path in shipped.iterdir()}
    assert {"config.json", "model.safetensors", "words.json", "preprocessor_config.json", "chipwise.json"} <= names
    assert json.loads((shipped / "config.json").read_text())["id2label"]["0"] in ("yes", "no", "one", "zero")
