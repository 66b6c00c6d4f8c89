"""From a folder to a smaller one: limits that are kept, healing that heals, kills that cost nothing."""

from __future__ import annotations

import errno
import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import bert_folder, decoder_folder, some_tokens, text_file
from transformers import AutoModel, AutoModelForCausalLM
from typer.testing import CliRunner

from chipwise.cli.app import app
from chipwise.cli.stages import Progress
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder
from chipwise.design.shrink import forward, stages, text_material
from chipwise.design.shrink.block_costs import Costs, LocalClock, measure_costs
from chipwise.design.shrink.block_losses import Replacement
from chipwise.design.shrink.block_selection import (
    Limits,
    choose_exactly,
    choose_first_layers,
    choose_uniform,
    options_of,
)
from chipwise.design.shrink.distillation import Distiller, Healing
from chipwise.design.shrink.forward import autocast, states
from chipwise.design.shrink.importance import Statistics, load_statistics, save_statistics
from chipwise.design.shrink.shrink_model import ShrinkRequest, Shrunk, limit_of, shrink_model
from chipwise.design.shrink.sizes import Sizes, blocks, cut_arch, whole_sizes
from chipwise.design.shrink.texts import Texts, make_targets
from chipwise.errors import DiskFull, Infeasible, InputError, SpecError, StudyError, TrainingDiverged, UnknownName
from chipwise.model.kinds.encoder.form import without_head
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.calibration import Choice, choose

QUICK = Healing(steps=20, rate=2e-3, warmup_steps=2, batch_tokens=256)


def settings(tmp_path: Path, **changes: object) -> dict:
    text = tmp_path / "text.txt"
    if not text.exists():
        text_file(text)
    data = {"source": "files", "paths": [str(text)], "entries": "lines"}
    common = {"data": data, "tokens": 16, "longest": 16, "healing": QUICK}
    return common | {"measured": False, "out": tmp_path / "out"} | changes


def shrunk(folder: Path, **given: object) -> Shrunk:
    """The cut of a request, from its fields and the arguments beside it in one mapping."""
    beside = {name: given.pop(name) for name in ("out", "resume", "measured") if name in given}
    return shrink_model(folder, ShrinkRequest(**given), **beside)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(autouse=True)
def quick_timing(monkeypatch) -> None:
    """Seconds of a pass as its parameters: what is tested here is what is done with them."""
    from chipwise.design.shrink import block_costs

    def timed(archs, workload, weights, seconds, rounds, told):
        seconds = [1e-6 * sum(arch.layer_parameters(layer) for layer in arch.layers) + 1e-3 for arch in archs]
        return [{"request": one, "ttft": one} for one in seconds]

    monkeypatch.setattr(block_costs, "_timed", timed)


def unit_costs() -> dict[str, Costs]:
    """A second for each head and for 16 neurons each."""
    heads, neurons = {n: float(n) for n in range(5)}, {n: n / 16 for n in range(0, 65, 16)}
    return {"request": Costs(base_s=1.0, block_s={"attention": heads, "ffn": neurons})}


def test_both_ways_keep_the_limit_and_heal(bert, tmp_path) -> None:
    whole = load_pretrained(bert)[0]
    for method in ("exact", "uniform", "truncate"):
        found = shrunk(bert, latency="40 %", method=method, **settings(tmp_path, resume=method != "exact"))
        assert found.limit_s is not None
        assert found.predicted_s <= found.limit_s
        assert found.loss_after < found.loss_before
        assert found.parameters < found.original_parameters == without_head(whole).parameters()
        kept, weights = load_pretrained(found.folder)
        assert kept.parameters() == found.parameters == sum(value.size for value in weights.values())
        theirs = AutoModel.from_pretrained(found.folder, trust_remote_code=True).eval()
        tokens, mask = some_tokens()
        with torch.no_grad():
            expected = theirs(tokens[:1], attention_mask=mask[:1]).last_hidden_state.mean(1).numpy()
        onnx = OnnxEncoder(tmp_path / "out" / method / "model.onnx").encode(tokens[:1].numpy())
        assert np.abs(onnx - expected).max() < 1e-4
        assert json.loads((tmp_path / "out" / method / "result.json").read_text())["sizes"]["heads"]
    assert len(found.arch.layers) < 3  # truncation leaves whole layers out


