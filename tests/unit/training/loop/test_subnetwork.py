"""Sub-networks of shared weights, exported: the same model, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.deploy.export.hf import load_pretrained
from chipwise.errors import InputError, SpecError
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import load_model
from chipwise.training.supernet.export import export_subnetwork
from chipwise.training.supernet.score import score
from chipwise.training.supernet.trainer import SupernetRecipe, train_supernet


def small(d: int, depth: int, **more) -> ArchSpec:
    return uniform(
        vocab_size=300, d_model=d, depth=depth, heads=2, kv_heads=1, head_size=16, ffn_width=32, name="sub", **more
    )


DESIGNS = [small(32, 2), small(16, 1)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, data: TokenData) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    ticks = iter(range(10**6))
    train_supernet(
        DESIGNS,
        {300: data},
        cpu_budget_s=0.5,
        seed=1,
        folder=folder,
        recipe=SupernetRecipe(window_tokens=24, batch_windows=4, warmup_steps=2),
        clock=lambda: next(ticks) / 16,
    )
    return folder


@pytest.mark.parametrize("arch", [*DESIGNS, small(24, 1)], ids=["whole", "trained", "between"])
def test_an_exported_sub_network_is_as_good_as_its_slice(shared: Path, tmp_path, data: TokenData, arch) -> None:
    """Bits per byte of the folder, read back, are those of the slice in the shared weights."""
    out = export_subnetwork(shared, arch, tmp_path / "sub")
    found, weights = load_pretrained(out)
    assert found.digest == arch.digest
    (weights_file,) = shared.glob("weights-*.safetensors")
    result = json.loads(next(iter(shared.glob("result-*.json"))).read_text())
    whole = io.from_data(result["whole"])
    (sliced,) = score(weights_file, whole, [arch], data)
    alone = data.quality(load_model(found, {name: np.asarray(value) for name, value in weights.items()}))
    assert alone.bits_per_byte == pytest.approx(sliced, rel=1e-3)


def test_the_same_training_is_still_continued(shared: Path, data: TokenData) -> None:
    """What is written for others does not make a training look like another one."""
    again = train_supernet(
        DESIGNS,
        {300: data},
        cpu_budget_s=0.5,
        seed=1,
        folder=shared,
        recipe=SupernetRecipe(window_tokens=24, batch_windows=4, warmup_steps=2),
    )
    assert again.spent_cpu_s == 0


def test_the_command_and_what_it_refuses(shared: Path, tmp_path) -> None:
    io.save(small(16, 1), tmp_path / "small.json")
    io.save(small(64, 1), tmp_path / "large.json")
    run = CliRunner()
    arguments = ["subnetwork", str(shared), str(tmp_path / "small.json"), "--out", str(tmp_path / "out"), "--json"]
    done = run.invoke(app, arguments, catch_exceptions=False)
    assert json.loads(done.output) == {"folder": str(tmp_path / "out")}
    assert load_pretrained(tmp_path / "out")[0].d_model == 16
    with pytest.raises(SpecError, match="does not fit into the whole's"):
        chipwise.export_subnetwork(shared, tmp_path / "large.json", out=tmp_path / "no")
    with pytest.raises(SpecError, match="no finished training of shared weights"):
        chipwise.export_subnetwork(tmp_path, tmp_path / "small.json", out=tmp_path / "no")
    with pytest.raises(InputError, match="is not a run, so it has no trial 3"):
        chipwise.export_subnetwork(shared, 3, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_training_of_an_earlier_version_says_so(shared: Path, tmp_path) -> None:
    for path in shared.glob("*-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (result,) = tmp_path.glob("result-*.json")
    old = {name: value for name, value in json.loads(result.read_text()).items() if name != "whole"}
    result.write_text(json.dumps(old))
    with pytest.raises(SpecError, match="earlier version, which did not store their architecture"):
        export_subnetwork(tmp_path, small(16, 1), tmp_path / "out")
