import dataclasses
import json
from pathlib import Path

import pytest

import chipwise
from chipwise.errors import SpecError, StudyError
from chipwise.model.arch.arch import uniform
from chipwise.model.published.read import resolve
from chipwise.training.laws.scaling import Law

LAW = Law(floor=0.6, layers=8.0, head=4.0, text=100.0, size_exponent=0.3, text_exponent=0.3)
BYTES_PER_TOKEN = {1024: 3.0, 4096: 4.0}


def model(d: int, depth: int, vocabulary: int):
    return uniform(vocab_size=vocabulary, d_model=d, depth=depth, heads=d // 32, ffn_width=4 * d)


def trial(number: int, d: int, depth: int, vocabulary: int, tokens: int) -> dict:
    arch = model(d, depth, vocabulary)
    head = vocabulary * d
    text = tokens * BYTES_PER_TOKEN[vocabulary]
    quality = float(LAW.loss(arch.parameters() - head, head, text)) * (1.01 if number % 2 else 0.99)
    choices = {"d_model": d, "depth": depth, "vocab_size": vocabulary, "tie_embeddings": True}
    return {
        "number": number,
        "state": "trained",
        "summary": "",
        "weights": "fp32",
        "choices": choices,
        "parameters": arch.parameters(),
        "loss": quality,
        "perplexity": 2 ** (quality * BYTES_PER_TOKEN[vocabulary]),
        "curve": [{"cpu_s": 1.0, "tokens": tokens}],
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shapes = [(d, depth, v) for d in (64, 128, 256) for depth in (1, 4) for v in BYTES_PER_TOKEN]
    trials = [trial(i, *shape, 500_000 * (1 + i % 5)) for i, shape in enumerate(shapes * 2)]
    write(tmp_path, trials)
    return tmp_path


def write(folder: Path, trials: list[dict]) -> None:
    from chipwise.design.report.record import SCHEMA

    record = {"schema": SCHEMA, "name": "x", "created": "2026-11-21", "version": "0", "status": "finished", "seed": 0}
    record |= {"target": {"device": "local", "runtime": "onnxruntime"}, "workload": {}, "budget": {"cpu_s": 1.0}}
    record |= {"space": {"size": 1}}
    (folder / "record.json").write_text(json.dumps(record | {"trials": trials}))


def test_a_run_that_follows_a_law_is_read_ahead_with_an_honest_interval(run: Path) -> None:
    arch = model(192, 3, 4096)
    found = chipwise.quality(arch, tokens="2M", run=run)
    truth = float(LAW.loss(arch.parameters() - 4096 * 192, 4096 * 192, 2e6 * 4.0))
    assert found.loss.low < truth < found.loss.high
    assert found.loss.value == pytest.approx(truth, rel=0.02)
    assert 0.02 < found.loss.high / found.loss.low - 1 < 0.1  # trainings scatter by 1 %
    assert found.unit == "bits/byte"
    assert "fitted to 24 trainings" in str(found)
    assert not found.notes


def test_far_ahead_it_says_so_and_is_less_sure(run: Path) -> None:
    near, far = (chipwise.quality(model(192, 3, 4096), tokens=t, run=run) for t in (2e6, 1e9))
    assert far.loss.value < near.loss.value
    width = [(q.loss.high - q.loss.low) / q.loss.value for q in (near, far)]
    assert width[1] > width[0]
    assert any("text in bytes" in note for note in far.notes)


def test_a_vocabulary_between_the_runs_own_is_read_between_them(run: Path) -> None:
    between = chipwise.quality(model(128, 2, 2048), tokens=1e6, run=run)
    arch = model(128, 2, 2048)
    truth = float(LAW.loss(arch.parameters() - 2048 * 128, 2048 * 128, 1e6 * 3.5))  # 2048 = √(1024 · 4096)
    assert between.loss.value == pytest.approx(truth, rel=0.02)


def test_too_few_trainings_no_record_and_no_tokens_are_refused(run: Path, tmp_path: Path) -> None:
    arch = model(128, 2, 1024)
    with pytest.raises(SpecError, match="tokens: must be more than 0, not -1"):
        chipwise.quality(arch, tokens=-1, run=run)
    write(run, [])
    with pytest.raises(StudyError, match="too few"):
        chipwise.quality(arch, tokens=1e6, run=run)
    with pytest.raises(StudyError, match="no record"):
        chipwise.quality(arch, tokens=1e6, run=tmp_path / "none")


def classifier(d_model: int, depth: int):
    """A DeiT with ten classes, another width and fewer layers."""
    whole = resolve("facebook/deit-tiny-patch16-224")
    return dataclasses.replace(
        whole, d_model=d_model, layers=whole.layers[:depth], head=dataclasses.replace(whole.head, count=10)
    )


def test_a_run_of_another_task_is_read_ahead_in_its_own_loss(tmp_path: Path) -> None:
    """Errors of classifiers by parameters and positions that follow a law: the law's own value, not bits per byte."""
    from chipwise.design.report.record import SCHEMA

    law = Law(floor=0.05, layers=2.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34)
    trials = []
    for number, (d, depth) in enumerate([(d, depth) for d in (16, 32, 64, 128) for depth in (1, 2, 4)] * 2):
        arch, tokens = classifier(d_model=d, depth=depth), 500_000 * (1 + number % 5)
        head = 10 * d
        loss = float(law.loss(arch.parameters() - 2 * head, head, tokens)) * (1.01 if number % 2 else 0.99)
        choices = {"d_model": d, "depth": depth, "vocab_size": 10, "tie_embeddings": False}
        trials.append(
            {"number": number, "state": "trained", "summary": "", "weights": "fp32", "choices": choices}
            | {"parameters": arch.parameters(), "loss": loss, "curve": [{"cpu_s": 1.0, "tokens": tokens}]}
        )
    record = {"schema": SCHEMA, "name": "x", "created": "2026-11-21", "version": "0", "status": "finished", "seed": 0}
    record |= {"target": {"device": "local", "runtime": "onnxruntime"}, "workload": {}, "budget": {"cpu_s": 1.0}}
    record |= {"space": {"size": 1}, "task": "vision", "trials": trials}
    (tmp_path / "record.json").write_text(json.dumps(record))
    arch = classifier(d_model=96, depth=3)
    found = chipwise.quality(arch, tokens=2e6, run=tmp_path)
    truth = float(law.loss(arch.parameters() - 2 * 960, 960, 2e6))
    assert found.loss.low < truth < found.loss.high
    assert found.unit == "1 less accuracy"
    assert "its own data" in str(found)
