import json

import pytest
from example_record import example_record, least

from chipwise.design.report.record import CurvePoint, RunRecord, Trial, load, save
from chipwise.errors import SpecError


def test_what_is_saved_is_what_is_loaded(tmp_path):
    record = example_record()
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json") == record


def test_the_file_says_its_schema_first(tmp_path):
    save(example_record(), tmp_path / "record.json")
    assert next(iter(json.loads((tmp_path / "record.json").read_text()).items())) == ("schema", "chipwise.run/1")


def test_parts_that_are_missing_are_not_known_yet():
    plain = least().to_plain()
    needed = ("name", "created", "version", "status", "seed", "target", "workload", "budget", "space")
    assert RunRecord.from_plain({key: plain[key] for key in needed}) == least()


def test_what_older_records_held_besides_is_left_out():
    roofs = [{"name": "DRAM", "bandwidth_bytes_per_s": 1e10}]
    assert RunRecord.from_plain({**least().to_plain(), "roofs": roofs, "per_thousand": {"energy_j": None}}) == least()


def test_another_schema_is_refused_by_name():
    with pytest.raises(SpecError, match=r"old\.json: schema: this record has version 'chipwise\.run/9'"):
        RunRecord.from_plain({**least().to_plain(), "schema": "chipwise.run/9"}, file="old.json")


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(SpecError, match=r"winer: unknown field; did you mean 'winner'"):
        RunRecord.from_plain({**least().to_plain(), "winer": 3})


def test_a_winner_must_be_a_trial():
    with pytest.raises(SpecError, match="winner: there is no trial 3"):
        RunRecord.from_plain({**least().to_plain(), "winner": 3})


def test_two_trials_cannot_share_a_number():
    trial = {"number": 1, "state": "priced", "summary": "d64", "weights": "fp32"}
    with pytest.raises(SpecError, match="two trials have the same number"):
        RunRecord.from_plain({**least().to_plain(), "trials": [trial, trial]})


def test_a_number_that_is_not_finite_is_refused_where_it_stands():
    point = CurvePoint(cpu_s=1.0, tokens=2, train_loss=float("nan"))
    trial = Trial(number=1, state="trained", summary="d64", weights="fp32", curve=(point,))
    plain = least().to_plain()
    record = RunRecord.from_plain({**plain, "trials": [trial]})
    with pytest.raises(SpecError, match=r"trials\[0\]\.curve\[0\]\.train_loss: must be a finite number"):
        record.to_plain()


def test_a_record_written_when_losses_were_called_bits_per_byte_is_read():
    point = {"cpu_s": 1.0, "tokens": 2, "train_bits_per_byte": 3.0, "val_bits_per_byte": 2.5}
    trial = {"number": 1, "state": "trained", "summary": "d64", "weights": "fp32", "curve": [point]}
    trial |= {"bits_per_byte": 2.5, "quantised_bits_per_byte": 2.6, "test_bits_per_byte": 2.7}
    record = RunRecord.from_plain({**least().to_plain(), "trials": [trial], "history": [{"elapsed_cpu_s": 1.0}]})
    (read,) = record.trials
    assert (read.loss, read.quantised_loss, read.test_loss) == (2.5, 2.6, 2.7)
    assert (read.curve[0].train_loss, read.curve[0].val_loss) == (3.0, 2.5)
    assert RunRecord.from_plain(record.to_plain()) == record


def test_a_baseline_that_wins_is_the_winner():
    trial = Trial(number=1, state="measured", summary="d64", weights="fp32")
    record = RunRecord.from_plain({**least().to_plain(), "trials": [trial], "winner": 1, "baseline": 1})
    assert record.role(trial) == "winner"
