"""Names of devices, runtimes and models, with published facts. Quick to import."""

from __future__ import annotations

from chipwise.hardware import datasheet as datasheet
from chipwise.hardware import taught as taught
from chipwise.hardware.datasheet import DeviceProfile as DeviceProfile
from chipwise.hardware.facts import Fact as Fact
from chipwise.hardware.runtime import RUNTIMES as RUNTIMES
from chipwise.hardware.taught import Teaching as Teaching
from chipwise.model.published import alike as alike
from chipwise.model.published import families as families
