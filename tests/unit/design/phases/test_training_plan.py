"""A training plan: hours, money and batches by pencil, rates by width, and a script that runs or says why not."""

import os
import subprocess

import pytest
import typer

from chipwise.cli.app import app
from chipwise.design.phases.training_plan import TOKENS_PER_PARAMETER, training_plan, write_training_plan
from chipwise.errors import DoesNotFit, InputError, SpecError
from chipwise.hardware import datasheet
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform
from chipwise.model.space.designs import design_of
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec
from chipwise.training.laws.laws import shipped


def model(depth: int = 12, width: int = 768, *, name: str = "small"):
    return uniform(vocab_size=32_000, d_model=width, depth=depth, heads=width // 64, ffn_width=4 * width,
                   max_tokens=1024, name=name)  # fmt: skip


def with_experts():
    layer = {"heads": 8, "kv_heads": 8, "ffn": "swiglu-8x2", "ffn_width": 1024}
    spec = SpaceSpec(d_model=(512,), depth=(8,), vocab_size=(32_000,), head_size=(64,), max_tokens=1024,
                     layer=LayerSpace(heads=(8,), kv_heads=(8,), ffn=("swiglu-8x2",), ffn_width=(1024,)))  # fmt: skip
    choices = {"d_model": 512, "vocab_size": 32_000, "head_size": 64, "tie_embeddings": True, "weights": "bf16"}
    return design_of({**choices, "sharing": "none", "layers": [layer] * 8}, spec=spec, name="experts")


def test_hours_money_and_batches_by_pencil() -> None:
    plan = training_plan(model(), devices=4, tokens=10e9)
    step_tokens = plan.devices * plan.batch * plan.accumulate * plan.window_tokens
    assert step_tokens == 2**19
    assert plan.steps == -(-10e9 // step_tokens)
    assert plan.device_hours.value == pytest.approx(plan.steps * plan.step.value * 4 / 3600)
    assert plan.device_hours.low < plan.device_hours.value < plan.device_hours.high
    assert plan.usd.value == pytest.approx(plan.device_hours.value * 3600 * datasheet.load("h100-sxm").price_usd_per_s)
    flops = 6 * model().parameters() * 10e9  # Kaplan et al. 2020: six a parameter and token
    seconds = flops / (plan.mfu * datasheet.load("h100-sxm").peak("bf16"))
    assert plan.device_hours.value * 3600 == pytest.approx(seconds, rel=0.01)
    assert plan.loss.loss == shipped().loss(model(), 10e9)


def test_twenty_tokens_a_parameter_unless_stated() -> None:
    assert training_plan(model()).tokens == TOKENS_PER_PARAMETER * model().active_parameters()


def test_rates_fall_with_the_root_of_the_width() -> None:
    narrow, wide = training_plan(model(width=512), tokens=1e9), training_plan(model(width=2048), tokens=1e9)
    assert narrow.matrix_rate == pytest.approx(2 * wide.matrix_rate)
    assert narrow.table_rate == pytest.approx(2 * wide.table_rate)
    assert any("for width 2048 are extrapolated" in note for note in wide.notes)


def test_activations_are_recomputed_only_where_memory_asks_for_it() -> None:
    small, large = (
        training_plan(model(), tokens=1e9),
        training_plan(model(36, 2560), device="a100-sxm-80gb", tokens=1e9),
    )
    assert not small.recompute
    for plan in (small, large):
        assert plan.memory_bytes <= datasheet.load(plan.device).mem_capacity_bytes
    with pytest.raises(DoesNotFit):
        training_plan(model(80, 8192), tokens=1e9)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(SpecError, match="devices"):
        training_plan(model(), devices=0)
    with pytest.raises(InputError, match="tokens"):
        training_plan(model(), tokens=1e6)


def test_the_script_gives_train_options_that_it_has(tmp_path) -> None:
    arch, plan = model(), training_plan(model(), devices=1, tokens=2e9)
    paths = write_training_plan(arch, tmp_path / "winner", plan)
    assert io.load(paths[1]).digest == arch.digest
    fake = tmp_path / "bin" / "chipwise"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$SAID"\n')
    fake.chmod(0o755)
    said = tmp_path / "said"
    settings = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "SAID": str(said)}
    missing = subprocess.run([paths[2]], env=settings, capture_output=True, text=True, check=False)
    assert missing.returncode != 0
    assert "text" in missing.stderr
    subprocess.run([paths[2]], env=settings | {"DATA": "corpus/*.txt"}, check=True)
    words = said.read_text().splitlines()
    assert words[:2] == ["train", "model.json"]
    known = {option for item in typer.main.get_command(app).commands["train"].params for option in item.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert words[words.index("--tokens") + 1] == "2000000000"
    assert words[words.index("--data") + 1] == "corpus/*.txt"


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (1, "\nchipwise train "),
        (6, "torchrun --nproc-per-node 6 -m chipwise"),
        (64, "torchrun --nnodes 8 --nproc-per-node 8 "),
        (12, "torchrun --nnodes 2 --nproc-per-node 6 "),  # two machines of six alike, not one of eight and one of four
    ],
)
def test_more_devices_than_a_machine_has_are_launched_on_several(tmp_path, devices, said) -> None:
    script = write_training_plan(model(), tmp_path, training_plan(model(), devices=devices, tokens=2e9))[2]
    assert said in script.read_text()
    done = subprocess.run(
        [script], env={"DATA": "text", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert ("run this on each of" in done.stderr) == (devices > 8)


def test_a_model_that_is_not_built_here_gets_settings_for_another_trainer(tmp_path) -> None:
    design = with_experts()
    plan = training_plan(design, tokens=10e9)
    script = write_training_plan(design, tmp_path, plan)[2]
    run = subprocess.run([script], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "builds no model" in run.stderr
    assert f"{plan.steps} steps" in script.read_text()


def test_the_plan_says_what_nobody_stated() -> None:
    plan = training_plan(model(), device="rtx-4090", tokens=10e9)
    assert (plan.usd is None) == (datasheet.load("rtx-4090").price is None)
    if plan.usd is None:
        assert "price unknown" in plan.headline()
