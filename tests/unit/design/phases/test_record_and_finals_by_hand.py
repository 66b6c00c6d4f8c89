"""What a record and the end of a run compute from trials: fronts, histories, scores of entries, continuations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from toy_run import SPACE, SPEC

from chipwise.design.phases import finals, pipeline, run_record, stored_run
from chipwise.design.phases.finals import Finals
from chipwise.design.phases.supernet_prior import designs_to_score, planned_cpu_s
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.trials import Candidate, Trials, choice_labels
from chipwise.design.strategies.study import Study, Trial
from chipwise.errors import TrainingDiverged, Unsupported
from chipwise.model.walk.calibration import Choice
from chipwise.training.tasks import exported_text, token_data
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.text.data import CONTINUATIONS, CONTINUED_TOKENS, PROMPT_WORDS, TextData, continued


def trial(number: int, bits: float | None, tpot_s: float, **notes: object) -> Candidate:
    rung = {"rung": 0, "cpu_s": 2.0, "tokens": 1, "loss": 9.0, "quantised_loss": bits}
    plain = {
        "role": "candidate",
        "choices": {},
        "predicted": {"tpot_p50": [tpot_s, 0.5 * tpot_s, 2 * tpot_s], "tpot_p99": [tpot_s, tpot_s, tpot_s]},
        "rungs": [] if bits is None else [rung],
        **notes,
    }
    return Candidate(Trial(number=number, state="running", notes=plain), design=None)  # type: ignore[arg-type]


def one(item: Candidate) -> float:
    return 1.0


def test_the_front_holds_who_was_trained_is_alive_and_keeps_the_limits() -> None:
    """300 µs are allowed. By (bits, µs): 0 is (2.0, 100), 1 (1.5, 200); 2 is behind 1, 3 too slow, 4 a reference."""
    items = [
        trial(0, 2.0, 100e-6),
        trial(1, 1.5, 200e-6),
        trial(2, 1.6, 250e-6),
        trial(3, 1.0, 400e-6),
        trial(4, 1.0, 50e-6, role="baseline"),
        trial(5, None, 10e-6),
    ]
    dead = Candidate(Trial(number=6, state="failed", notes=trial(6, 1.0, 1e-6).trial.notes), design=None)  # type: ignore[arg-type]
    assert [item.number for item in run_record._front(SPEC, [*items, dead], one)] == [0, 1]
    exported = trial(7, 9.0, 300e-6, exported_loss=1.4)
    assert [item.number for item in run_record._front(SPEC, [*items, exported], one)] == [0, 1, 7]
    paid = run_record._front(SPEC, items, lambda item: 2.0 if item.number == 1 else 1.0)
    assert [item.number for item in paid] == [0, 2]  # 1 counts as 3.0 bits
    assert run_record._front(SPEC, [], one) == []
    assert run_record._knee(SPEC, items[:2], one) is None  # two points have no bend
    bent = [trial(0, 2.0, 100e-6), trial(1, 1.1, 110e-6), trial(2, 1.0, 300e-6)]
    assert run_record._knee(SPEC, bent, one) == 1


def test_promises_are_held_against_what_was_measured_and_nothing_else() -> None:
    items = [trial(0, 1.0, 1e-3, measured={"tpot_p50": 2e-3, "ttft_p50": 1.0}), trial(1, 1.0, 1e-3)]
    (promise,) = run_record._promises(items)
    assert (promise.trial, promise.metric, promise.promised, promise.measured) == (0, "tpot_p50", 1e-3, 2e-3)
    assert (promise.low, promise.high) == (0.5e-3, 2e-3)


def text_of(**parts: object) -> TextData:
    found = object.__new__(TextData)
    for name, value in parts.items():
        setattr(found, name, value)
    return found


def exported_of(weights: object) -> Exported:
    return Exported(design=SimpleNamespace(arch=SimpleNamespace(vocab_size=8)), weights=weights, folder=Path())


def test_bits_are_summed_by_entry_and_differences_have_their_error(monkeypatch) -> None:
    """A stream 0 a b 0 c 0: entries of (a, b, separator) and (c, separator), as five predicted tokens."""
    stream = np.array([0, 5, 6, 0, 7, 0])
    given = {1: np.array([1.0, 2, 3, 4, 5]), 2: np.array([2.0, 2, 2, 2, 2])}
    monkeypatch.setattr(token_data, "exported_bits", lambda design, weights, *rest, packing: given[weights])
    tokens = SimpleNamespace(held_out=lambda part: (stream, 10), test_bytes=np.array([6, 4]))
    data = text_of(store=SimpleNamespace(tokens=lambda size: tokens))
    noted: dict[int, float] = {}
    run = object.__new__(Finals)
    run._data = data
    run._exported = lambda item: exported_of(item.number)
    run._on_phase = lambda name: None
    run._trials = SimpleNamespace(note=lambda number, **notes: noted.update({number: notes["test_loss"]}))
    items = [SimpleNamespace(number=n) for n in (1, 2)]
    assert data.losses(exported_of(1), split="test").values.tolist() == [1 + 2 + 3, 4 + 5]
    found = run.test(*items)
    assert noted == {1: 15 / 10, 2: 10 / 10}
    # shares of all bits by entry: 6/15 and 9/15 against 6/10 and 4/10, so ±0.2 each; n / (n - 1) = 2
    assert found.pop("std_errors") == [pytest.approx(math.sqrt(2 * 2 * 0.3**2)), pytest.approx(0.0)]
    assert found == {"entries": 2, "bytes": 10, "difference_std_error": pytest.approx(math.sqrt(2 * 2 * 0.2**2))}
    assert run.test(items[0], None)["difference_std_error"] is None
    assert run.test(items[0], items[0])["difference_std_error"] is None


def test_a_loss_has_the_error_of_a_mean_over_its_entries() -> None:
    """Errors 0 1 1 0 of four images: a half, with the standard error √(.25 / 3) of a mean of four."""
    found = Losses(values=np.array([0.0, 1, 1, 0]), sizes=np.ones(4))
    assert found.loss == 0.5
    assert found.std_error == pytest.approx(math.sqrt(0.25 / 3))
    assert Losses(values=np.array([3.0]), sizes=np.array([2.0])).std_error is None


class Session:
    """Writes token 3 again and again, then the separator after ``most``."""

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, []

    def prefill(self, ids: np.ndarray) -> np.ndarray:
        self.seen.append(ids.tolist())
        return self.decode(ids)

    def decode(self, ids: np.ndarray) -> np.ndarray:
        self.most -= 1
        return np.eye(5)[[3 if self.most >= 0 else 0]]


WORDS = SimpleNamespace(
    encode=lambda text, add_special_tokens: SimpleNamespace(ids=[1] * len(text.split())),
    decode=lambda ids: " ".join(map(str, ids)),
)


@pytest.mark.parametrize(
    ("most", "longest", "written"),
    [(2, 100, 2), (1000, 100, CONTINUED_TOKENS), (1000, 8, 8 - 4 - 1), (1000, 20, 20 - 6 - 1)],
)
def test_a_continuation_ends_with_the_entry_the_cache_or_thirty_two_tokens(most, longest, written) -> None:
    session = Session(most)
    assert continued(session, WORDS, "a b c d e f", longest).split() == ["3"] * written
    assert session.seen == [[[0, *[1] * min(6, longest // 2)]]]


def test_prompts_are_the_beginnings_of_long_entries() -> None:
    words = [f"w{i}" for i in range(20)]
    corpus = SimpleNamespace(test=[" ".join(words[:n]) for n in (PROMPT_WORDS + 4, PROMPT_WORDS + 5, 20)] * 9)
    data = text_of(store=SimpleNamespace(corpus=corpus), _written=lambda item, prompts: [item] * len(prompts))
    found = data.samples("w", None)["continuations"]  # type: ignore[arg-type]
    assert len(found) == CONTINUATIONS
    assert all(item == {"prompt": " ".join(words[:PROMPT_WORDS]), "winner": "w"} for item in found)
    assert data.samples("w", "r")["continuations"][0]["baseline"] == "r"  # type: ignore[arg-type]


def test_scores_that_a_supernets_budget_allows() -> None:
    """A fifth of it for scores of a quarter second: 0.8 a second, from 12 to 160."""
    assert [designs_to_score(s) for s in (0.0, 15.0, 16.0, 100.0, 200.0, 1e6)] == [12, 12, 12, 80, 160, 160]
    assert planned_cpu_s(100.0) == 100 + 80 * 0.25
    assert planned_cpu_s(0.0) == 0.0


@pytest.mark.parametrize(("length", "windows"), [(9, [4, 4]), (8, [4, 3]), (10, [4, 4, 1]), (2, [1])])
def test_a_stream_is_scored_window_by_window_and_no_window_is_empty(length, windows, monkeypatch, tmp_path) -> None:
    """Windows of four tokens and equal logits over eight words: three bits for each token after the first."""
    seen = []

    class Even:
        def __init__(self, path: Path, *, capacity: int) -> None:
            assert capacity == 4

        def all_logits(self, tokens: np.ndarray) -> np.ndarray:
            seen.append(tokens.shape[1])
            return np.zeros((*tokens.shape, 8), np.float32)

    monkeypatch.setattr("chipwise.deploy.runtimes.onnxruntime.OnnxRuntimeSession", Even)
    monkeypatch.setattr(exported_text, "export", lambda *args, **options: None)
    design = SimpleNamespace(arch=SimpleNamespace(max_tokens=4))
    found = exported_text.exported_bits(design, {}, np.arange(length) % 8, tmp_path / "judged.onnx")  # type: ignore[arg-type]
    assert seen == windows
    assert found.tolist() == pytest.approx([3.0] * (length - 1))


def test_other_devices_are_in_the_record_once_the_target_is_open(monkeypatch, tmp_path: Path) -> None:
    study = Study(None, name="toy", directions=["minimize"], identity="toy", choices=choice_labels(SPACE))
    monkeypatch.setattr(run_record, "_target", lambda *_: None)
    monkeypatch.setattr(run_record, "_elsewhere", lambda spec, space, items, target, *_: [target])
    with RunFolder(tmp_path / "run", SPEC) as folder:
        asked = SPEC, study, Trials(study, SPEC, SPACE), SPACE, folder
        assert run_record.make_record(*asked).elsewhere == ()
        target: Any = object()
        assert run_record.make_record(*asked, target).elsewhere == (target,)


class Finished(pipeline.Search):
    """A finished search of three trials, of which a kit measured some; 0 has won, 1 is the reference design."""

    def __init__(self, target: object) -> None:
        self.target, self.done = target, []
        self.spec = self.folder = None  # type: ignore[assignment]
        known = [trial(0, 2.0, 1e-4, exported_loss=2.0), trial(1, 1.0, 1e-4, role="baseline", exported_loss=1.0)]
        self.trials = Listed([*known, trial(2, 1.5, 1e-4, exported_loss=1.5), trial(3, 1.0, 1e-4)])  # type: ignore[assignment]
        self.study = SimpleNamespace(memory={"winner": 0, "baseline": 1}, remember=self.remember)  # type: ignore[assignment]

    others = SimpleNamespace(predict=None)  # type: ignore[assignment]

    def remember(self, **facts: object) -> None:
        self.study.memory.update(facts)  # type: ignore[attr-defined]

    def _opened(self) -> Any:
        return self.target

    def _phase(self, name: str) -> None:
        self.done.append(name)

    def _read_data(self) -> Any:
        return None

    def _score(self, finals: Any, winner: Candidate, reference: Candidate | None) -> None:
        self.done.append(f"scored {winner.number} against {reference and reference.number}")


class Listed(list):
    def all(self) -> list[Candidate]:
        return self


class ByLoss:
    """Finals that take the least loss, and write a winner's number down."""

    written: ClassVar[list[int]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self.written.clear()

    def keeps_limits(self, item: Candidate) -> bool:
        return True

    def best(self, good: list[Candidate], reference: Candidate | None) -> Candidate:
        return min(good, key=lambda item: item.notes.exported_loss or math.inf)

    def write_winner(self, item: Candidate) -> None:
        self.written.append(item.number)


@pytest.mark.parametrize(
    ("target", "notes", "winner", "done"),
    [
        ("open", {2: {}}, 2, ["reading the kit's results", "scored 2 against 1"]),  # 1 is no candidate, 3 has no export
        ("open", {}, 0, []),
        (None, {2: {}}, 0, []),
    ],
)
def test_what_a_kit_measured_ranks_the_contenders_again(
    monkeypatch, target: str | None, notes: dict[int, object], winner: int, done: list[str]
) -> None:
    def read(trials: object, spec: object, folder: object, target: object, *, on_note: Any) -> dict[int, object]:
        on_note("one result is of another chip")
        return notes

    taught: list[object] = []
    monkeypatch.setattr(stored_run, "kit_notes", read)
    monkeypatch.setattr(pipeline, "record", lambda trials, target, notes: taught.append(target))
    monkeypatch.setattr(pipeline, "penalty_factor", lambda *_: None)
    monkeypatch.setattr(pipeline, "Finals", ByLoss)
    search = Finished(target)
    search._take_results()
    assert search.study.memory == {"winner": winner, "baseline": 1, "kit_notes": ["one result is of another chip"]}
    assert search.done == done
    assert (taught, ByLoss.written if done else []) == ((["open"], [2]) if done else ([], []))


@pytest.mark.parametrize(
    ("exported_loss", "test_loss", "reported", "validation"),
    [(2.5, 2.75, 2.75, 2.5), (2.5, None, 2.5, 2.5), (None, None, None, None)],
)
def test_a_winners_folder_has_its_file_and_what_it_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exported_loss: Any, test_loss: Any, reported: Any, validation: Any
) -> None:
    """The exported graph, also in the form that is served, and the loss on test text; before it, on validation text."""
    trial, winner = tmp_path / "trials", tmp_path / "winner"
    trial.mkdir(), winner.mkdir()
    (trial / "model.onnx").write_bytes(b"graph")
    (trial / "model.gguf").write_bytes(b"served")
    monkeypatch.setattr(finals, "promises_of", lambda spec, winner: {"schema": "x"})
    shipped: list[Any] = []
    run = object.__new__(Finals)
    run._folder = SimpleNamespace(trial=lambda number: trial, winner=winner)
    run._spec, run._tasks = SPEC, None
    run._data = SimpleNamespace(ship=lambda item, folder, files: shipped.append((item, folder, files)))
    run._served = lambda item: trial / "model.gguf"
    run._trained = lambda item: item.number
    notes = SimpleNamespace(exported_loss=exported_loss, test_loss=test_loss)
    run.write_winner(SimpleNamespace(number=3, notes=notes))
    assert {path.name: path.read_bytes() for path in winner.iterdir()} == {
        "model.onnx": b"graph",
        "model.gguf": b"served",
    }
    ((item, folder, files),) = shipped
    assert (item, folder) == (3, winner)
    metric = SPEC.task_settings.metric
    (promises,) = map(json.loads, files.values())
    assert promises == {
        "schema": "x",
        metric.name: None if reported is None else metric.shown(reported),
        f"validation_{metric.name}": None if validation is None else metric.shown(validation),
    }


