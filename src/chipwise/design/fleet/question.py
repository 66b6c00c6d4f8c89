"""The question that a plan answers: the load, the limits, the devices with prices, and the options to consider."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from chipwise.core import units
from chipwise.core.fields import describe
from chipwise.core.files import build, read_yaml
from chipwise.errors import SpecError, UnitError, UnknownName, nearest, short
from chipwise.hardware import datasheet
from chipwise.predict.load.disturbances import UNDISTURBED, Disturbances
from chipwise.predict.load.load import Arrivals, RequestClass, check_arrivals
from chipwise.predict.load.outcome import METRICS
from chipwise.predict.load.policy import Speculation

LEAST_RATE, MOST_RATE = 1e-6, 1e7
FleetKind = Literal["together", "apart"]
T = TypeVar("T")
FORMER = {"degrees": "tp", "stages": "pp", "experts": "ep", "copies": "dp"}
"""Former names of parallelism degrees in files -> today's names; files with former names are still read."""
_RATE = re.compile(r"^\s*([0-9][0-9_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?:/\s*(s|min|h))?\s*$")


def rate_of(text: object, field: str = "rate") -> float:
    """Parses a rate such as ``20``, ``20/s``, ``90/min`` or ``1200/h``; returns requests per second.

    Raises:
        SpecError: The text is not a rate, or the rate is out of range.

    >>> rate_of("90/min")
    1.5
    """
    if isinstance(text, bool):
        raise SpecError(f"must be a rate such as 20/s, not {short(text)}", field=field)
    if isinstance(text, int | float):
        value = float(text) if abs(text) <= MOST_RATE else math.inf
    else:
        match = _RATE.match(str(text))
        if match is None:
            raise SpecError(f"must be a rate such as 20/s, 90/min or 1200/h, not {short(text)}", field=field)
        value = float(match[1].replace("_", "")) / {"s": 1.0, "min": 60.0, "h": 3600.0, None: 1.0}[match[2]]
    if 0 < value < LEAST_RATE:
        raise SpecError(f"must be at least one request in 10 days, not {short(text)}", field=field)
    if not math.isfinite(value) or not 0 < value <= MOST_RATE:
        raise SpecError(f"must be above 0 and at most {MOST_RATE:,.0f} requests/s, not {short(text)}", field=field)
    return value


def seconds_of(text: object, field: str) -> float:
    """Parses a limit on a time: text such as ``500ms``, or a number of seconds. Returns seconds.

    Raises:
        SpecError: The value is not a time, or is not above zero.
    """
    try:
        value = (
            float(text) if isinstance(text, int | float) and not isinstance(text, bool) else units.parse(text, "time")
        )
    except (UnitError, OverflowError) as error:
        said = f"{short(text)} is too large" if isinstance(error, OverflowError) else str(error)
        raise SpecError(said, field=field) from None
    return above_zero(value, field)


def above_zero(value: float, field: str, kind: str | None = None) -> float:
    """Checks that ``value`` is above zero and finite; ``kind`` gives the unit in which the message shows the value.

    Raises:
        SpecError: The value is zero, negative or not finite.
    """
    if not math.isfinite(value) or value <= 0:
        shown = short(value) if kind is None else units.show(value, kind)
        raise SpecError(f"must be above zero, not {shown}", field=field)
    return value


def disturbances_of(given: Mapping[str, object]) -> Disturbances:
    """Parses disturbances (slow steps caused by neighbours, network delays): texts with units, or SI numbers.

    Raises:
        SpecError: A field is unknown, not a quantity, or out of range.
    """
    kinds = {"slow_share": "share", "slow_factor": "share", "network_p50": "time", "network_p99": "time"}
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in kinds:
            raise SpecError(f"unknown field; {nearest(name, kinds)}", field=f"disturbances.{name}")
        field = f"{name}_s" if kinds[name] == "time" else name
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[field] = float(value)
        else:
            found[field] = units.parse_field(value, kinds[name], name)
    return Disturbances(**found)