def test_a_decoder_is_cut_and_still_generates(tmp_path) -> None:
    folder = decoder_folder(tmp_path / "m")
    found = shrunk(folder, latency="40 %", **settings(tmp_path, new_tokens=4))
    assert found.loss_after < found.loss_before
    model = AutoModelForCausalLM.from_pretrained(found.folder, trust_remote_code=True).eval()
    prompt = torch.tensor([[2, 10, 11]])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
    assert out.shape == (1, 7)


def test_nothing_to_cut_loses_nothing(bert, tmp_path) -> None:
    found = shrunk(bert, latency="200 %", **settings(tmp_path, healing=Healing(steps=0)))
    assert found.sizes == whole_sizes(found.arch)
    assert found.loss_before < 1e-4  # half floats
    assert found.parameters == found.original_parameters


def test_memory_is_a_limit_too(bert, tmp_path) -> None:
    found = shrunk(bert, latency=None, memory="70 %", **settings(tmp_path, healing=Healing(steps=0)))
    assert found.parameters <= 0.7 * found.original_parameters
    with pytest.raises(Infeasible, match="memory: at least"):
        shrunk(bert, latency=None, memory="1 kB", **settings(tmp_path, resume=True))


def test_a_killed_healing_ends_as_an_undisturbed_one(bert, tmp_path) -> None:
    arch, weights = load_pretrained(bert)
    arch = without_head(arch)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    generator = np.random.default_rng(0)
    texts = Texts(tokens=generator.integers(4, 30, 400), starts=np.arange(0, 401, 10))
    targets = make_targets(arch, start, texts, tmp_path / "targets.npy")
    worse = {name: value + 0.05 * torch.ones_like(value) for name, value in start.items()}

    def run(path: Path, *, stop_at: int | None = None) -> dict:
        told = lambda step, _steps, _loss: stop() if step == stop_at else None  # noqa: E731
        made = Distiller(arch, worse, targets, healing=QUICK, seed=3, path=path)
        return made.run(told, checkpoint_every_s=0.0).weights

    def stop() -> None:
        raise KeyboardInterrupt

    whole = run(tmp_path / "whole.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed.safetensors", stop_at=5)
    again = run(tmp_path / "killed.safetensors")
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, atol=1e-6, rtol=1e-5)
    assert torch.equal(whole["embedding.weight"], worse["embedding.weight"])  # the token table stays
    (tmp_path / "killed.safetensors").write_bytes(b"torn")
    torch.testing.assert_close(run(tmp_path / "killed.safetensors"), whole, atol=1e-6, rtol=1e-5)


def test_a_loss_that_is_no_number_is_tried_again_once(bert, tmp_path, monkeypatch) -> None:
    arch, weights = load_pretrained(bert)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 400), starts=np.arange(0, 401, 10))
    arch = without_head(arch)
    targets = make_targets(arch, start, texts, tmp_path / "targets.npy")
    made = Distiller(arch, start, targets, healing=QUICK, seed=0, path=tmp_path / "c")
    step, bad = made._step, {"left": 1}

    def sometimes() -> float:
        if made.step == 3 and bad["left"]:
            bad["left"] -= 1
            return float("nan")
        return step()

    monkeypatch.setattr(made, "_step", sometimes)
    assert made.run(lambda *_: None).steps == QUICK.steps
    assert made.rate_scale == 0.5
    monkeypatch.setattr(made, "_step", lambda: float("nan"))
    made.step = 0
    made.path.unlink()
    with pytest.raises(TrainingDiverged, match="lower the rate"):
        made.run(lambda *_: None)


def test_the_exact_choice_takes_the_cheapest_losses(bert) -> None:
    """Of 3 × (4 + 4) + 1 seconds, 13 are left to blocks: the blocks that lose least are cut most."""
    arch = without_head(load_pretrained(bert)[0])
    costs, cheap, whole = unit_costs(), {(1, "attention"), (1, "ffn"), (2, "attention")}, whole_sizes(arch)

    def loss(layer: int, kind: str, size: int) -> float:
        return (1 if (layer, kind) in cheap else 9) * (1 - size / whole.block(layer, kind))

    judged = [
        Replacement(layer=i, kind=kind, size=size, loss=loss(i, kind, size))
        for i, kind in blocks(arch)
        for size in costs["request"].block_s[kind]
        if size < whole.block(i, kind)
    ]
    sizes = choose_exactly(arch, judged, costs, Limits(times_s={"request": 13.0}))
    assert sizes.heads == (4, 0, 0)
    assert sizes.neurons == (64, 0, 64)
    first = choose_first_layers(arch, costs, Limits(times_s={"request": 17.0}))
    assert first.heads == (4, 4, 0)
    assert first.neurons == (64, 64, 0)
    assert choose_uniform(arch, costs, Limits(times_s={"request": 22.0})) == Sizes(
        heads=(4, 4, 4), neurons=(48, 48, 48)
    )  # 1 + 3 × (4 + 3) seconds; three heads with four times 16 neurons take as long and have fewer parameters
    with pytest.raises(Infeasible, match="no design with the same sizes in all layers meets the limits"):
        choose_uniform(arch, costs, Limits(times_s={"request": 6.9}))  # 1 + 3 × (1 + 1) are the least