def test_a_winner_for_a_runtime_of_pages_gets_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = object.__new__(Finals)
    run._spec, run._folder = SPEC, SimpleNamespace(winner=tmp_path)
    written: list[Any] = []
    monkeypatch.setattr(finals, "read_winner", lambda folder: SimpleNamespace(promise=lambda: "promised"))
    run._write_page()
    monkeypatch.setattr(finals, "ENGINES", {SPEC.target.runtime: "engine"})
    monkeypatch.setattr(finals, "write_page", lambda *given, **named: written.append((given, named)))
    run._write_page()
    assert written == [((tmp_path,), {"engine": "engine", "threads": SPEC.target.threads, "promise": "promised"})]


@pytest.mark.parametrize("error", [TrainingDiverged("not finite"), Unsupported("several inputs")])
def test_where_rounding_cannot_be_learned_the_other_quantiser_stays(error: Exception) -> None:
    choice, phases = Choice(method="gptq", losses={"gptq": 1.0}, cpu_s={"gptq": 0.1}), []

    def fails(item: Any, trained: Any) -> Any:
        raise error

    run = object.__new__(Finals)
    run._on_phase, run._trained, run._learn, run._learned = phases.append, lambda item: None, fails, {}
    assert run._beside_learned(SimpleNamespace(number=3), choice, lambda arch, weights: 0.5) == choice
    assert (phases, run._learned) == (["learned rounding", "measuring the finalists"], {})
    run._learn = lambda item, trained: SimpleNamespace(design=SimpleNamespace(arch=None), weights={})
    better = run._beside_learned(SimpleNamespace(number=3), choice, lambda arch, weights: 0.5)
    assert (better.method, better.losses) == ("learned", {"gptq": 1.0, "learned": 0.5})
    assert set(run._learned) == {3}
    assert run._exported(SimpleNamespace(number=3)) is run._learned[3]
    worse = run._beside_learned(SimpleNamespace(number=4), choice, lambda arch, weights: 2.0)
    assert (worse.method, set(run._learned)) == ("gptq", {3})
