"""``chipwise train``: every way of execution gives the same training, and being stopped costs nothing."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from chipwise import api
from chipwise.deploy.export.hf import load_pretrained
from chipwise.errors import (
    DataError,
    InputError,
    MissingExtra,
    SpecError,
    StudyError,
    TrainingDiverged,
    UnknownName,
    Unsupported,
)
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData, load_tokens
from chipwise.training.evaluations.folder import evaluate_folder
from chipwise.training.loop import accelerated
from chipwise.training.loop.accelerated import Execution, measured_peak, multiplied, train_accelerated
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.origin import check_inputs, data_spec, read_origin
from chipwise.training.loop.progress import TrainingProgress
from chipwise.training.loop.train_model import execution_of, peak_of, recipe_of, train_model
from chipwise.training.loop.trainer import TrainResult, train

RECIPE = Recipe(window_tokens=24, batch_windows=4, warmup_steps=5)
EXACT = Execution(precision="fp32")


class KilledError(Exception):
    pass


def run(arch: ArchSpec, data: TokenData, folder: Path, steps: int = 24, **more) -> TrainResult:
    more = {"execution": EXACT, "recipe": RECIPE, "seed": 1, **more}
    return train_accelerated(arch, data, steps=steps, folder=folder, **more)


@pytest.fixture
def deep(arch: ArchSpec) -> ArchSpec:
    return replace(arch, layers=(*arch.layers, arch.layers[0]), name="deep")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    words = ["heart", "lung", "hand", "skull", "fever", "defect", "birth", "winter", "pain"]
    random = np.random.default_rng(0)
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{i} " + " ".join(random.choice(words, 8)) for i in range(1500)))
    return path


@pytest.fixture
def spec(arch: ArchSpec, tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    io.save(replace(arch, name="small"), path)
    return path


@pytest.fixture
def fast(text: Path) -> dict[str, object]:
    """What makes a whole training a matter of a second."""
    data = {"source": "files", "paths": [str(text)], "entries": "lines"}
    return {"data": data, "recipe": RECIPE, "execution": EXACT, "peak": "unknown"}


# -- the same as the plain trainer -----------------------------------------------------------------------------------


def test_steps_that_cost_a_64th_train_as_the_same_budget_in_seconds(
    arch: ArchSpec, data: TokenData, tmp_path: Path, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chipwise.training.loop.trainer.fastest_precision", lambda: "fp32")
    by_time = train(arch, data, cpu_budget_s=0.5, folder=tmp_path / "a", clock=clock, recipe=RECIPE, seed=1)
    by_steps = run(arch, data, tmp_path / "b", steps=32)
    assert by_steps.steps == by_time.steps == 32
    assert by_steps.loss == pytest.approx(by_time.loss, rel=1e-6)


def test_accumulated_batches_are_one_larger_batch(deep: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    small = replace(RECIPE, batch_windows=2)
    parts = run(deep, data, tmp_path / "parts", steps=8, recipe=small, execution=replace(EXACT, accumulate=3))
    whole = run(deep, data, tmp_path / "whole", steps=8, recipe=replace(RECIPE, batch_windows=6))
    assert parts.tokens == whole.tokens == 8 * 6 * 24
    assert parts.loss == pytest.approx(whole.loss, rel=1e-4)
    other = run(deep, data, tmp_path / "other", steps=8, recipe=small)
    assert abs(other.loss / whole.loss - 1) > 1e-3  # the comparison can fail


def test_activations_computed_again_change_nothing(deep: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    plain = run(deep, data, tmp_path / "plain")
    again = run(deep, data, tmp_path / "again", execution=replace(EXACT, recompute=True))
    assert again.loss == pytest.approx(plain.loss, rel=1e-6)


def test_activations_are_really_computed_again(
    deep: ArchSpec, data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = accelerated.recomputed
    monkeypatch.setattr(accelerated, "recomputed", lambda *args, **more: (calls.append(1), real(*args, **more))[1])
    run(deep, data, tmp_path, steps=3, execution=replace(EXACT, recompute=True))
    assert len(calls) == 3 * 2  # steps × layers


def test_half_precision_is_another_training_that_learns_as_well(
    arch: ArchSpec, data: TokenData, tmp_path: Path
) -> None:
    full, half = (run(arch, data, tmp_path / p, steps=60, execution=Execution(precision=p)) for p in ("fp32", "bf16"))
    assert (full.dtype, half.dtype) == ("fp32", "bf16")
    assert half.loss != full.loss
    assert half.loss == pytest.approx(full.loss, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["ddp", "fsdp"])
def test_two_processes_are_one_with_twice_the_batch(
    spec: Path, fast: dict[str, object], tmp_path: Path, sharing: str
) -> None:
    program = tmp_path / "both.py"
    program.write_text(
        "import sys\nfrom chipwise.training.loop.train_model import train_model\n"
        "from chipwise.training.loop.accelerated import Execution\n"
        "from chipwise.training.loop.trainer import Recipe\n"
        f"train_model({str(spec)!r}, data={fast['data']!r}, steps=10, out=sys.argv[1], peak='unknown',\n"
        "    recipe=Recipe(window_tokens=24, batch_windows=4, warmup_steps=5),\n"
        f"    execution=Execution(precision='fp32', sharing={sharing!r}))\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, str(program), str(tmp_path / "two")], check=True, timeout=600, capture_output=True)
    alone = {**fast, "execution": replace(EXACT, accumulate=2)}
    train_model(spec, steps=10, out=tmp_path / "one", **alone)
    one, two = (load_file(tmp_path / n / "model" / "model.safetensors") for n in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-3)  # steps are rounded to bf16, of size 1e-2


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", [7, 20])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(
    arch: ArchSpec, data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in a shell's background
    whole = run(arch, data, tmp_path / "whole")
    real = accelerated.AcceleratedRun.after_step

    def interrupt(self: accelerated.AcceleratedRun) -> None:
        if self.at.steps == at_step:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C: the step is finished, then the state written
        real(self)

    monkeypatch.setattr(accelerated.AcceleratedRun, "after_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(arch, data, tmp_path / "parts")
    monkeypatch.setattr(accelerated.AcceleratedRun, "after_step", real)
    signs: list[TrainingProgress] = []
    parts = run(arch, data, tmp_path / "parts", on_progress=signs.append)
    assert parts.steps == whole.steps == 24
    assert parts.loss == whole.loss
    assert signal.getsignal(signal.SIGINT) is before


def test_a_killed_training_goes_on_from_its_last_checkpoint(
    arch: ArchSpec, data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(arch, data, tmp_path / "whole")

    def kill(self: accelerated.AcceleratedRun) -> None:
        if self.at.steps == 9:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(accelerated.AcceleratedRun, "after_step", kill)
        with pytest.raises(KilledError):
            run(arch, data, tmp_path / "parts", checkpoint_every_s=0.0)
    assert run(arch, data, tmp_path / "parts").loss == whole.loss


@pytest.mark.slow
def test_kill_9_in_the_middle_loses_nothing_that_was_written(
    spec: Path, fast: dict[str, object], tmp_path: Path
) -> None:
    program = tmp_path / "long.py"
    program.write_text(
        "from chipwise.training.loop.train_model import train_model\n"
        "from chipwise.training.loop.accelerated import Execution\n"
        "from chipwise.training.loop.trainer import Recipe\n"
        f"train_model({str(spec)!r}, data={fast['data']!r}, steps=4000, out={str(tmp_path / 'out')!r},\n"
        "    peak='unknown', recipe=Recipe(window_tokens=24, batch_windows=4, warmup_steps=5),\n"
        "    execution=Execution(precision='fp32'), checkpoint_every_s=0.05)\n"
    )
    state = tmp_path / "out" / "state" / "stable.safetensors"
    process = subprocess.Popen([sys.executable, str(program)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not state.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert state.exists()
    done = train_model(spec, steps=400, out=tmp_path / "out", resume=True, **fast)
    assert done.result.steps == 400
    assert math.isfinite(done.result.loss)


def test_a_larger_budget_pays_only_what_is_new(
    arch: ArchSpec, data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, batches = TokenData.loss, []
    monkeypatch.setattr(TokenData, "loss", lambda *args, **more: batches.append(1) or real(*args, **more))
    run(arch, data, tmp_path, steps=20)
    before = len(batches)
    longer = run(arch, data, tmp_path, steps=40)
    between = len(batches)
    fresh = run(arch, data, tmp_path / "fresh", steps=40)
    assert longer.loss == fresh.loss
    # it set out from the state before the first one's fall, which had seen at least half of its 20 batches
    assert 10 <= (len(batches) - between) - (between - before) <= 20


# -- divergence ------------------------------------------------------------------------------------------------------


def fail_from(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    real, calls = TokenData.loss, iter(range(10**6))

    def loss(*args, **more) -> torch.Tensor:
        value = real(*args, **more)
        return value * math.nan if next(calls) >= first else value

    monkeypatch.setattr(TokenData, "loss", loss)


def test_divergence_is_one_clear_error_and_the_last_good_state_stays(
    arch: ArchSpec, data: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_from(patch, 10)
        with pytest.raises(TrainingDiverged, match=r"half the learning rate.*last good state is kept in .*state"):
            run(arch, data, tmp_path / "state", checkpoint_every_s=0.0)
    assert all(np.isfinite(value).all() for value in load_file(tmp_path / "state" / "stable.safetensors").values())
    whole = run(arch, data, tmp_path / "whole")
    assert run(arch, data, tmp_path / "state").loss == whole.loss


# -- figures ---------------------------------------------------------------------------------------------------------


def test_parameters_that_multiply_by_hand(arch: ArchSpec) -> None:
    """d 32, 2 heads of 16 on 1 KV head, SwiGLU of 48, 300 tokens: q and out 32², k and v 32·16, three of 32·48."""
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    assert multiplied(arch) == layer + 300 * 32
    shared = Layer(attention=arch.layers[0].attention, ffn=arch.layers[0].ffn, shares=0)
    assert multiplied(replace(arch, layers=(arch.layers[0], shared))) == 2 * layer + 300 * 32
    assert multiplied(arch.with_tied(False)) == layer + 300 * 32  # looking up multiplies nothing


def test_mfu_is_six_flops_a_parameter_and_token_over_the_peak(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    signs: list[TrainingProgress] = []
    run(arch, data, tmp_path, execution=replace(EXACT, peak_flops_per_s=1e12), on_progress=signs.append)
    last = signs[-1]
    assert last.mfu == pytest.approx(6 * multiplied(arch) * last.tokens_per_s / 1e12)
    assert (last.steps, last.tokens, last.left_s) == (24, 24 * 4 * 24, 0.0)


def test_a_peak_that_is_not_known_is_said_to_be_unknown() -> None:
    assert peak_of("unknown", EXACT) == (None, "unknown peak")
    assert peak_of("2 TFLOP/s", EXACT) == (2e12, "as stated")
    rate, said = peak_of("h100-sxm", Execution(precision="bf16"))
    assert rate == pytest.approx(989e12, rel=0.01)
    assert said == "data sheet of h100-sxm, bf16"
    assert measured_peak("meta", torch.float32) is None
    with pytest.raises(InputError, match="neither a rate"):
        peak_of("fast", EXACT)


# -- from file to folder ---------------------------------------------------------------------------------------------


def test_from_a_spec_to_a_folder_and_on_from_there(spec: Path, fast: dict[str, object], tmp_path: Path) -> None:
    done = train_model(spec, tokens=10 * 4 * 24, out=tmp_path / "out", **fast)
    assert done.result.steps == 10
    assert done.mfu is None
    arch, weights = load_pretrained(done.folder)
    assert arch.digest == io.load(spec).digest
    np.testing.assert_array_equal(weights["embedding.weight"], load_file(done.result.weights)["embedding.weight"])
    on = train_model(done.folder, steps=8, out=tmp_path / "on", **{**fast, "recipe": replace(RECIPE, warmup_steps=1)})
    fresh = train_model(spec, steps=8, out=tmp_path / "fresh", **{**fast, "recipe": replace(RECIPE, warmup_steps=1)})
    assert on.result.loss < fresh.result.loss
    assert (on.folder / "tokenizer.json").read_bytes() == (done.folder / "tokenizer.json").read_bytes()


def test_a_folder_is_taken_up_only_when_asked_and_only_by_its_own_training(
    spec: Path, fast: dict[str, object], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = train_model(spec, steps=6, out=out, **fast)
    with pytest.raises(StudyError, match="--resume"):
        train_model(spec, steps=6, out=out, **fast)
    again = train_model(spec, steps=6, out=out, resume=True, **fast)
    assert again.result == replace(first.result, spent_cpu_s=0.0)
    assert again.tokens_per_s is None
    with pytest.raises(StudyError, match="a training run that differs"):
        train_model(spec, steps=6, out=out, resume=True, seed=5, **fast)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({}, "one budget"),
        ({"steps": 5, "tokens": 5}, "one budget"),
        ({"steps": 0}, "--steps must be positive"),
        ({"tokens": -3}, "--tokens must be positive"),
        ({"cpu_seconds": math.nan}, "--cpu-seconds must be positive"),
    ],
)
def test_a_budget_is_one_positive_number(spec: Path, fast: dict[str, object], budget: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        train_model(spec, **budget, **fast)


def test_what_cannot_be_trained_is_refused_before_any_text_is_read(fast: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="cannot be trained"):
        train_model("Mixtral-8x7B-v0.1", steps=5, out=tmp_path / "out", **fast)
    with pytest.raises(InputError, match="vocabulary must have from 257 to 65536 tokens, not 128256"):
        train_model("Llama-3.1-8B", steps=5, out=tmp_path / "out", **fast)
    with pytest.raises(UnknownName, match="gpt2"):
        train_model("gpt-22", steps=5, out=tmp_path / "out", **fast)
    assert not (tmp_path / "out").exists()


def test_options_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--accumulate"):
        Execution(accumulate=0)
    with pytest.raises(InputError, match="bf16 or fp32, not 'int8'"):
        execution_of("cpu", "int8", 1)
    with pytest.raises(InputError, match="cpu or cuda"):
        execution_of("tpu", None, 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="finds no GPU here"):
        execution_of("cuda", None, 1)
    with pytest.raises(InputError, match="--batch must be at least 1"):
        recipe_of(0, None, 1.0)
    with pytest.raises(InputError, match="--rate"):
        recipe_of(None, None, -1.0)


def test_seconds_of_a_gpu_are_no_cpu_seconds(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a GPU"):
        train_accelerated(arch, data, execution=Execution(device="cuda"), cpu_budget_s=5.0, seed=0, folder=tmp_path)


def test_texts_are_sources_files_or_a_run_files_own(tmp_path: Path) -> None:
    assert data_spec("medical-definitions")[0].source == "medical-definitions"
    assert data_spec(["a.txt", "b/*.txt"])[0].paths == ("a.txt", "b/*.txt")
    run_file = tmp_path / "own.yaml"
    run_file.write_text("name: own\ndata: {source: files, paths: [x.txt], entries: lines}\n")
    found, base = data_spec(str(run_file))
    assert (found.entries, base) == ("lines", tmp_path.resolve())
    with pytest.raises(UnknownName, match="did you mean 'medical-definitions'"):
        data_spec("medical-definition")
    run_file.write_text("name: own\n")
    with pytest.raises(SpecError, match=r"own\.yaml: data: is missing"):
        data_spec(str(run_file))


@pytest.mark.parametrize("beside", ["tokenizer.json", "pytorch_model.bin", "model.safetensors.index.json"])
def test_a_trained_models_folder_whose_weights_are_missing_does_not_start_from_random_ones(
    beside: str, tmp_path: Path
) -> None:
    config = {"model_type": "gpt2", "vocab_size": 300, "n_embd": 16, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_origin(tmp_path).weights is None  # a shape alone: random weights are what is meant
    (tmp_path / beside).write_text("{}")
    there = re.escape(beside)
    said = rf"its weights \(model\.safetensors\) are missing, although {there} is there; .*config\.json to start"
    for call in (read_origin, lambda folder: check_inputs(folder, "medical-definitions")):
        with pytest.raises(SpecError, match=said):
            call(tmp_path)
    assert read_origin(tmp_path / "config.json").weights is None


def test_weights_without_their_tokenizer_are_refused(spec: Path, fast: dict[str, object], tmp_path: Path) -> None:
    folder = train_model(spec, steps=3, out=tmp_path / "out", **fast).folder
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    state["added_tokens"] = []
    whole = path.read_text()
    path.write_text(json.dumps(state))
    with pytest.raises(InputError, match="which separates texts"):
        read_origin(folder)
    path.write_text(json.dumps({**json.loads(whole), "padding": "x"}))
    with pytest.raises(DataError, match=r"model/tokenizer\.json: has no tokenizer"):
        read_origin(folder)
    path.unlink()
    with pytest.raises(SpecError, match="is missing, which a model with weights needs"):
        read_origin(folder)


def with_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """``folder`` with other weights."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def test_going_on_from_good_weights_keeps_the_better_ones(
    spec: Path, fast: dict[str, object], text: Path, tmp_path: Path
) -> None:
    """A rate a thousand times too high ruins what is there: the given weights stay, and the figures say so."""
    first = train_model(spec, steps=15, out=tmp_path / "first", **fast)
    assert (first.kept, first.start_loss) == ("trained", None)
    ruinous = replace(RECIPE, matrix_rate=2.0, table_rate=2.0, warmup_steps=1)
    second = train_model(first.folder, steps=4, out=tmp_path / "second", **{**fast, "recipe": ruinous})
    assert second.start_loss == pytest.approx(first.result.loss, rel=1e-5)
    assert second.result.loss > second.start_loss
    assert second.kept == "start"
    assert second.test_loss == pytest.approx(first.test_loss, rel=1e-6)
    old, new = (load_file(done.folder / "model.safetensors") for done in (first, second))
    assert all(np.array_equal(old[name], new[name]) for name in old)
    third = train_model(first.folder, steps=60, out=tmp_path / "third", **fast)
    assert third.kept == "trained"
    assert third.result.loss < third.start_loss


