"""Corrections for desktop boards, because kernels were timed on server boards.

GeForce boards sustain clocks above their sheet's boost clock if power and heat allow, while data-centre boards with the
same silicon are capped at that clock. GeForce memory stores no error-correcting code; on GDDR6 boards that store one
(L40S, L4, A10, A40: 46,068 of 49,152 MiB are usable), the code takes 1/16 of capacity and bandwidth.

GeForce drivers disable peer access between boards, and on desktop platforms it is often disabled for workstation boards
as well: collectives then go through the host's memory, with NCCL instead of the runtimes' own kernels.

References:
    TweakTown 2022-09-22: an RTX 4090 ran at 2,810 to 2,850 MHz in a game (its sheet says 2,520), and an RTX 3090 Ti at
    2,000 to 2,050 MHz (1,860). Layers of Llama-3.1-8B timed on an RTX 4090 (casys-kaist/LLMServingSim 5daddb2, MIT)
    reach 926 to 950 of 1,008 GB/s at one token, and 166 TFLOP/s at 2,048 tokens, where the sheet's clock allows 165.
    wumeicn.com 2025-12-12 and its readers: two RTX 5090 on PCIe 5.0 x8 exchange 30 GB/s without peer access and 56 GB/s
    with it (both directions together), at latencies of 14 and 0.5 microseconds. NCCL with peer access hangs on two RTX
    PRO 6000 in a desktop: local-inference-lab/rtx6kpro issue 15, 2026-06-23.
"""

from __future__ import annotations

from chipwise.hardware.datasheet import DeviceProfile

CLOCK = 1.1
"""Sustained clock divided by the data sheet's boost clock: the mean of the RTX 4090 and the RTX 3090 Ti cited above."""
WITHOUT_CODE = 16 / 15
"""Bandwidth without an error-correcting code, relative to an equal board whose memory stores one."""

THROUGH_HOST = 30 / 56
"""Bandwidth between two boards without peer access, relative to that with peer access."""
HOST_S = 13.5e-6
"""Additional latency, in seconds, of a collective's step between two boards without peer access."""


def is_client(device: DeviceProfile) -> bool:
    """Whether a device is a GeForce or Titan board for desktops."""
    name = device.title.lower()
    return any(word in name for word in ("geforce", "titan")) and "laptop" not in name and device.kind == "gpu"


def clock_factor(device: DeviceProfile) -> float:
    """Sustained clock of a device, divided by the clock on its data sheet."""
    return CLOCK if is_client(device) else 1.0


def bandwidth_factor(device: DeviceProfile) -> float:
    """Factor by which the fitted share of the sheet's memory bandwidth is multiplied.

    The share was fitted on server boards. It is larger on boards without error-correcting code.
    """
    return WITHOUT_CODE if is_client(device) else 1.0


def without_peers(device: DeviceProfile) -> bool:
    """Whether two boards of this kind cannot read each other's memory: desktop boards without a link between them."""
    if device.kind != "gpu" or any(link.to == "device" for link in device.links):
        return False
    return is_client(device) or ("RTX" in device.title and "Server" not in device.title)
