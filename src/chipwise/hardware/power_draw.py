"""Maximum and idle power of a device: from its data sheet or, for phone chips, from similar small machines."""

from __future__ import annotations

from chipwise.hardware.datasheet import DeviceProfile

FLOOR_SHARE = 0.25  # idle power as a share of the board's limit, if none is published
PHONE_BANDWIDTH = 90e9  # bytes/s; systems on a chip up to this bandwidth are in phones, boards and small laptops
PHONE_LOAD_W, PHONE_IDLE_W, PHONE_LOG_HALFWIDTH = 11.1, 1.7, 0.64
"""Wall power in watts of small machines with phone chips, under load and idle; log half-width of its 90 % interval.

Geometric means over the machines with published wall power: MacBook Neo (A18 Pro), Radxa Dragon Q6A (QCS6490), Orange
Pi 5 Max (RK3588), Raspberry Pi 5 and 4, HiFive Premier P550 (only its power under load, which is close to its idle
power).
The interval is a prediction interval by Student's t for another such machine. Source: geerlingguy/sbc-reviews 968b675.
"""


def limit_w(device: DeviceProfile) -> float:
    """Maximum power in watts: the board power, or for phone chips without board power the power of similar machines.

    Raises:
        Unsupported: The device lists no board power and is not a phone chip.
    """
    if device.board_power is None and is_phone(device):
        return PHONE_LOAD_W
    return device.board_power_w


def floor_w(device: DeviceProfile) -> float:
    """Power of the idle device in watts: its published idle power, else ``FLOOR_SHARE`` of its maximum power.

    Raises:
        Unsupported: See :func:`limit_w`.
    """
    if device.idle_power is not None:
        return device.idle_power.number
    return PHONE_IDLE_W if device.board_power is None and is_phone(device) else FLOOR_SHARE * limit_w(device)


def is_phone(device: DeviceProfile) -> bool:
    """Whether the chip is for phones and small boards, judging by its memory bandwidth."""
    return device.kind == "soc" and device.mem_bandwidth_bytes_per_s <= PHONE_BANDWIDTH
