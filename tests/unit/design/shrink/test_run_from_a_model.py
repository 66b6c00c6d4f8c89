"""Run files that start from a model: what they leave behind, what a kill costs, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from small_models import WORDS, bert_folder, decoder_folder, text_file
from transformers import AutoModel
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.report.record import load
from chipwise.design.run.spec import load_run
from chipwise.design.run.start_spec import StartSpec, any_spec
from chipwise.design.shrink import block_costs
from chipwise.design.shrink.distillation import Distiller
from chipwise.design.shrink.stages import Shrinking
from chipwise.design.targets.bench import Bench
from chipwise.errors import DataError, Infeasible, SpecError, StudyError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.kinds.encoder.form import ENCODER

FIELDS = {
    "name": "small",
    "start_from": "model",
    "workload": {"prompt_tokens": 8, "new_tokens": 4},
    "constraints": {"ttft_p50": "<= 60 % of original"},
    "data": {"source": "files", "paths": ["text.txt"], "entries": "lines"},
    "budget": {"cpu": "5 min", "final": "400 ms"},
}


def seconds_of(arch: ArchSpec) -> float:
    """A clock that counts a microsecond for a parameter of the blocks, and a millisecond beside."""
    return 1e-6 * sum(arch.layer_parameters(layer) for layer in arch.layers) + 1e-3


def run_file(folder: Path, **changes: object) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**FIELDS, **changes}))
    if not (folder / "text.txt").exists():
        text_file(folder / "text.txt", lines=1100)
    return path


@pytest.fixture
def clock(monkeypatch) -> dict[str, float]:
    """Prices and measurements by :func:`seconds_of`; a cut's measured seconds are taken ``slower`` times.

    A step of training is said to take 20 ms, so that budgets are as many steps on any machine.
    """
    said = {"slower": 1.0}

    def timed(archs, workload, weights, seconds, rounds, told):
        return [{"request": s, "ttft": s, "tpot": s} for s in map(seconds_of, archs)]

    def alternately(self, paths):
        return [measured(self.spec, path) for path in paths]

    def measured(spec: StartSpec, path: Path) -> Measurement:
        original = path.name == "original.onnx"
        arch = load_pretrained(spec.source if original else path.parent / "model")[0]
        taken = seconds_of(arch) * (1.0 if original else said["slower"])
        return Measurement(
            design="",
            name=arch.name,
            runtime="onnxruntime",
            runtime_version="1",
            threads=1,
            workload=spec.workload,
            device="none",
            ttft_s=(taken,) * 100,
            tpot_s=() if ENCODER.builds(arch) or isinstance(arch.head, Pooler) else (taken,) * 100,
            cpu_s=1.0,
            peak_memory_bytes=50_000_000 + path.stat().st_size,
            clean=True,
        )

    monkeypatch.setattr(block_costs, "_timed", timed)
    monkeypatch.setattr(Bench, "alternately", alternately)
    monkeypatch.setattr(Shrinking, "healing_step_s", lambda self, weights, sizes: 0.02)
    return said


def test_an_encoder_is_cut_as_its_file_says(tmp_path, clock) -> None:
    (tmp_path / "model").mkdir()
    bert_folder(tmp_path / "model")
    rows = [f"{WORDS[i % 36]} {WORDS[i // 36]},{'ab'[i % 2]}" for i in range(150)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    limits = {"ttft_p50": "<= 60 % of original", "spearman@original": ">= 0.05", "parameters": "<= 1M"}
    path = run_file(tmp_path, constraints=limits, tasks=["mine.csv"])
    said = CliRunner().invoke(app, ["search", str(path), "--out", str(tmp_path / "out"), "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["status"] == "finished"

    record = load(tmp_path / "out" / "record.json")
    original, cut, truncated = record.trials
    assert record.role(original) == "original"
    assert (record.winner, record.baseline) == (cut.number, truncated.number)
    assert cut.measured["ttft_p50"] <= 0.6 * original.measured["ttft_p50"]
    assert truncated.measured["ttft_p50"] <= 0.6 * original.measured["ttft_p50"]
    for trial in (cut, truncated):  # blocks cost what they cost alone, so the promise is what is measured
        assert trial.predicted["ttft_p50"].value == pytest.approx(trial.measured["ttft_p50"])
        assert trial.predicted["peak_memory"].low < trial.measured["peak_memory"] < trial.predicted["peak_memory"].high
    assert truncated.choices["neurons"][-1] == 0  # whole layers are gone from the end
    assert record.start.distances.keys() == {"1", "2"}  # both healed, for as many steps
    assert record.start.steps >= 10
    assert {"mine", "original"} == cut.tasks.keys()
    assert set(record.budget.spent) >= {"measuring the original", "score blocks", "heal", "measuring alternately"}

    winner = load_pretrained(tmp_path / "out" / "winner")[0]
    assert winner.parameters() == cut.parameters < original.parameters
    promises = json.loads((tmp_path / "out" / "winner" / "chipwise.json").read_text())
    assert promises["promised"]["ttft_p50"][0] == pytest.approx(promises["measured"]["ttft_p50"])
    assert AutoModel.from_pretrained(tmp_path / "out" / "winner", trust_remote_code=True) is not None
    for name in ("report.html", "card.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "first layers alone" in text
        assert "rank correlation with the original" in text
    (tmp_path / "out" / "report.html").unlink()
    said = CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert {"first", "layers", "alone"} <= set(said.output.split())  # a narrow column wraps its title
    assert (tmp_path / "out" / "report.html").exists()


def test_a_decoder_is_cut_and_judged_by_its_text(tmp_path, clock) -> None:
    decoder_folder(tmp_path / "model")
    limits = {"tpot_p50": "<= 70 % of original", "bits_per_byte": "<= 150 % of original"}
    path = run_file(tmp_path, constraints=limits)
    record = api.search(path, out=tmp_path / "out")
    original, cut, _ = record.trials
    assert cut.measured["tpot_p50"] <= 0.7 * original.measured["tpot_p50"]
    assert cut.predicted["tpot_p50"].value == pytest.approx(cut.measured["tpot_p50"])
    assert 0 < cut.quantised_loss <= 1.5 * original.quantised_loss
    assert (tmp_path / "out" / "exact" / "model.onnx").exists()


def test_a_budget_too_small_is_said_and_a_kill_costs_nothing_that_was_finished(tmp_path, clock, monkeypatch) -> None:
    """A raised budget continues the run; scored blocks and the healed cut are kept."""
    (tmp_path / "model").mkdir()
    bert_folder(tmp_path / "model")
    out = tmp_path / "out"
    with pytest.raises(SpecError, match=r"budget\.final: one healing step takes .* go on with --resume"):
        api.search(run_file(tmp_path, budget={"cpu": "5 min", "final": "10 us"}), out=out)
    path = run_file(tmp_path)
    with pytest.raises(StudyError, match="--resume"):
        api.search(path, out=out)
    judged = (out / "state" / "replacements.json").stat().st_mtime_ns

    def kill_second(status) -> None:
        if status.phase == "heal" and (out / "exact" / "model.onnx").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.search(path, out=out, resume=True, on_progress=kill_second)
    assert load(out / "record.json").status == "partial"

    stepped: list[Path] = []
    step = Distiller._step
    monkeypatch.setattr(Distiller, "_step", lambda self: stepped.append(self.path) or step(self))
    record = api.search(path, out=out, resume=True)
    assert record.status == "finished"
    assert (out / "state" / "replacements.json").stat().st_mtime_ns == judged
    assert {path.stem for path in stepped} == {"healing-truncate"}
    assert len(stepped) <= record.start.steps


def test_a_finished_run_goes_on_with_other_limits(tmp_path, clock) -> None:
    """What blocks cost and lose, and what the original was measured at, stays; the cut is chosen and healed anew."""
    (tmp_path / "model").mkdir()
    bert_folder(tmp_path / "model")
    out = tmp_path / "out"
    small = api.search(run_file(tmp_path), out=out)
    kept = {name: (out / "state" / f"{name}.json").stat().st_mtime_ns for name in ("replacements", "costs")}
    looser = {"ttft_p50": "<= 80 % of original"}
    wider = run_file(tmp_path, constraints=looser)
    with pytest.raises(StudyError, match="--resume"):
        api.search(wider, out=out)
    large = api.search(wider, out=out, resume=True)
    assert large.status == "finished"
    assert small.trials[1].measured["ttft_p50"] < large.trials[1].measured["ttft_p50"]
    assert large.trials[1].measured["ttft_p50"] <= 0.8 * large.trials[0].measured["ttft_p50"]
    assert load_pretrained(out / "winner")[0].parameters() == large.trials[1].parameters
    assert {name: (out / "state" / f"{name}.json").stat().st_mtime_ns for name in kept} == kept
    with pytest.raises(SpecError, match="seed: was 0 and is now 1"):
        api.search(run_file(tmp_path, seed=1), out=out, resume=True)
    tight = run_file(tmp_path, constraints={"ttft_p50": "<= 2 % of original"})
    with pytest.raises(Infeasible, match="no cut can meet ttft_p50"):
        api.search(tight, out=out, resume=True)
    assert load(out / "record.json").status == "partial"
    assert api.search(run_file(tmp_path, constraints=looser), out=out, resume=True).winner == 1


def test_a_cut_that_is_measured_outside_its_limits_does_not_win(tmp_path, clock) -> None:
    (tmp_path / "model").mkdir()
    bert_folder(tmp_path / "model")
    path = run_file(tmp_path)
    clock["slower"] = 2.0
    with pytest.raises(Infeasible, match=r"ttft_p50 .* \(limit <= 60 % of original\)"):
        api.search(path, out=tmp_path / "out")
    record = load(tmp_path / "out" / "record.json")
    assert (record.status, record.winner) == ("partial", None)
    assert "No cut was measured within the limits" in (tmp_path / "out" / "report.html").read_text()
    clock["slower"] = 1.0
    assert api.search(path, out=tmp_path / "out", resume=True).winner == 1


def test_limits_that_no_cut_keeps_name_the_nearest(tmp_path, clock) -> None:
    """25,344 parameters of blocks and a millisecond beside: nothing is below 1 of 26.3 ms, over the margin of 0.97."""
    (tmp_path / "model").mkdir()
    bert_folder(tmp_path / "model")
    for limits, nearest in (
        ({"ttft_p50": "<= 2 % of original"}, r"no cut can meet ttft_p50 <= 2 % of original .* needs 1\.03 ms, 4 %"),
        ({"parameters": "<= 100"}, r"no cut can meet parameters .* start from a smaller model"),
        ({"peak_memory": "<= 1 MB"}, r"no cut can meet peak_memory"),
    ):
        with pytest.raises(Infeasible, match=nearest):
            api.search(run_file(tmp_path, constraints=limits), out=tmp_path / f"out-{len(nearest)}")


def test_models_and_texts_that_cannot_be_used(tmp_path, clock) -> None:
    path = run_file(tmp_path)
    with pytest.raises(SpecError, match="there is no such folder"):
        api.search(path, out=tmp_path / "a")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(SpecError, match=r"can be cut: it lacks weights .*, tokenizer\.json"):
        api.search(path, out=tmp_path / "b")
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    with pytest.raises(Unsupported, match=r"models of type 't5' cannot be cut; those of bert, .* can"):
        api.search(path, out=tmp_path / "c")
    bert_folder(tmp_path / "model")
    with pytest.raises(SpecError, match=r"constraints\.tpot_p50: .* is an encoder and generates nothing; limit ttft"):
        api.search(run_file(tmp_path, constraints={"tpot_p50": "<= 1 ms"}), out=tmp_path / "d")
    with pytest.raises(SpecError, match="workload: needs 99 tokens"):
        api.search(run_file(tmp_path, workload={"prompt_tokens": 99, "new_tokens": 1}), out=tmp_path / "e")
    with pytest.raises(DataError, match=r"nothing\.txt"):
        api.search(run_file(tmp_path, data={"source": "files", "paths": ["nothing.txt"]}), out=tmp_path / "f")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": {"d_model": [32]}}, r"space: contradicts start_from: the model"),
        ({"objectives": {"tpot_p50": "minimize"}}, "objectives: contradicts start_from"),
        ({"constraints": {}}, "constraints: limit at least one of ttft_p50"),
        ({"constraints": {"accuracy@mine": ">= 90 %"}}, "'mine' is not listed under `tasks`"),
        ({"constraints": {"ttft_p50": ">= 60 % of original"}}, "has the wrong direction"),
        ({"constraints": {"ttft_p50": "<= 0 % of original"}}, "the share must be positive"),
        ({"constraints": {"tpot_sustained": "<= 1 ms"}}, "cuts are not evaluated by this metric"),
        ({"constraints": {"ttft_p50": ">= 1 ms"}}, "'>= 1 ms' is a lower bound; write an upper one"),
        ({"quality": "short-training"}, "quality: cuts are chosen only by losses of single blocks"),
        ({"search": "shared"}, "search: cuts are chosen only by losses of single blocks"),
        ({"widths": [0.5, 1.0]}, "widths: cuts are chosen only by losses of single blocks"),
        ({"weights": "int9"}, "weights: unknown format 'int9'; did you mean 'int8'"),
        ({"target": {"threads": 2}}, "target: cuts are timed in onnxruntime on one thread"),
        ({"start_from": "package:nothing_of_the_kind/model"}, "start_from: no package 'nothing_of_the_kind'"),
        ({"tasks": ["original.csv"]}, "none may be 'original'"),
    ],
)
def test_fields_that_contradict_each_other(changes, said) -> None:
    with pytest.raises(SpecError, match=said):
        _ = any_spec({**FIELDS, **changes}, file="run.yaml").source  # a package is looked for when it is needed


def test_names_alone_are_enough_and_the_budget_is_no_part_of_a_run() -> None:
    assert any_spec({**FIELDS, "weights": ["int8"]}, file="run.yaml").weights == "int8"
    plainly = any_spec(FIELDS, file="run.yaml")
    stored = {"search": "auto", "quality": {"method": "auto", "budget": None}, "widths": [1.0]}  # by earlier versions
    assert any_spec({**FIELDS, **stored}, file="run.yaml") == plainly
    assert any_spec({**FIELDS, "budget": {"cpu": "1 h"}}, file="run.yaml").identity == plainly.identity
    assert any_spec({**FIELDS, "seed": 1}, file="run.yaml").identity != plainly.identity
    assert [c.limit for c in plainly.limits({"ttft_p50": 2.0})] == [pytest.approx(1.2)]
    assert plainly.limits({}) == ()


def test_commands_that_need_a_space_say_so(tmp_path) -> None:
    path = run_file(tmp_path)
    with pytest.raises(SpecError, match="start_from: a run that cuts a model has no search space"):
        load_run(path)
    said = CliRunner().invoke(app, ["space", str(path)])
    assert isinstance(said.exception, SpecError)
