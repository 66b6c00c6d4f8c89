"""``chipwise devices`` as a user types it."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from chipwise.cli import devices
from chipwise.errors import UnknownName
from chipwise.hardware.datasheet import load, names

runner = CliRunner()


def printed(*arguments: str) -> str:
    outcome = runner.invoke(devices.app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.output


def test_the_table_has_a_row_a_device_and_dashes_for_what_is_not_published() -> None:
    text = printed()
    lines = text[: text.index("–: not published")].splitlines()[2:]
    rows = {line.split()[0]: re.split(r"  +", line) for line in lines}
    assert set(rows) == set(names())
    assert "…" not in text, "nothing is cut off"
    cells = rows["h100-sxm"]
    assert cells[:6] == ["h100-sxm", "85.5 GB", "3.35 TB/s", "66.9 T", "989 T", "989 T"]
    assert cells[8] == "–", "Hopper has no fp4"


def test_json_is_in_si_units_with_null_for_what_is_not_published() -> None:
    rows = {row["name"]: row for row in json.loads(printed("--json"))}
    assert set(rows) == set(names())
    assert rows["h100-sxm"]["bandwidth_bytes_per_s"] == 3.35e12
    assert rows["h100-sxm"]["peak_flops_per_s"]["bf16"] == 989.4e12
    assert rows["h100-sxm"]["launch_overhead_s"] is None


def test_one_device_shows_every_fact_with_its_source_and_what_follows_from_them() -> None:
    text = " ".join(printed("show", "H100_SXM").split())
    for path, fact in load("h100-sxm").facts():
        assert path in text
        assert str(fact.value) in text
    assert "NVIDIA H100 data sheet, SXM column" in text
    assert "engines.tensor cores.peak.bf16" in " ".join(printed("show", "jetson-agx-orin").split())
    facts = json.loads(printed("show", "h100", "--json"))["facts"]
    assert facts["memory.dram.bandwidth"]["si"] == 3.35e12


def test_an_unknown_device_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'h100-sxm'"):
        runner.invoke(devices.app, ["show", "h100-smx"], catch_exceptions=False)


def test_a_makers_gigabytes_of_gpu_memory_are_powers_of_two() -> None:
    """nvidia-smi: 81,559 MiB on an H100 "80 GB"; 46,068 on an L40S, whose error correction takes a sixteenth."""
    for name, marketed in (("h100-sxm", 80), ("l40s", 48), ("rtx-4090", 24), ("rx-7900-xtx", 24), ("mi300x", 192)):
        held = load(name).mem_capacity_bytes
        assert 0.93 * marketed * 2**30 < held <= marketed * 2**30
