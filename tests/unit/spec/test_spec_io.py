"""Architectures as files: what is written is what is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from chipwise.core.errors import SpecError
from chipwise.spec import ArchSpec, io
from chipwise.testing.specs import arch_specs, toy_arch


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