def limits_of(given: object, field: str = "limits") -> dict[str, float]:
    """Parses limits on times by metric (``ttft_p99``, ``tpot_p50``, ``e2e_mean``, …); returns seconds.

    Raises:
        SpecError: The value is not a mapping, or a metric or a time is invalid.
    """
    limits = mapping(given, field)
    for name in limits:
        if name not in METRICS:
            raise SpecError(f"no limit has this name; {nearest(name, METRICS)}", field=f"{field}.{name}")
    return {name: seconds_of(value, f"{field}.{name}") for name, value in limits.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    """The load, the limits and the options to consider for a plan.

    Attributes:
        model: A known model, a file or a folder.
        rate_per_s: Requests per second, over all classes.
        classes: Classes of requests with their shares.
        limits: Limits on times over all requests, in seconds by metric.
        class_limits: Limits on times of single classes, by class name and metric.
        devices: Devices to choose from, by data sheet; empty: all devices that have a price.
        runtimes: Runtimes to choose from; empty: each device's default runtime.
        weights: Weight formats to choose from; empty: bf16, and fp8 if the device computes in fp8.
        tp: Tensor-parallel degrees to choose from.
        pp: Pipeline-parallel degrees to choose from.
        ep: Expert-parallel degrees to choose from. If empty: 1, and for mixtures of experts also the number of all
            devices of a pipeline stage.
        dp: Data-parallel degrees of attention to choose from, for mixtures of experts.
        speculation: Kinds of speculative decoding to consider, in addition to plain decoding.
        fleets: Kinds of fleets to consider: ``together`` (one pool for prefill and decode) and ``apart`` (separate
            pools).
        link_bytes_per_s: Bandwidth from the prefill to the decode pool. Default: that of the prefill devices' links.
        prices: Prices of devices, such as spot or reserved prices. They replace the prices of the data sheets.
        most_devices: Limit on the number of devices in a fleet.
        power_w: Limit on the power of all boards together.
        usd_per_s: Limit on the price of all devices together.
        confidence: Probability with which the limits must be met.
        arrivals: How requests arrive; see :func:`chipwise.predict.load.load.generate_load`.
        burstiness: Squared coefficient of variation of the gaps between requests, for gamma arrivals.
        requests: Number of requests to replay per lane (one engine with its share of the load).
        trace: A file of requests, which replaces classes and rate.
        kv: KV-cache dtype.
        seed: Seed of the random load.
        disturbances: Slow steps caused by neighbours on the machine, and network delays.
    """

    model: str
    rate_per_s: float
    classes: tuple[RequestClass, ...] = (RequestClass(),)
    limits: Mapping[str, float] = field(default_factory=dict)
    class_limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    tp: tuple[int, ...] = (1, 2, 4, 8)
    pp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = ()
    dp: tuple[int, ...] = (1,)
    speculation: tuple[Speculation, ...] = ()
    fleets: tuple[FleetKind, ...] = ("together",)
    link_bytes_per_s: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    most_devices: int = 1024
    power_w: float | None = None
    usd_per_s: float | None = None
    confidence: float = 0.9
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0
    requests: int = 400
    trace: str | None = None
    kv: str | None = None
    seed: int = 0
    disturbances: Disturbances = UNDISTURBED

    def __post_init__(self) -> None:
        rate_of(self.rate_per_s)
        if not 0 < self.confidence < 1:
            raise SpecError(f"must be above 0 and below 1, not {self.confidence}", field="confidence")
        if not 1 <= self.most_devices <= 100_000:
            raise SpecError(f"must be from 1 to 100,000, not {self.most_devices}", field="most_devices")
        if not 50 <= self.requests <= 1_000_000:
            raise SpecError(f"must be from 50 to 1,000,000, not {self.requests}", field="requests")
        for name in ("tp", "pp", "ep", "dp"):
            wrong = [each for each in getattr(self, name) if not 1 <= each <= 1024]
            if wrong:
                raise SpecError(f"must be degrees from 1 to 1,024, not {wrong[0]}", field=name)
        for name in ("tp", "pp", "dp", "fleets"):
            if not getattr(self, name):
                raise SpecError("must name at least one", field=name)
        for name in ("link_bytes_per_s", "power_w", "usd_per_s"):
            if getattr(self, name) is not None:
                above_zero(getattr(self, name), name)
        for name, price in self.prices.items():
            above_zero(price, f"prices.{name}")
        check_arrivals(self.arrivals, self.burstiness)
        if self.trace is not None and self.class_limits:
            raise SpecError("cannot be combined with trace, whose requests have no classes", field="class_limits")
        if not self.classes:
            raise SpecError("must name at least one", field="classes")
        names = [each.name for each in self.classes]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise SpecError(f"two classes are called {short(twice[0])}; give them different names", field="classes")
        for name in self.class_limits:
            if name not in names:
                raise SpecError(f"unknown class; {nearest(name, names)}", field=f"class_limits.{name}")


def with_todays_names(data: Mapping[str, T]) -> dict[str, T]:
    """The fields of a question, with former field names replaced by today's names.

    Raises:
        SpecError: A field is given under both its former and its current name.
    """
    for former, name in FORMER.items():
        if former in data and name in data:
            raise SpecError(
                f"is the former name of {name}, which is given too; leave the former name out", field=former
            )
    return {FORMER.get(name, name): value for name, value in data.items()}


def read_question(path: Path) -> FleetQuestion:
    """Reads a question from a YAML file, in which times, rates and prices have units (500 ms, 20/s, 2.5 USD/h).

    Raises:
        SpecError: A field is unknown, missing or wrong; the message names the field.
    """
    return question_from(read_yaml(path), file=str(path))


def question_from(data: Mapping[str, object], *, file: str | None = None) -> FleetQuestion:
    """Reads a question from a mapping, as :func:`read_question` does from a file."""
    given: dict[str, Any] = dict(data)
    try:
        if "models" in given:
            raise SpecError("must be one model; for several, one after another, use chipwise agent", field="models")
        given = with_todays_names(given)
        for name in FORMER.values():
            if isinstance(given.get(name), int):
                given[name] = [given[name]]
        if given.get("trace"):
            for name in ("rate", "classes", "class_limits"):
                if name in given:
                    raise SpecError("the trace sets this field too; leave the field out", field=name)
        if "disturbances" in given:
            given["disturbances"] = disturbances_of(mapping(given["disturbances"], "disturbances"))
        if "rate" in given:
            given["rate_per_s"] = rate_of(given.pop("rate"))
        given.setdefault("rate_per_s", 1.0 if given.get("trace") else None)
        if given["rate_per_s"] is None:
            raise SpecError("this field is missing; write `rate: 20/s` or `trace: FILE`", field="rate")
        if "limits" in given:
            given["limits"] = limits_of(given["limits"])
        if isinstance(drafts := given.get("speculation"), list | tuple):
            given["speculation"] = [
                asdict(Speculation.read(each)) if isinstance(each, str) else each for each in drafts
            ]
        by_class = mapping(given.get("class_limits", {}), "class_limits")
        given["class_limits"] = {name: limits_of(each, f"class_limits.{name}") for name, each in by_class.items()}
        classes = given.get("classes")
        if isinstance(classes, list):
            given["classes"], limits = _classes(classes)
            for name, own in limits.items():
                for metric in sorted(own.keys() & given["class_limits"].get(name, {}).keys()):
                    raise SpecError(
                        "is given both here and in the class; remove one", field=f"class_limits.{name}.{metric}"
                    )
                given["class_limits"][name] = {**given["class_limits"].get(name, {}), **own}
        for name in ("devices", "runtimes", "weights", "fleets"):
            if isinstance(given.get(name), str):
                given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
            if not isinstance(given.get(name, ()), list | tuple):
                raise SpecError(f"must be a list of names, not {describe(given[name])}", field=name)
            if name in given and name != "fleets" and not given[name]:
                raise SpecError("is an empty list; leave the field out to use its default", field=name)
        if "devices" in given:
            given["devices"] = _devices(given["devices"])
        given["prices"] = _prices(mapping(given.get("prices", {}), "prices"), given.get("devices"))
        for kind in given.get("fleets", ()):
            if kind not in get_args(FleetKind):
                raise SpecError(f"unknown kind of fleet; {nearest(str(kind), get_args(FleetKind))}", field="fleets")
        for name, limit, kind in (
            ("link", "link_bytes_per_s", "bandwidth"),
            ("power", "power_w", "power"),
            ("budget", "usd_per_s", "price_rate"),
        ):
            if name in given:
                given[limit] = _quantity(given.pop(name), kind, name)
        return build(FleetQuestion, given, file=file)
    except SpecError as error:
        raise error.inside(file=file) from None


def _quantity(value: object, kind: str, field: str) -> float:
    return above_zero(units.parse_field(value, kind, field), field, kind)


def device_key(name: str) -> str:
    """Name of a device in a plan: the label of its data sheet, with its memory.

    For a data sheet's file and for a machine that ``chipwise teach`` created, it is ``name`` itself.

    Raises:
        UnknownName: There is no data sheet with this name.
    """
    sheet = datasheet.load(name)
    return name if name.lower().endswith((".yaml", ".yml")) or sheet.taught is not None else sheet.label


def _devices(named: Sequence[object]) -> list[str]:
    """Checks the names of devices, and returns their names in plans.

    Raises:
        SpecError: A name is not text, or a device is named twice.
        UnknownName: There is no data sheet with one of the names.
    """
    found: dict[str, str] = {}
    for i, name in enumerate(named):
        if not isinstance(name, str):
            raise SpecError(f"must be the name of a device, not {short(name)}", field=f"devices[{i}]")
        key = device_key(name)
        if key in found:
            as_what = "" if found[key] == name else f", as {found[key]} and as {name}"
            raise SpecError(f"{key} is named twice{as_what}; name it once", field="devices")
        found[key] = name
    return list(found)


def _prices(given: Mapping[str, object], devices: Sequence[str] | None) -> dict[str, float]:
    """Parses prices; returns dollars per second by device.

    Raises:
        SpecError: A price is invalid, or its device is unknown or not among ``devices``.
    """
    found: dict[str, float] = {}
    for name, value in given.items():
        try:
            key = device_key(name)
        except UnknownName as error:
            raise SpecError(str(error), field=f"prices.{name}") from None
        if devices is not None and key not in devices:
            raise SpecError(f"{name} is not among the devices, {', '.join(devices)}", field=f"prices.{name}")
        if key in found:
            raise SpecError(f"{key} has two prices; give only one", field=f"prices.{name}")
        found[key] = _quantity(value, "price_rate", f"prices.{name}")
    return found


def mapping(value: object, field: str) -> dict[str, object]:
    """Checks that ``value`` is a mapping; returns it with its keys as text.

    Raises:
        SpecError: The value is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise SpecError(f"must be a mapping, not {short(value)}", field=field)
    return {str(name): each for name, each in value.items()}


def _classes(listed: list[object]) -> tuple[list[dict[str, object]], dict[str, dict[str, float]]]:
    """Parses the classes of requests; returns them, and a mapping from class names to the limits given in classes."""
    found, limits = [], {}
    for i, each in enumerate(listed):
        one = mapping(each, f"classes[{i}]")
        one.setdefault("name", f"class {i + 1}")
        for short_name, name in (("prompt", "prompt_tokens"), ("new", "new_tokens"), ("shared", "shared_tokens")):
            if short_name in one:
                one[name] = one.pop(short_name)
        if "limits" in one:
            limits[str(one["name"])] = limits_of(one.pop("limits"), f"classes[{i}].limits")
        found.append(one)
    return found, limits
