"""Architectures as files: what is written is what is read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from chipwise.api.testing.specs import toy_arch
from chipwise.errors import SpecError
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.read import resolve
from support.models import arch_specs


@given(arch_specs())
def test_plain_data_gives_the_same_model_back(arch: ArchSpec) -> None:
    assert io.from_data(json.loads(json.dumps(io.to_data(arch)))) == arch


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
@given(arch=arch_specs())
def test_files_give_the_same_model_back(tmp_path_factory, suffix: str, arch: ArchSpec) -> None:
    file = tmp_path_factory.mktemp("arch") / f"arch.{suffix}"
    io.save(arch, file)
    assert io.load(file) == arch


def test_another_schema_is_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"arch/9.*reads chipwise\.arch/1"):
        io.from_data(io.to_data(toy_arch()) | {"schema": "chipwise.arch/9"})


def test_an_unknown_field_deep_inside_is_named_with_its_path(tmp_path) -> None:
    data = io.to_data(toy_arch())
    data["layers"][1]["ffn"]["widht"] = 3
    (tmp_path / "m.json").write_text(json.dumps(data))
    with pytest.raises(SpecError, match=r"m\.json: layers\[1\]\.ffn\.widht: unknown field; did you mean 'width'"):
        io.load(tmp_path / "m.json")


def test_the_documented_file_is_a_model_of_the_stated_size(tmp_path) -> None:
    """By hand: 32000·1024 of the table; per layer 2·1024·1024 + 2·1024·256 of attention and two norms; three SwiGLUs of
    2816; 16 experts and a shared one of 1408 behind a router; the last norm."""
    page = Path(__file__).parents[4] / "docs" / "reference" / "spec-file.md"
    found = re.search(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    file = tmp_path / "mine.yaml"
    file.write_text(found[1], encoding="utf-8")
    attention, norms = 2 * 1024 * 1024 + 2 * 1024 * 256, 9 * 1024
    rest = 32_000 * 1024 + 4 * attention + 3 * 3 * 1024 * 2816 + 16 * 1024 + norms
    expert = 3 * 1024 * 1408
    arch = resolve(file)
    assert (arch.parameters(), arch.active_parameters()) == (rest + 17 * expert, rest + 3 * expert)
    assert "143 million parameters; each token uses 82 million of them" in page.read_text(encoding="utf-8")