def test_costs_of_blocks_add_up_where_those_of_models_do(bert) -> None:
    """A clock that counts a microsecond a parameter and a millisecond beside: the sums are its own for any cut."""
    arch = without_head(load_pretrained(bert)[0])
    found = measure_costs(arch, options_of(arch), LocalClock(Workload(prompt_tokens=8, new_tokens=1)))["request"]
    assert found.base_s == pytest.approx(1e-3)
    assert found.of("ffn", 0) == 0.0
    sizes = whole_sizes(arch).with_block(0, "ffn", 16).with_block(2, "attention", 0).with_block(1, "attention", 2)
    cut = cut_arch(arch, sizes)
    taken = 1e-6 * sum(cut.layer_parameters(layer) for layer in cut.layers) + 1e-3
    assert found.cut_s(arch, sizes) == pytest.approx(taken)
    with pytest.raises(InputError, match="no time is known for ffn of size 17; known sizes: 0, 16"):
        found.of("ffn", 17)


def test_folders_belong_to_one_run(bert, tmp_path) -> None:
    quick = settings(tmp_path, healing=Healing(steps=0))
    shrunk(bert, latency="90 %", **quick)
    with pytest.raises(StudyError, match="--resume"):
        shrunk(bert, latency="90 %", **quick)
    with pytest.raises(StudyError, match="differs in longest"):
        shrunk(bert, latency="90 %", **quick | {"longest": 12, "resume": True})


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"latency": "-1"}, "--latency must be positive|--latency must be a share"),
        ({"latency": "-10 %"}, "--latency must be positive"),
        ({"latency": "60 %", "memory": "0 MB"}, "--memory must be positive"),
    ],
)
def test_a_limit_that_no_model_keeps_is_refused_before_anything_is_timed(
    bert, tmp_path, monkeypatch, limit, message
) -> None:
    monkeypatch.setattr(text_material, "load_pretrained", lambda folder: pytest.fail("the model was read"))
    with pytest.raises(InputError, match=message):
        shrunk(bert, **settings(tmp_path, **limit))
    assert not settings(tmp_path)["out"].exists()


def test_errors_say_what_to_do(bert, tmp_path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        shrunk(bert, method="exakt", **settings(tmp_path))
    with pytest.raises(InputError, match="--latency must be a share"):
        limit_of("fast", 1.0, "time", "latency")
    with pytest.raises(InputError, match="--memory must be positive"):
        limit_of("0 %", 1.0, "bytes", "memory")
    assert limit_of("60 %", 2.0, "time", "latency") == pytest.approx(1.2)
    assert limit_of("3 ms", 2.0, "time", "latency") == pytest.approx(3e-3)
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((bert / name).read_bytes())
    with pytest.raises(SpecError, match=r"tokenizer\.json"):
        shrunk(tmp_path / "bare", **settings(tmp_path))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system has no call that reserves disk space")
def test_a_disk_without_room_for_states_is_an_error_before_they_are_computed(bert, tmp_path, monkeypatch) -> None:
    arch, weights = load_pretrained(bert)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 30), starts=np.array([0, 12, 17, 30]))
    asked: list[int] = []

    def full(_file: int, _start: int, size: int) -> None:
        asked.append(size)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull, match="the disk is full"):
            make_targets(without_head(arch), start, texts, tmp_path / "targets.npy")
    assert asked[0] >= 30 * arch.d_model * 2  # FP16 of every token
    make_targets(without_head(arch), start, texts, tmp_path / "targets.npy")  # with room it goes on