def test_the_test_part_is_not_the_validation_part(spec: Path, fast: dict[str, object], tmp_path: Path) -> None:
    done = train_model(spec, steps=20, out=tmp_path / "out", **fast)
    data = load_tokens(tmp_path / "out" / "corpus" / "tokens-300.npz")
    arch, weights = load_pretrained(done.folder)
    assert done.test_loss == data.quality(load_model(arch, weights), split="test").bits_per_byte
    assert done.test_loss != done.result.loss


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recipe": replace(RECIPE, batch_windows=8)}, r"--batch \(4 there, 8 now\)"),
        ({"recipe": replace(RECIPE, window_tokens=16)}, r"--window \(24 there, 16 now\)"),
        ({"recipe": replace(RECIPE, matrix_rate=0.02)}, "differs in --rate;"),
        ({"recipe": replace(RECIPE, clip_norm=0.5)}, "differs in recipe;"),
        ({"seed": 5}, r"--seed \(0 there, 5 now\)"),
        ({"execution": replace(EXACT, accumulate=2)}, r"--accumulate, over all processes \(1 there, 2 now\)"),
        ({"execution": Execution(precision="bf16")}, r"--precision \(fp32 there, bf16 now\)"),
    ],
)
def test_resuming_with_another_recipe_is_refused_and_changes_nothing(
    spec: Path, fast: dict[str, object], tmp_path: Path, change: dict[str, object], named: str
) -> None:
    out = tmp_path / "out"
    train_model(spec, steps=6, out=out, **fast)
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    with pytest.raises(StudyError, match=f"a training run that {'differs in ' * (named[0] == '-')}{named}"):
        train_model(spec, steps=12, out=out, resume=True, **{**fast, **change})
    assert {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()} == before
    assert train_model(spec, steps=12, out=out, resume=True, **fast).result.steps == 12


