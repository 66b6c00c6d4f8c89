"""docs/formats.md: the page is what the exporters say, and each entry computes what torch computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")
pytest.importorskip("openvino", reason="openvino comes with chipwise[openvino]")
pytest.importorskip("xllamacpp", reason="xllamacpp comes with chipwise[all]")

import chipwise
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.sources import COMPRESSED, holding
from chipwise.deploy.runtimes import missing
from chipwise.training.data.tokenizer import train_tokenizer

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("formats_script", DOCS / "scripts" / "formats.py")
formats = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(formats)


def test_the_page_is_up_to_date() -> None:
    assert formats.PAGE.read_text(encoding="utf-8") == formats.page()


@pytest.mark.slow
@pytest.mark.parametrize("block", formats.blocks())
def test_every_entry_was_run(block, tmp_path) -> None:
    arch, tokens = formats.blocks()[block], tmp_path / "tokens.json"
    train_tokenizer([file.read_text(encoding="utf-8") for file in DOCS.rglob("*.md")], 512).save(str(tokens))
    model = save_pretrained(arch, random_weights(arch, seed=0), tokens, tmp_path / "model")
    absent = {kind for kind in ("executorch", "litert") if missing(kind)}
    for kind in set(holding(arch)) - {COMPRESSED, "coreml"} - absent:
        check = chipwise.export(model, to=kind, weights="fp32", out=tmp_path / kind).verified[0]
        assert check.decode_steps == 32
        assert check.greatest <= 1e-5 * check.largest
