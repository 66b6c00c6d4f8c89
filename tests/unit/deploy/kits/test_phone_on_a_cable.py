"""A model is measured on a phone that an imitated adb reaches; the cable, its storage and its heat misbehave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf comes with chipwise[gguf]")

from chipwise import api
from chipwise.deploy.export.exporters import reference_model
from chipwise.deploy.kits.adb import PLACE
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.errors import ChipwiseError, InputError, MeasurementError, SpecError, Unreachable

FAKE = Path(__file__).with_name("fake_adb.py")
SOUND = {
    "devices": {"P1": "device"},
    "props": {"ro.product.model": "Toy 5", "ro.soc.model": "T100", "ro.build.version.release": "16"},
    "battery_c": [30.0],
    "free_kib": 10**7,
}


class Imitated:
    """The imitated phone of a test."""

    def __init__(self, home: Path) -> None:
        self.home, self.slept = home, list[float]()
        (home / "storage").mkdir(parents=True)
        (home / "llama-bench").write_bytes(b"a program")
        self.set()

    def set(self, **changes: object) -> None:
        (self.home / "phone.json").write_text(json.dumps(SOUND | changes))

    def said(self, name: str) -> object:
        return json.loads((self.home / "phone.json").read_text()).get(name)

    def measure(self, **changes: object):
        given = {"program": self.home / "llama-bench", "rounds": 5, "prompt": 8, "new": 5} | changes
        return api.measure_phone(self.model, sleep=self.slept.append, **given)

    @property
    def model(self) -> Path:
        """A file of its own whose bytes follow the reference model's."""
        path = self.home / "model.gguf"
        if not path.exists():
            path.write_bytes(reference_model("llama.cpp").read_bytes())
        return path


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imitated:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHIPWISE_ADB", f"{sys.executable} {FAKE}")
    monkeypatch.setenv("FAKE_PHONE", str(tmp_path / "phone"))
    return Imitated(tmp_path / "phone")


def test_times_of_the_phone_are_stored_under_its_chip(phone) -> None:
    """The imitated phone takes a nanosecond a byte for each token, so the pencil says what must come out."""
    found = phone.measure()
    size = phone.model.stat().st_size
    assert found.ttft_s == pytest.approx([8 * size * 1e-9] * 5)
    assert found.tpot_s == pytest.approx([size * 1e-9] * 5)
    assert (found.device, found.clean, found.steps_per_sample, found.workload.new_tokens) == ("T100", True, 4, 5)
    assert found.environment["decode_depth"] == 8
    before = found.environment["rounds"][0]["before"]
    assert before == {
        "battery_c": 30.0, "battery_share": 0.8, "charging": True, "hottest_c": 41.0,
        "clocks_hz": (1_800_000_000, 2_900_000_000),
    }  # fmt: skip
    assert found.environment["reference_s"]["generation"] == (4 * size,) * 5
    assert [item.id for item in MeasurementStore().entries(device="T100")]
    assert phone.said("runs") == 5 * 4  # rounds x (two tests of the reference and of the model)


def test_nothing_is_copied_twice(phone) -> None:
    phone.measure(rounds=1)
    phone.measure(rounds=1)
    names = [Path(name).name for name in (phone.model, reference_model("llama.cpp"), "llama-bench")]
    assert sorted(phone.said("pushed")) == sorted(names)


def test_after_an_unplugged_cable_only_the_missing_rounds_run(phone) -> None:
    phone.set(unplugged_after=8)
    with pytest.raises(Unreachable, match=r"connection to the phone was lost.*run again"):
        phone.measure()
    assert phone.said("runs") == 8
    found = phone.measure()
    assert len(found.ttft_s) == 5
    assert phone.said("runs") == 20
    assert not list((phone.home.parent / "home" / "phones").glob("*"))


def test_another_file_of_the_same_size_begins_anew(phone) -> None:
    phone.set(unplugged_after=8)
    with pytest.raises(Unreachable):
        phone.measure()
    (phone.home / "llama-bench").write_bytes(b"another p")
    assert len(phone.measure().ttft_s) == 5
    assert phone.said("runs") == 8 + 20


def test_a_round_waits_for_a_cool_phone(phone) -> None:
    phone.set(battery_c=[41.0, 38.0, 34.0])
    found = phone.measure(rounds=1)
    assert phone.slept == [10.0, 10.0]
    assert found.clean


def test_a_phone_that_stays_hot_or_slows_down_is_not_clean(phone) -> None:
    phone.set(battery_c=[44.0])
    found = phone.measure(rounds=1)
    assert not found.clean
    assert "round 1 began with the battery warmer than 35 °C" in found.reasons[0]
    phone.set(slower=[1, 1, 1, 1, 1, 1, 3, 3, 3, 3])
    found = phone.measure()
    assert any("reference work between requests varied by a factor of 3.00" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"devices": {}}, Unreachable, "no phone is connected.*USB debugging"),
        ({"devices": {"P1": "offline"}}, Unreachable, "P1 is offline: unlock it"),
        ({"devices": {"P1": "unauthorized"}}, Unreachable, "allow this machine"),
        ({"devices": {"P1": "device", "P2": "device"}}, InputError, "2 phones.*P1, P2.*--serial"),
        ({"free_kib": 10}, MeasurementError, "needs .* MB on the phone, which has 0 MB free"),
        ({"full": True}, MeasurementError, "the phone's storage is full"),
    ],
)
def test_what_a_phone_lacks_is_one_line(phone, changes, error, message) -> None:
    phone.set(**changes)
    with pytest.raises(error, match=message) as caught:
        phone.measure()
    assert "\n" not in str(caught.value)
    assert not list((phone.home / "storage").glob("*.part"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"program": "nowhere"}, "nowhere: there is no such file; build or download"),
        ({"rounds": 0}, "rounds: must be at least 1"),
        ({"cool_c": 90.0}, "cool_c: must be above 0 and at most 60"),
        ({"new": 1}, "new: must be at least 2"),
        ({"serial": "P9"}, "P9 is not connected; these are: P1"),
    ],
)
def test_wrong_arguments_are_one_line(phone, given, message) -> None:
    with pytest.raises(InputError, match=message):
        phone.measure(**given)


def test_damaged_rounds_and_a_missing_adb_are_named(phone, monkeypatch) -> None:
    phone.set(unplugged_after=4)
    with pytest.raises(Unreachable):
        phone.measure()
    [kept] = (phone.home.parent / "home" / "phones").glob("*.json")
    kept.write_text('[{"model": 1}]')
    with pytest.raises(SpecError, match="holds no rounds of a measurement on a phone; delete it"):
        phone.measure()
    monkeypatch.setenv("CHIPWISE_ADB", "no-such-adb")
    with pytest.raises(ChipwiseError, match="platform tools"):
        phone.measure()
    assert PLACE.startswith("/data/local/tmp")