def test_states_are_kept_in_a_file(bert, tmp_path) -> None:
    arch, weights = load_pretrained(bert)
    arch = without_head(arch)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 30), starts=np.array([0, 12, 17, 30]))
    for _ in range(2):  # computed, then read
        found = make_targets(arch, start, texts, tmp_path / "targets.npy").of(np.array([1, 0]), 12)
        tokens, mask = texts.padded([1, 0])
        with autocast("fp32"):
            expected = states(arch, start, tokens, mask)
        assert (found - expected)[mask].abs().max() < 3e-3  # half floats
        assert found[~mask].abs().max() == 0


def test_the_command_prints_json_and_a_table(bert, tmp_path, monkeypatch) -> None:
    brief = functools.partial(stages.measure_alternately, repeats=20, prefills=20, seconds=0.05)
    monkeypatch.setattr(stages, "measure_alternately", lambda *a, **k: brief(*a, **k | {"rounds": 1}))
    text = text_file(tmp_path / "text.txt", lines=1200)
    (tmp_path / "text.txt").write_text(text.read_text().replace("\n", "\n\n"))  # entries between blank lines
    asked = ["shrink", str(bert), "--data", str(text), "--steps", "2", "--tokens", "8", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, [*asked, "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["ratio"] > 0
    assert Path(found["folder"]).name == "model"
    said = CliRunner().invoke(app, [*asked, "--resume"])
    assert said.exit_code == 0, said.output
    assert "KV heads of each layer" in said.output


def test_states_of_a_stopped_run_go_on_after_the_last_finished_batch(bert, tmp_path, monkeypatch) -> None:
    """Three batches of one text each; Ctrl-C comes while the third is computed."""
    arch, weights = load_pretrained(bert)
    arch = without_head(arch)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 30), starts=np.array([0, 10, 20, 30]))
    monkeypatch.setattr(Texts, "batches", lambda *_, **__: [np.array([i]) for i in range(3)])
    computed, told = [], []

    def counted(*given):
        if len(computed) == 2:
            computed.append(None)
            raise KeyboardInterrupt
        computed.append(given)
        return states(*given)

    monkeypatch.setattr("chipwise.design.shrink.texts.states", counted)
    path = tmp_path / "targets.npy"
    with pytest.raises(KeyboardInterrupt):
        make_targets(arch, start, texts, path, on_progress=lambda done, total: told.append(done))
    found = make_targets(arch, start, texts, path, on_progress=lambda done, total: told.append(done))
    assert told == [1, 2, 3]
    assert len(computed) == 4
    whole = make_targets(arch, start, texts, tmp_path / "other.npy")
    everything = np.arange(3)
    assert torch.equal(found.of(everything, 10), whole.of(everything, 10))
    assert sorted(item.name for item in tmp_path.glob("targets*")) == ["targets.npy"]


def test_states_of_another_text_are_not_gone_on_with(bert, tmp_path) -> None:
    arch, weights = load_pretrained(bert)
    arch = without_head(arch)
    start = {name: torch.from_numpy(value) for name, value in weights.items() if not name.startswith("pooler")}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 30), starts=np.array([0, 12, 17, 30]))
    np.save(tmp_path / "targets.part.npy", np.zeros((30, arch.d_model), np.float16))
    for held in ("{", '{"texts": "of something else", "done": 3}', "[]"):
        (tmp_path / "targets.part.json").write_text(held)
        found = make_targets(arch, start, texts, tmp_path / "targets.npy")
        assert found.of(np.array([0]), 12).abs().max() > 0
        (tmp_path / "targets.npy").rename(tmp_path / "targets.part.npy")


def test_statistics_are_kept_and_a_damaged_file_holds_none(tmp_path) -> None:
    found = Statistics(
        means={"layers.0.ffn": torch.arange(3.0)},
        moments={"layers.0.ffn": torch.ones(3, 3)},
        influence=(0.1, 0.2),
    )
    assert load_statistics(tmp_path / "s") is None
    save_statistics(found, tmp_path / "s")
    again = load_statistics(tmp_path / "s")
    assert torch.equal(again.means["layers.0.ffn"], found.means["layers.0.ffn"])
    assert torch.equal(again.moments["layers.0.ffn"], found.moments["layers.0.ffn"])
    assert again.influence == found.influence
    (tmp_path / "s").write_bytes(b"half of it")
    assert load_statistics(tmp_path / "s") is None


