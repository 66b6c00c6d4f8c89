"""Machines of clouds: which chip, how many, at what price."""

from __future__ import annotations

import pytest

from chipwise.core.files import read_yaml
from chipwise.hardware import datasheet, instances


@pytest.mark.parametrize(
    ("name", "chip", "chips"),
    [
        ("p5.48xlarge", "h100-sxm", 8),
        ("P5.48xlarge-spot", "h100-sxm", 8),
        ("g6.xlarge", "l4", 1),
        ("a2-highgpu-1g", "a100-sxm-40gb", 1),
        ("Standard_ND96isr_H200_v5", "h200-sxm", 8),
        ("nd96isr_h200_v5", "h200-sxm", 8),
        ("trn1.32xlarge", "trainium1", 16),
    ],
)
def test_a_machines_name_is_its_chip(name: str, chip: str, chips: int) -> None:
    machine, sheet = instances.named(name), datasheet.load(name)
    assert machine is not None
    assert (sheet.name, machine.chips) == (chip, chips)
    assert datasheet.load(sheet.label) == sheet


def test_a_chip_has_its_share_of_the_machines_price_and_else_none() -> None:
    """55.04 dollars an hour by eight, and 19.2531 as spot; the chip's price elsewhere is none of the machine's."""
    assert 3600 * datasheet.load("p5.48xlarge").price_usd_per_s == pytest.approx(6.88)
    assert 3600 * datasheet.load("p5.48xlarge-spot").price_usd_per_s == pytest.approx(19.2531 / 8)
    assert datasheet.load("a3-highgpu-8g").price is None
    assert "price unknown" in str(datasheet.said_of("g6.xlarge-spot"))


def test_every_machine_has_a_chip_that_ships_and_every_cloud_its_source() -> None:
    for cloud in read_yaml(instances.DATA).values():
        assert cloud["source"]
        for name, machine in cloud["machines"].items():
            assert machine["chip"] in datasheet.names(), name
            assert machine.keys() <= {"chip", "chips", "usd_per_h", "spot_usd_per_h"}, name


def test_whole_machines_are_counted() -> None:
    assert instances.counted("p5.48xlarge", 9) == "2 x p5.48xlarge (9 of 16 chips)"
    assert instances.counted("g6.xlarge", 3) == "3 x g6.xlarge"
    assert instances.counted("l40s", 9) == "9 x l40s"
