"""Fits the shipped model of matrix products to aiconfigurator's tables: constants, two kinds of network, half-widths.

No fit uses the sites (pairs of n and k) in ``heldout-gemm.csv``, tables that time the host rather than the device
(vLLM's block-scaled FP8, whose floor is 50 to 290 µs of dispatch), or devices of makers other than NVIDIA, whose
kernels have nothing in common with NVIDIA's. Sizes and training lengths of the networks were chosen by leaving out
sites and devices of these tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.errors import MissingExtra, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.bounded import SHIPPED
from chipwise.predict.kernels.gemm import ANY, REACH, class_of, distance, hardware
from chipwise.predict.kernels.gemm_features import features
from chipwise.predict.kernels.gemm_formats import path_of
from chipwise.predict.kernels.gemm_network import Network
from chipwise.predict.kernels.gemm_physics import OWN, SHARED, Machine, parts
from chipwise_fitting.bounded_training import provenance
from chipwise_fitting.common import held_out, tables, within
from chipwise_fitting.gemm_network import train
from chipwise_fitting.report import Progress, Report, errors

FORMATS = {  # name in the tables -> our weights and activations
    "bfloat16": ("bf16", "bf16"),
    "fp8": ("fp8", "bf16"),
    "fp8_block": ("fp8_block", "bf16"),
    "nvfp4": ("nvfp4", "bf16"),
    "int8_wo": ("int8", "bf16"),
    "int4_wo": ("int4_g128", "bf16"),
    "sq": ("int8", "int8"),
}
HOST_BOUND = {("vllm", "fp8_block")}
FAMILIES = {"hopper": ("h100-sxm", "h200-sxm"), "blackwell": ("b200-sxm", "gb200", "b300-sxm", "gb300")}
SINGLE_FAMILIES = {"family:ampere": "device:a100-sxm-80gb", "family:ada": "device:l40s"}
PHYSICS_ROWS, TRANSFER_ROWS = 500, 6000  # maximum number of rows of each device, stack and path
SEEN_EPOCHS = 6  # passes over the rows
STRENGTH = 0.03  # weight of priors relative to the mean over rows
SKETCH = 40  # number of quantiles that are stored of the errors on one device and path
CHECK_SHARE = 0.15  # share of sites left out to judge the network of seen devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Kernels of one device, stack and path, as measured."""

    device: DeviceProfile
    machine: Machine
    stack: str
    m: Float64Array
    n: Float64Array
    k: Float64Array
    seconds: Float64Array

    @property
    def key(self) -> str:
        """Stack and path."""
        return f"{self.stack}|{self.machine.path.name}"

    def some(self, rows: npt.NDArray[Any]) -> Group:
        """Returns the group with only these rows."""
        return Group(
            device=self.device,
            machine=self.machine,
            stack=self.stack,
            m=self.m[rows],
            n=self.n[rows],
            k=self.k[rows],
            seconds=self.seconds[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """The fitted constants of the physical formula."""

    shared: dict[str, float]
    own: dict[str, dict[str, float]]

    def of(self, group: Group) -> tuple[Float64Array, Float32Array]:
        """Returns log(measured / physics), and the features as (rows, features)."""
        own = self.own.get(group.key) or self.own.get(f"vllm|{group.machine.path.name}") or self.own["vllm|bf16"]
        found = parts(group.m, group.n, group.k, group.machine, self.shared, own)
        x_FR = features(group.m, group.n, group.k, group.machine, found)
        return np.log(group.seconds / found.total_s), np.ascontiguousarray(x_FR.T)


def fit(tables_root: Path, out: Path, *, progress: Progress) -> Report:
    """Writes gemm.json and gemm.npz to ``out`` from the tables under ``tables_root`` (``aiconfigurator_core/systems``).

    Raises:
        MissingExtra: torch, scipy or pyarrow is not installed.
    """
    groups = list(read(tables_root))
    progress(f"gemm: {sum(len(g.seconds) for g in groups)} rows of {len(groups)} tables and formats")
    folds: dict[str, Any] = {}
    nets: dict[str, Network] = {}
    left: dict[str, tuple[str, ...]] = {SHIPPED: ()}
    left |= {f"device:{name}": (name,) for name in sorted({g.device.name for g in groups})}
    left |= {f"family:{name}": devices for name, devices in FAMILIES.items()}
    misses: dict[str, Float64Array] = {}
    small = [_sample(group, TRANSFER_ROWS) for group in groups]
    for fold, away in left.items():
        kept = [group for group in small if group.device.name not in away]
        physics = fit_physics(kept)
        nets[fold] = transfer(kept, physics, seed=1)
        seen = {group.device.name: hardware(group.device) for group in kept}
        folds[fold] = {"shared": physics.shared, "own": physics.own, "hardware": seen}
        for group in small:
            if group.device.name in away and group.stack == "vllm":
                misses[f"{fold}|{group.device.name}|{group.key}"] = _miss(group, physics, nets[fold], seen)
        progress(f"gemm: {fold} " + _line(misses, fold))
    shipped = Physics(shared=folds[SHIPPED]["shared"], own=folds[SHIPPED]["own"])
    nets["seen"], seen_errors, widths = _seen(groups, shipped, progress)
    for fold, away in left.items():
        folds[fold]["misses"] = _sketches(misses, away, left)
    folds[SHIPPED]["log_halfwidth"] = {"seen": widths}
    _write(out, folds, nets)
    summary = {"seen device, unseen sites": seen_errors}
    for what, start in (("unseen device", "device:"), ("unseen family", "family:")):
        chosen = np.concatenate([miss for name, miss in misses.items() if name.startswith(start)])
        summary[what] = errors(np.ones_like(chosen), np.exp(chosen))
    return Report(kind="gemm", rows=sum(len(g.seconds) for g in groups), errors=summary)


def read(root: Path) -> Iterable[Group]:
    """Reads the rows to which the model is fitted."""
    away = held_out("gemm")
    for table in tables(root, "gemm", "gemm"):
        if table.device.vendor != "NVIDIA":
            continue
        kept = ~within(table.columns, ("n", "k"), away) & (table.columns["latency"] > 0)
        for theirs in np.unique(table.columns["gemm_dtype"]):
            if theirs not in FORMATS or (table.stack, theirs) in HOST_BOUND:
                continue
            try:
                path = path_of(*FORMATS[theirs], table.device)
            except Unsupported:
                continue
            rows = kept & (table.columns["gemm_dtype"] == theirs)
            m, n, k = (table.columns[name][rows].astype(np.float64) for name in "mnk")
            yield Group(
                device=table.device,
                machine=Machine.of(table.device, path),
                stack=table.stack,
                m=m,
                n=n,
                k=k,
                seconds=table.columns["latency"][rows].astype(np.float64) / 1e3,
            )


def fit_physics(groups: list[Group]) -> Physics:
    """Fits the shared constants to vLLM's tables, then separate constants of every other stack and path."""
    few = [_sample(group, PHYSICS_ROWS) for group in groups]
    first = [group for group in few if group.stack == "vllm"]
    keys = sorted({group.key for group in first})
    priors = [*SHARED.values(), *(prior for _ in keys for prior in OWN.values())]

    def unpack(x: Float64Array) -> Physics:
        own = x[len(SHARED) :].reshape(len(keys), len(OWN))
        return Physics(
            shared=dict(zip(SHARED, x, strict=False)),
            own={key: dict(zip(OWN, row, strict=True)) for key, row in zip(keys, own, strict=True)},
        )

    found = unpack(_solve(first, priors, unpack))
    for key in sorted({group.key for group in few} - set(keys)):
        mine = [group for group in few if group.key == key]

        def one(x: Float64Array, key: str = key, found: Physics = found) -> Physics:
            return Physics(shared=found.shared, own={**found.own, key: dict(zip(OWN, x, strict=True))})

        found = one(_solve(mine, list(OWN.values()), one))
    return found


def _solve(
    groups: list[Group], priors: list[tuple[float, float]], unpack: Callable[[Float64Array], Physics]
) -> Float64Array:
    """Minimises squared log errors (linear beyond 15 %) with priors; all classes of devices have equal weight."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingExtra("scipy", "tables", of="chipwise-fitting") from error
    start, spread = np.array(priors).T
    shares = _shares(groups)
    total = sum(len(group.seconds) for group in groups)

    def residuals(x: Float64Array) -> Float64Array:
        physics = unpack(x)
        rows = []
        for group, share in zip(groups, shares, strict=True):
            found = parts(group.m, group.n, group.k, group.machine, physics.shared, physics.own[group.key])
            rows.append(np.sqrt(share) * np.log(found.total_s / group.seconds))
        return np.concatenate([*rows, STRENGTH * np.sqrt(total) * (x - start) / spread])

    found: Float64Array = least_squares(residuals, start, loss="soft_l1", f_scale=0.15, max_nfev=40).x
    return found


def _shares(groups: list[Group]) -> list[float]:
    """Weight of each group's rows, such that all classes of devices have equal weight; the mean over rows is 1."""
    sizes: dict[str, int] = {}
    for group in groups:
        name = class_of(group.device)
        sizes[name] = sizes.get(name, 0) + len(group.seconds)
    total = sum(sizes.values())
    return [total / len(sizes) / sizes[class_of(group.device)] for group in groups]


def transfer(groups: list[Group], physics: Physics, *, seed: int) -> Network:
    """Trains the network for devices without measurements; its inputs name a class of devices or a general class."""
    keys = sorted({group.key for group in groups})
    names = [f"{ANY}|{key}" for key in keys]
    names += sorted({f"{class_of(group.device)}|{group.key}" for group in groups})
    general = np.array([names.index(f"{ANY}|{name.split('|', 1)[1]}") for name in names])
    y, x = zip(*(physics.of(group) for group in groups), strict=True)
    kinds = [np.full(len(group.seconds), names.index(f"{class_of(group.device)}|{group.key}")) for group in groups]
    shares = [np.full(len(g.seconds), share**0.5) for g, share in zip(groups, _shares(groups), strict=True)]
    return train(
        np.concatenate(x),
        np.concatenate(kinds),
        np.concatenate(y),
        names,
        hidden=(48, 32),
        epochs=6,
        bound=1.0,
        seed=seed,
        weight_decay=1e-2,
        weights=np.concatenate(shares),
        general=general,
        forget=0.5,
    )


def _miss(group: Group, physics: Physics, net: Network, seen: Mapping[str, Any]) -> Float64Array:
    """Returns log(predicted / measured) of a device by a fit that left the device out."""
    y, x = physics.of(group)
    kind = f"{class_of(group.device)}|{group.key}"
    trust = 1.0
    if kind not in net.kinds:
        kind, trust = f"{ANY}|{group.key}", float(np.exp(-((distance(group.device, seen) / REACH) ** 2)))
    return trust * net(x.T, kind) - y


def _sketches(
    misses: Mapping[str, Float64Array], away: tuple[str, ...], left: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Returns situation (sibling, unseen) -> device -> path -> quantiles of absolute errors, without devices ``away``.

    For ``unseen``, a device's errors are those of the fold that left out the device's whole class.
    """
    siblings = {device for group in left.values() if len(group) > 1 for device in group}
    found: dict[str, dict[str, dict[str, list[float]]]] = {"sibling": {}, "unseen": {}}
    for name, miss in misses.items():
        fold, device, _, path = name.split("|")
        situation = "sibling" if fold.startswith("device:") and device in siblings else "unseen"
        if device not in away:
            quantiles = np.quantile(np.abs(miss), (np.arange(SKETCH) + 0.5) / SKETCH)
            found[situation].setdefault(device, {})[path] = [round(float(value), 4) for value in quantiles]
    return found


def _seen(
    groups: list[Group], physics: Physics, progress: Progress
) -> tuple[Network, dict[str, float], dict[str, float]]:
    """Trains the network that knows devices by name; a first training run without some sites gives its errors and
    half-widths.
    """
    sites = sorted({site for group in groups for site in zip(group.n, group.k, strict=True)})
    chosen = np.random.default_rng(5).random(len(sites)) < CHECK_SHARE
    check = {site for site, away in zip(sites, chosen, strict=True) if away}
    names = sorted(f"{group.device.name}|{group.key}" for group in groups)
    masks = [np.fromiter((site in check for site in zip(g.n, g.k, strict=True)), dtype=bool) for g in groups]
    first = _train_seen([g.some(~mask) for g, mask in zip(groups, masks, strict=True)], physics, names)
    widths, truths, answers = {}, [], []
    for group, mask in zip(groups, masks, strict=True):
        part, kind = group.some(mask), f"{group.device.name}|{group.key}"
        y, x = physics.of(part)
        miss = first(x.T, kind) - y
        widths[kind] = float(np.quantile(np.abs(miss), 0.9))
        if group.stack == "vllm":
            truths.append(part.seconds)
            answers.append(part.seconds * np.exp(miss))
    found = errors(np.concatenate(truths), np.concatenate(answers))
    progress(f"gemm: seen devices, sites left out: {found}")
    return _train_seen(groups, physics, names), found, widths


def _train_seen(groups: list[Group], physics: Physics, names: list[str]) -> Network:
    y, x = zip(*(physics.of(group) for group in groups), strict=True)
    kinds = [np.full(len(group.seconds), names.index(f"{group.device.name}|{group.key}")) for group in groups]
    return train(
        np.concatenate(x),
        np.concatenate(kinds),
        np.concatenate(y),
        names,
        hidden=(128, 96),
        epochs=SEEN_EPOCHS,
        bound=1.5,
        seed=1,
    )


def _sample(group: Group, rows: int) -> Group:
    count = len(group.seconds)
    return group if count <= rows else group.some(np.random.default_rng(0).choice(count, rows, replace=False))


def _line(misses: Mapping[str, Float64Array], fold: str) -> str:
    return ", ".join(
        f"{name.split('|', 1)[1]} {100 * np.abs(np.expm1(miss)).mean():.1f} %"
        for name, miss in misses.items()
        if name.startswith(f"{fold}|")
    )


def _write(out: Path, folds: Mapping[str, Any], nets: Mapping[str, Network]) -> None:
    facts = {
        "provenance": provenance(),
        "folds": folds,
        "same_as": SINGLE_FAMILIES,
        "networks": {name: {"kinds": net.kinds, "bound": net.bound} for name, net in nets.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "gemm.json").write_text(json.dumps(_rounded(facts), separators=(",", ":")) + "\n", encoding="utf-8")
    arrays = {f"{name}/{part}": array for name, net in nets.items() for part, array in net.arrays().items()}
    stored: dict[str, Any] = {name: _half(name, array) for name, array in arrays.items()}
    np.savez_compressed(out / "gemm.npz", **stored)


def _half(name: str, array: Float32Array) -> npt.NDArray[Any]:
    return array if name.endswith(("/mean", "/scale")) else array.astype(np.float16)


def _rounded(value: Any) -> Any:
    """Rounds all numbers in ``value`` to six significant digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