def test_the_time_left_is_that_of_the_stage_at_its_pace(capsys) -> None:
    """Found at 10 of 86; 4 more took 8 s, so the other 72 take 144 s."""
    now = iter([0.0, 100.0, 108.0])
    show = Progress(clock=lambda: next(now))
    show("time blocks", 0, 5)
    show("original on training data", 10, 86)
    show._printed_s = -100.0
    show("original on training data", 14, 86)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].strip() == "original on training data: 10 of 86"
    assert lines[2].strip() == "original on training data: 14 of 86, about 2 min 24 s left"


def test_narrow_cuts_are_rounded_by_the_quantiser_of_least_distance(bert, tmp_path, monkeypatch) -> None:
    """All quantisers are compared by distance from the original; the closest one packs the file."""
    chosen = []

    def noted(*given: object, **named: object) -> Choice:
        chosen.append(choose(*given, **named))
        return chosen[-1]

    monkeypatch.setattr(stages, "choose", noted)
    found = shrunk(bert, **settings(tmp_path, weights="int4", latency="70 %"))
    assert (found.folder.parent / "model.onnx").is_file()
    for choice in chosen:
        assert list(choice.losses) == ["nearest", "searched", "gptq"]
        assert choice.losses[choice.method] == min(choice.losses.values())
        assert choice.losses["gptq"] < choice.losses["nearest"]
    assert chosen


@pytest.mark.parametrize("make", [bert_folder, decoder_folder])
def test_a_cut_may_be_rounded_by_descent_towards_the_original(make, tmp_path) -> None:
    folder, seen = make(tmp_path / "m"), []
    asked = {"weights": "int4", "latency": "70 %", "rounding": "learned", "cpu_s": 2.0}
    request = settings(tmp_path, **asked)
    beside = {name: request.pop(name) for name in ("out", "measured")}
    found = shrink_model(folder, ShrinkRequest(**request), **beside, on_progress=lambda *now: seen.append(now))
    losses = found.quantiser.losses
    assert found.quantiser.method == "learned"
    assert losses["learned"] < losses["nearest"]
    assert ("CPU seconds of learned rounding", 0, 2) in seen
    held = json.loads((tmp_path / "out" / "exact" / "result.json").read_text())
    assert held["quantiser"]["losses"] == pytest.approx(losses)


def test_rounding_is_asked_of_narrow_weights_alone() -> None:
    for options in ({"rounding": "gptq"}, {"cpu_s": 5.0}):
        with pytest.raises(InputError, match="add --weights int8 or int4"):
            ShrinkRequest(**options)
    with pytest.raises(UnknownName, match="quantiser"):
        ShrinkRequest(weights="int4", rounding="prune")
    with pytest.raises(InputError, match="applies only to the methods learned and auto, not to gptq"):
        ShrinkRequest(weights="int4", rounding="gptq", cpu_s=5.0)


@pytest.mark.parametrize("some", [range(18), [0, 3, 6, 9, 12, 15]])
def test_a_decoder_is_as_far_as_its_probabilities_are(tmp_path, monkeypatch, some) -> None:
    """KL of Hugging Face's probabilities, at every position of text or at some of them, scored and in training."""
    arch, arrays = load_pretrained(decoder_folder(tmp_path, "llama"))
    start = {name: torch.from_numpy(value) for name, value in arrays.items()}
    other = {name: 1.1 * value for name, value in start.items()}
    texts = Texts(tokens=np.random.default_rng(0).integers(4, 30, 30), starts=np.array([0, 12, 17, 30]))
    targets, batch = make_targets(arch, start, texts, tmp_path / "targets.npy"), np.array([2, 1])
    tokens, mask = texts.padded(batch)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    wanted, found = theirs.state_dict(), {}
    for name, factor in (("original", 1.0), ("other", 1.1)):
        theirs.load_state_dict({key: factor * value for key, value in wanted.items()})
        with torch.no_grad():
            found[name] = torch.log_softmax(theirs(tokens).logits, -1)[mask].double()
    kl = (found["original"].exp() * (found["original"] - found["other"])).sum(-1)
    monkeypatch.setattr(forward, "MOST_LOGITS", len(some) * arch.vocab_size + 1)
    for _ in range(2):  # computed, then kept
        with torch.no_grad():
            assert float(targets.distance(arch, start, batch)) == pytest.approx(0, abs=1e-4)
            assert float(targets.distance(arch, other, batch)) == pytest.approx(float(kl[some].mean()), rel=0.02)
    assert float(targets.distance(arch, other, batch)) == pytest.approx(float(kl[some].mean()), rel=0.02)