def test_resuming_from_other_weights_or_another_text_is_refused(
    spec: Path, fast: dict[str, object], text: Path, tmp_path: Path
) -> None:
    folder = train_model(spec, steps=3, out=tmp_path / "first", **fast).folder
    train_model(folder, steps=3, out=tmp_path / "out", **fast)
    with_weights(folder, lambda weights: weights["model.norm.weight"].__setitem__(0, 2.0))
    with pytest.raises(StudyError, match="differs in starting weights;"):
        train_model(folder, steps=6, out=tmp_path / "out", resume=True, **fast)
    text.write_text(text.read_text() + "\none line more")
    with pytest.raises(StudyError, match="tokens of a different text"):
        train_model(spec, steps=6, out=tmp_path / "first", resume=True, **fast)


def test_a_text_that_is_missing_leaves_no_folder(spec: Path, fast: dict[str, object], tmp_path: Path) -> None:
    missing = {**fast, "data": [str(tmp_path / "none.txt")]}
    with pytest.raises(DataError, match=r"none\.txt"):
        train_model(spec, steps=3, out=tmp_path / "out", **missing)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(
    spec: Path, fast: dict[str, object], text: Path, tmp_path: Path, value: float
) -> None:
    folder = train_model(spec, steps=3, out=tmp_path / "out", **fast).folder
    with_weights(folder, lambda weights: weights["model.norm.weight"].__setitem__(0, value))
    rows = "".join(f"item {i} {'abc'[i % 3]},{'abc'[i % 3]}\n" for i in range(200))
    (tmp_path / "task.csv").write_text("text,label\n" + rows)
    for use in (
        lambda: api.sensitivity(folder, text),
        lambda: api.evaluate(folder, tmp_path / "task.csv", with_baseline=False),
        lambda: train_model(folder, steps=3, out=tmp_path / "again", **fast),
    ):
        with pytest.raises(SpecError, match=r"norm\.weight has values that are not finite"):
            use()


