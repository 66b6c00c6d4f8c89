"""What this machine says of itself."""

from __future__ import annotations

import os

from chipwise.hardware import detect


def test_this_machine() -> None:
    machine = detect()
    assert machine.cores == os.cpu_count()
    assert machine.memory_bytes > 10**8
    assert machine.cpu in machine.name
    if machine.l2_bytes and machine.l3_bytes:
        assert machine.l2_bytes < machine.l3_bytes
