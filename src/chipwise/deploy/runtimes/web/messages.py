"""Messages from a page: what its browser offers, and answers to commands. Each message is checked when it is built."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.labels import require_label
from chipwise.errors import SpecError

MOST_POST_BYTES = 2**25  # the logits of a vocabulary of four million tokens
MOST_THREADS = 1024
SLOWEST_CLOCK_S = 1.0
LONGEST_S = 3600.0
DTYPES = {"float32": np.float32, "int64": np.int64, "int32": np.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """Properties of the browser that shows a page, and of its device."""

    threads: int  # 1 if the page is not isolated
    clock_s: float  # resolution of the clock
    isolated: bool
    webgpu: str  # name of the adapter, or none
    agent: str
    name: str = ""  # name of the device, as far as the browser or the address tells it

    @property
    def machine(self) -> str:
        """The name under which measurements are stored: the device (or its system, if unknown) and the browser."""
        system = re.search(r"\(([^)]*)\)", self.agent)
        browser = re.search(
            r"(?:Firefox|FxiOS|Edg|OPR|SamsungBrowser|HeadlessChrome|CriOS|Chrome|Version)/\d+", self.agent
        )
        parts = (self.name or (system[1].replace(";", ",") if system else "unknown device"), browser and browser[0])
        return ", ".join(filter(None, parts)).replace("/", " ").replace("Version", "Safari")

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise SpecError(f"must be from 1 to {MOST_THREADS}", field="threads")
        if not 0 < self.clock_s <= SLOWEST_CLOCK_S:
            raise SpecError(f"must be seconds up to {SLOWEST_CLOCK_S:g}", field="clock_s")
        for name in ("webgpu", "agent"):
            require_label(getattr(self, name), name)
        require_label(self.name, "name", empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request in which a page sends its answer to the previous command and asks for the next one."""

    page: str
    done: int  # number of the last command that the page carried out
    got: Got | None = None  # only in the page's first request
    answer: Mapping[str, object] = field(default_factory=dict)
    error: str = ""
    left: bool = False  # the page is being closed

    def __post_init__(self) -> None:
        require_label(self.page, "page")
        require_label(self.error, "error", empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A tensor in JSON."""

    type: str
    dims: tuple[int, ...]
    data: str  # base64 of the values

    def array(self) -> AnyArray:
        """The tensor.

        Raises:
            SpecError: The values do not fit the dimensions.
        """
        try:
            values = np.frombuffer(base64.b64decode(self.data, validate=True), DTYPES[self.type])
        except (KeyError, ValueError, binascii.Error):
            raise SpecError(f"must be values of {', '.join(DTYPES)} in base64", field="data") from None
        if any(size < 0 for size in self.dims) or math.prod(self.dims) != len(values):
            raise SpecError(f"{len(values)} values do not have the shape {list(self.dims)[:8]}", field="dims")
        return values.reshape(self.dims)


def pack(array: AnyArray) -> dict[str, object]:
    """A tensor for JSON; the page unpacks it."""
    data = base64.b64encode(array.tobytes()).decode()
    return {"type": array.dtype.name, "dims": list(array.shape), "data": data}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The answer to a run: seconds of each pass, and the output of the last one if it was wanted."""

    seconds: tuple[float, ...]
    output: Packed | None

    def __post_init__(self) -> None:
        if not self.seconds or any(not 0 <= each <= LONGEST_S for each in self.seconds):
            raise SpecError(f"must be times of at most {LONGEST_S:g} s", field="seconds")