def test_a_folder_in_the_place_of_weights_is_named(
    spec: Path, fast: dict[str, object], text: Path, tmp_path: Path
) -> None:
    folder = train_model(spec, steps=3, out=tmp_path / "out", **fast).folder
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(SpecError, match=r"model\.safetensors: there is no such file"):
        api.sensitivity(folder, text)


def test_a_missing_package_is_reported_before_a_model_is_tuned(
    spec: Path, fast: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train_model(spec, steps=3, out=tmp_path / "out", **fast).folder
    rows = "".join(f"item {i} {'abc'[i % 3]},{'abc'[i % 3]}\n" for i in range(200))
    (tmp_path / "task.csv").write_text("text,label\n" + rows)
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    monkeypatch.setattr(
        "chipwise.training.evaluations.evaluate.evaluate_task", lambda *_, **__: pytest.fail("tuned first")
    )
    with pytest.raises(MissingExtra, match="scikit-learn"):
        evaluate_folder(folder, tmp_path / "task.csv")


@pytest.mark.parametrize("command", [["train", "--steps", "1"], ["shrink"], ["sensitivity", "--text", "none.txt"]])
def test_a_missing_model_is_reported_before_torch_is_loaded(command: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': sys.exit('torch was loaded')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from chipwise.cli import main\n"
        "main()\n"
    )
    name, *options = command
    done = subprocess.run(
        [sys.executable, "-c", program, name, "./no/such/model", *options], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "no/such/model" in done.stderr
    assert "torch was loaded" not in done.stderr


def test_evaluating_needs_a_trained_folder(spec: Path, tmp_path: Path) -> None:
    rows = "".join(f"item {i} {'abc'[i % 3]},{'abc'[i % 3]}\n" for i in range(200))
    task = tmp_path / "task.csv"
    task.write_text("text,label\n" + rows)
    with pytest.raises(InputError, match="weights and tokenizer"):
        evaluate_folder(spec, task)
    with pytest.raises(UnknownName, match="tune"):
        evaluate_folder(spec, task, method="tunes")


def test_the_command_line_trains_and_evaluates(spec: Path, text: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from chipwise.cli.app import app

    runner = CliRunner()
    run_file = tmp_path / "own.yaml"
    run_file.write_text(f"data: {{source: files, paths: [{text}], entries: lines}}\n")
    flags = ["--steps", "4", "--batch", "2", "--window", "16", "--device", "cpu", "--peak", "1 TFLOP/s"]
    trained = runner.invoke(
        app, ["train", str(spec), "--data", str(run_file), "--out", str(tmp_path / "out"), *flags, "--json"]
    )
    assert trained.exit_code == 0, trained.output
    said = json.loads(trained.stdout)
    assert said["result"]["tokens"] == 4 * 2 * 16
    assert said["peak"] == "as stated"
    rows = "".join(f"item {i} {'abc'[i % 3]},{'abc'[i % 3]}\n" for i in range(200))
    (tmp_path / "task.csv").write_text("text,label\n" + rows)
    asked = ["evaluate", said["folder"], "--task", str(tmp_path / "task.csv"), "--method", "probe", "--no-baseline"]
    judged = runner.invoke(app, [*asked, "--json"])
    assert judged.exit_code == 0, judged.output
    reached = json.loads(judged.stdout)
    assert reached["baseline"] is None
    assert reached["model"]["low"] <= reached["model"]["value"] <= reached["model"]["high"]
    shown = runner.invoke(app, asked)
    assert "accuracy (95 %)" in shown.output
    assert "true class (down), predicted (across):\n" in shown.output
    held = [sum(row) for row in reached["model"]["confusion"]]
    assert [f"of {count} right" in shown.output for count in held] == [True] * 3


def test_tables_decay_in_a_new_training_and_as_before_in_an_older_one(spec: Path, fast: dict, tmp_path: Path) -> None:
    """A folder from before there was the decay continues without it; weights that were given are not decayed."""

    def held(folder: Path) -> dict:
        return json.loads((folder / "training.json").read_text())["recipe"]

    first = train_model(spec, steps=4, out=tmp_path / "new", **fast)
    assert held(tmp_path / "new")["table_decay"] == 0.1
    on = tmp_path / "on"
    train_model(first.folder, steps=4, out=on, **fast)
    assert "table_decay" not in held(on)
    older = json.loads((tmp_path / "new" / "training.json").read_text())
    del older["recipe"]["table_decay"]
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "training.json").write_text(json.dumps(older))
    train_model(spec, steps=4, out=tmp_path / "older", resume=True, **fast)
    assert "table_decay" not in held(tmp_path / "older")
