"""Corrections for desktop boards that their sheets do not list: kernels were timed on server boards.

GeForce boards hold clocks above the boost clock of their sheet wherever power and heat allow, while data-centre boards
of equal silicon are capped at it. And their memory keeps no error-correcting code: on boards with GDDR6 that do (L40S,
L4, A10, A40: 46,068 of 49,152 MiB are left), a sixteenth of what is stored and moved is code.

GeForce drivers let no board read another's memory, and on desktop platforms peer access of workstation boards is often
off as well: collectives then go through the host's memory, with NCCL instead of the runtimes' own kernels.

References:
    TweakTown 2022-09-22: an RTX 4090 at stock 2,810 to 2,850 MHz in a game (2,520 on its sheet), an RTX 3090 Ti at
    2,000 to 2,050 (1,860). Layers of Llama-3.1-8B timed on an RTX 4090 (casys-kaist/LLMServingSim 5daddb2, MIT): 926
    to 950 of 1,008 GB/s at one token, 166 TFLOP/s at 2,048 where the sheet's clock allows 165.
    wumeicn.com 2025-12-12 and its readers: two RTX 5090 on PCIe 5.0 x8 exchange 30 GB/s without peer access and 56 GB/s
    with it, both directions together, 14 and 0.5 microseconds after the start. NCCL with peer access hangs on two RTX
    PRO 6000 in a desktop: local-inference-lab/rtx6kpro issue 15, 2026-06-23.
"""

from __future__ import annotations

from chipwise.hardware.datasheet import DeviceProfile

CLOCK = 1.1
"""Clock over the sheet's boost clock, in the mean of the two boards above."""
WITHOUT_CODE = 16 / 15
"""Bandwidth over that of a board of equal figures whose memory keeps error-correcting code beside the data."""

THROUGH_HOST = 30 / 56
"""Bandwidth between two boards without peer access, over that with it."""
HOST_S = 13.5e-6
"""Seconds by which a step between two boards begins later without peer access."""


def is_client(device: DeviceProfile) -> bool:
    """Whether a device is a GeForce or Titan board for desktops."""
    name = device.title.lower()
    return any(word in name for word in ("geforce", "titan")) and "laptop" not in name and device.kind == "gpu"


def clock_factor(device: DeviceProfile) -> float:
    """Sustained clock of a device relative to its sheet."""
    return CLOCK if is_client(device) else 1.0


def bandwidth_factor(device: DeviceProfile) -> float:
    """Memory bandwidth of a device relative to the fitted share of the sheet's figure."""
    return WITHOUT_CODE if is_client(device) else 1.0


def without_peers(device: DeviceProfile) -> bool:
    """Whether boards of a device cannot read each other's memory: desktop boards without a link."""
    if device.kind != "gpu" or any(link.to == "device" for link in device.links):
        return False
    return is_client(device) or ("RTX" in device.title and "Server" not in device.title)
