"""From a Hugging Face folder to a smaller model that keeps limits: order, judge, choose, heal, export, measure.

Every stage leaves a file in ``state/`` and finds it again, so a run that was killed goes on, and another method or
limit pays only for what is its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from chipwise.core import units
from chipwise.core.digest import digest, plain
from chipwise.core.dtypes import dtype_of
from chipwise.core.errors import Infeasible, InputError, SpecError, StudyError, UnitError, UnknownName
from chipwise.core.files import read_json, storage, write_json
from chipwise.deploy.hf import load_pretrained, save_pretrained
from chipwise.deploy.onnx import export
from chipwise.ops import Workload
from chipwise.profile.harness import measure_alternately
from chipwise.profile.measurement import Measurement
from chipwise.spec import ArchSpec, Design
from chipwise.spec.encoder import without_head
from chipwise.train.command import data_spec
from chipwise.train.data import load_corpus
from chipwise.train.pretrained.choosing import (
    METHODS,
    Limits,
    Method,
    Sampler,
    bytes_of,
    choose_exactly,
    choose_first_layers,
    options_of,
    search_shared,
)
from chipwise.train.pretrained.costs import Costs, measure_costs
from chipwise.train.pretrained.distil import Distiller, Healing
from chipwise.train.pretrained.judging import Replacement, judge, judge_replacements
from chipwise.train.pretrained.running import head_of
from chipwise.train.pretrained.sizes import (
    Sizes,
    compact,
    cut_arch,
    cut_weights,
    reorder,
    require_cuttable,
    whole_sizes,
)
from chipwise.train.pretrained.statistics import Statistics, gather, importance_order, reordered, repaired
from chipwise.train.pretrained.texts import Targets, Texts, encode, make_targets

Named = dict[str, Tensor]
Told = Callable[[str, int, int], None]  # stage, how much is done, of how much
CALIBRATION_TEXTS, JUDGING_BATCHES, VALIDATION_BATCHES = 256, 2, 4
_TIGHTENINGS = 3  # times that the budget is lowered when a cut is measured above the limit
_MOST_TOKENS = 800_000  # of text: their states take 2 bytes a value on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What came out, and how it compares with the original."""

    folder: Path  # a Hugging Face folder, with model.onnx beside it
    method: Method
    arch: ArchSpec
    sizes: Sizes
    parameters: int
    original_parameters: int
    limit_s: float | None
    predicted_s: float  # of a request
    latency: Measurement | None  # None where it was not to be measured
    original_latency: Measurement | None
    loss_before: float  # distance from the original on held-out text as cut, and after healing
    loss_after: float
    cpu_s: Mapping[str, float]  # by stage; those shared by methods are charged to each

    @property
    def ratio(self) -> float | None:
        """Measured median latency over the original's."""
        if self.latency is None or self.original_latency is None:
            return None
        return request_of(self.latency) / request_of(self.original_latency)


def request_of(found: Measurement) -> float:
    """Median seconds of a request: the pass over the text, and of a decoder the tokens after the first."""
    steps = 0.0 if found.encodes else (found.workload.new_tokens - 1) * found.percentile("tpot", 0.5)
    return found.percentile("ttft", 0.5) + steps


def start_from(
    folder: str | Path,
    *,
    latency: str | float | None = "60 %",
    memory: str | float | None = None,
    method: Method = "exact",
    data: Sequence[str | Path] | Mapping[str, Any] = ("medical-definitions",),
    tokens: int = 32,
    new_tokens: int = 16,
    longest: int = 64,
    weights: str = "fp32",
    healing: Healing | None = None,
    shared: Healing | None = None,
    trials: int = 60,
    out: str | Path | None = None,
    resume: bool = False,
    measured: bool = True,
    seed: int = 0,
    progress: Told = lambda stage, done, total: None,
) -> Shrunk:
    """A smaller model cut from the one in ``folder``, within limits, healed by distillation from it.

    Args:
        folder: A Hugging Face folder of a BERT-style encoder or a Llama-style decoder, with its tokenizer.json.
        latency: Limit of a request on this machine: a share of the original's (``60 %``) or a time (``3 ms``).
        memory: Limit of the weights: a share or a size (``40 MB``).
        method: ``exact`` (blocks judged one by one, an integer programme chooses), ``shared`` (search over weights that
            all cuts share), or ``truncate`` (the first layers, the baseline).
        data: A text source, text files, a run file, or the fields of such: what to judge and heal with.
        tokens: Tokens of a request's text or prompt.
        new_tokens: Tokens that a decoder generates in a request.
        longest: Tokens that a text is cut to in healing.
        weights: Format in which it will be served.
        healing: Steps and rates of healing.
        shared: The same of training shared weights.
        trials: Cuts that the search over shared weights looks at.
        out: Folder; ``runs/shrink-<name>`` unless given.
        resume: Go on with what the folder holds.
        measured: Whether the result and the original are measured in turns at the end.
        seed: Of batches and draws.
        progress: Hears the stage and how far it is.

    Raises:
        InputError: The model, a limit or the text is wrong, or no cut keeps the limits.
        Unsupported: The model has blocks that are not built or cut here.
        StudyError: The folder holds a run of another model or text, or one and ``resume`` is not given.
    """
    if method not in METHODS:
        raise UnknownName("method", method, get_args(Method))
    source = Path(folder)
    target = Path(out) if out is not None else Path("runs") / f"shrink-{source.resolve().name}"
    work = Shrinking(
        source,
        target,
        data=data,
        workload=Workload(prompt_tokens=tokens, new_tokens=new_tokens),
        longest=longest,
        form=weights,
        seed=seed,
        resume=resume,
        told=progress,
    )
    return work.run(
        method, latency=latency, memory=memory, healing=healing or Healing(), shared=shared or Healing(steps=150),
        trials=trials, measured=measured,
    )  # fmt: skip


class Shrinking:
    """The stages of one original, one text and one workload; see :func:`start_from`."""

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        data: Sequence[str | Path] | Mapping[str, Any],
        workload: Workload,
        longest: int,
        form: str,
        seed: int,
        resume: bool,
        told: Told,
    ) -> None:
        arch, arrays = load_pretrained(source)
        arch = without_head(arch) if arch.head == "pooler" else arch
        require_cuttable(arch)
        self.tokenizer = source / "tokenizer.json"
        if not self.tokenizer.exists():
            raise SpecError("its weights need its tokenizer.json, which is not there", file=str(source))
        self.source, self.target, self.state = source, target, target / "state"
        self.workload, self.form, self.seed, self.told = workload, form, seed, told
        self.value_bytes = float(dtype_of(form).bits) / 8
        self.arch = arch
        self.original: Named = {
            name: torch.from_numpy(value) for name, value in arrays.items() if not name.startswith("pooler.")
        }
        self.spec, base = data_spec(data)
        corpus = load_corpus(self.spec, base=base)
        about = {
            "arch": arch.digest,
            "weights": digest([float(value.double().sum()) for value in self.original.values()]),
            "text": corpus.digest,
            "longest": longest,
            "workload": plain(workload),
            "format": form,
            "seed": seed,
        }
        claim(target, about, resume=resume)
        self.train = _first_tokens(encode(self.tokenizer, corpus.train, longest=longest), _MOST_TOKENS)
        self.validation = encode(self.tokenizer, corpus.validation, longest=longest)
        self.cpu_s: dict[str, float] = {}
        self._ordered: tuple[Named, Statistics] | None = None

    def run(
        self,
        method: Method,
        *,
        latency: str | float | None,
        memory: str | float | None,
        healing: Healing,
        shared: Healing,
        trials: int,
        measured: bool,
    ) -> Shrunk:
        """One method under one set of limits."""
        costs = self.costs()
        whole = whole_sizes(self.arch)
        limits = Limits(
            latency_s=limit_of(latency, costs.request_s(self.arch, whole), "time", "latency"),
            memory_bytes=limit_of(memory, bytes_of(self.arch, whole, self.value_bytes), "bytes", "memory"),
        )
        key = digest([method, asdict(limits), asdict(healing), asdict(shared), trials])
        place = self.target / method
        if method == "shared":
            weights, sizes = self.search(shared, trials, costs, limits, key)
        else:
            weights, sizes = self.choose(method, costs, limits, key)
        sub, part = compact(cut_arch(self.arch, sizes), cut_weights(self.arch, sizes, weights))
        head = head_of(self.arch, self._ordered_weights())
        validation = self.targets("validation")
        before = judge(sub, part, whole_sizes(sub), validation, original_head=head, batches=VALIDATION_BATCHES)
        distiller = Distiller(
            sub, part, self.targets("train"), original_head=head, healing=healing, seed=self.seed,
            path=self.state / f"healing-{method}.safetensors",
        )  # fmt: skip
        healed = distiller.run(lambda step, steps, _loss: self.told("heal", step, steps))
        self.cpu_s["heal"] = healed.cpu_s
        after = judge(sub, healed.weights, whole_sizes(sub), validation, original_head=head, batches=VALIDATION_BATCHES)
        self._write(place, sub, healed.weights)
        times = self._measure(place) if measured else (None, None)
        result = Shrunk(
            folder=place / "model",
            method=method,
            arch=sub,
            sizes=sizes,
            parameters=sub.parameters(),
            original_parameters=self.arch.parameters(),
            limit_s=limits.latency_s,
            predicted_s=costs.request_s(self.arch, sizes),
            latency=times[0],
            original_latency=times[1],
            loss_before=before,
            loss_after=after,
            cpu_s=dict(self.cpu_s),
        )
        write_json(place / "result.json", summary(result))
        return result

    def costs(self) -> Costs:
        """Seconds of every size of every block, measured once."""

        def make() -> Any:
            found = measure_costs(
                self.arch, options_of(self.arch), self.workload, weights=self.form,
                told=lambda done, total: self.told("time blocks", done, total),
            )  # fmt: skip
            return {"base_s": found.base_s, "block_s": found.block_s}

        kept = self._kept("costs", make)
        block_s = {kind: {int(size): s for size, s in sizes.items()} for kind, sizes in kept["block_s"].items()}
        return Costs(base_s=kept["base_s"], block_s=block_s)

    def ordered(self) -> tuple[Named, Statistics]:
        """The original's weights in the order of importance, and the statistics in that order."""
        if self._ordered is None:
            begun = time.process_time()
            self.told("order by importance", 0, 1)
            texts = self.train.first(CALIBRATION_TEXTS)
            found = gather(self.arch, self.original, texts)
            order = importance_order(self.arch, self.original, found)
            self._ordered = reorder(self.original, order), reordered(found, order)
            self.cpu_s["order"] = time.process_time() - begun
            self.told("order by importance", 1, 1)
        return self._ordered

    def _ordered_weights(self) -> Named:
        return self.ordered()[0]

    def targets(self, part: str) -> Targets:
        """The original's states of the training or validation text."""
        texts = self.train if part == "train" else self.validation
        begun = time.process_time()
        found = make_targets(
            self.arch, self._ordered_weights(), texts, self.state / f"targets-{part}.npy",
            lambda done, total: self.told(f"original on {part} text", done, total),
        )  # fmt: skip
        spent = time.process_time() - begun
        self.cpu_s[f"targets {part}"] = self._kept(f"seconds-{part}", lambda: spent)
        return found

    def choose(self, method: Method, costs: Costs, limits: Limits, key: str) -> tuple[Named, Sizes]:
        """The exact choice or the first layers, tightened until it is measured within the limit; and its weights."""
        weights, found = self.ordered()
        judged = self.replacements() if method == "exact" else []

        def pick(within: Limits) -> Sizes:
            if method == "truncate":
                return choose_first_layers(self.arch, costs, within, value_bytes=self.value_bytes)
            return choose_exactly(self.arch, judged, costs, within, value_bytes=self.value_bytes)

        kept = self._kept(f"choice-{method}", lambda: plain(self._within(pick, costs, limits)), key=key)
        sizes = sizes_from(kept)
        return repaired(self.arch, weights, found, sizes), sizes

    def replacements(self) -> list[Replacement]:
        """Every block at every size, judged; what an earlier run judged is not judged again."""
        weights, found = self.ordered()
        path = self.state / "replacements.json"
        known = [Replacement(**item) for item in read_json(path)] if path.exists() else []
        targets = self.targets("train")
        begun = time.process_time()
        done = judge_replacements(
            self.arch, weights, found, options_of(self.arch), targets,
            original_head=head_of(self.arch, weights), batches=JUDGING_BATCHES, known=known,
            keep=lambda items: write_json(path, [asdict(item) for item in items]) if len(items) > len(known) else None,
            told=lambda count, total: self.told("judge blocks", count, total),
        )  # fmt: skip
        spent = time.process_time() - begun
        self.cpu_s["judge blocks"] = self._kept("seconds-judging", lambda: spent)
        return done

    def search(self, shared: Healing, trials: int, costs: Costs, limits: Limits, key: str) -> tuple[Named, Sizes]:
        """Weights that cuts near the limits share, the best cut found among them, and that cut's weights."""
        weights, _ = self.ordered()
        head, targets = head_of(self.arch, weights), self.targets("train")

        def sampler(within: Limits) -> Sampler:
            return Sampler(
                self.arch, options_of(self.arch), costs, within, value_bytes=self.value_bytes, seed=self.seed
            )

        drawn = sampler(limits)
        distiller = Distiller(
            self.arch, weights, targets, original_head=head, healing=shared, seed=self.seed + 1,
            path=self.state / "shared.safetensors", turn=lambda step: [drawn.draw(2 * step), drawn.draw(2 * step + 1)],
        )  # fmt: skip
        trained = distiller.run(lambda step, steps, _loss: self.told("train shared weights", step, steps))
        self.cpu_s["train shared weights"] = trained.cpu_s
        validation = self.targets("validation")

        def pick(within: Limits) -> Sizes:
            return search_shared(
                sampler(within),
                lambda sizes: judge(
                    self.arch, trained.weights, sizes, validation, original_head=head, batches=JUDGING_BATCHES
                ),
                trials=trials,
                told=lambda done, total: self.told("search", done, total),
            )[0]

        begun = time.process_time()
        kept = self._kept("choice-shared", lambda: plain(self._within(pick, costs, limits)), key=key)
        self.cpu_s["search"] = self._kept("seconds-search", lambda: time.process_time() - begun, key=key)
        return trained.weights, sizes_from(kept)

    def _within(self, pick: Callable[[Limits], Sizes], costs: Costs, limits: Limits) -> Sizes:
        """A choice that is measured within the limit of latency: sums of parts may be a little off, so the limit that
        is chosen by is lowered by what the measured cut is above it.
        """
        from chipwise.train.pretrained.costs import time_requests

        within = limits
        for _ in range(_TIGHTENINGS):
            sizes = pick(within)
            if limits.latency_s is None or within.latency_s is None:
                return sizes
            whole = costs.request_s(self.arch, whole_sizes(self.arch))
            cut, full = time_requests([cut_arch(self.arch, sizes), self.arch], self.workload, weights=self.form)
            over = (cut / full) / (limits.latency_s / whole)
            if over <= 1:
                return sizes
            within = replace(within, latency_s=within.latency_s / over * 0.995)
        raise Infeasible("no choice was measured within the limit of latency on this machine; loosen it")

    def _write(self, place: Path, arch: ArchSpec, weights: Named) -> None:
        arrays = {name: value.numpy() for name, value in weights.items()}
        arch = replace(arch, name=f"{self.arch.name}-cut")
        save_pretrained(arch, arrays, self.tokenizer, place / "model")
        export(Design(arch=arch, weights=self.form), arrays, place / "model.onnx")

    def _measure(self, place: Path) -> tuple[Measurement, Measurement]:
        """The cut and the original, in turns."""
        self.told("measure", 0, 1)
        original = self.state / "original.onnx"
        if not original.exists():
            arrays = {name: value.numpy() for name, value in self.original.items()}
            export(Design(arch=self.arch, weights=self.form), arrays, original)
        found = measure_alternately([place / "model.onnx", original], self.workload, rounds=3, attempts=1)
        for item in found:
            if not isinstance(item, Measurement):
                raise item
        self.told("measure", 1, 1)
        return found[0], found[1]  # type: ignore[return-value]

    def _kept(self, name: str, make: Callable[[], Any], *, key: str = "") -> Any:
        """What ``make`` gave, from its file if it was made before (for the same key)."""
        path = self.state / f"{name}.json"
        if path.exists():
            held = read_json(path)
            if held["key"] == key:
                return held["value"]
        value = make()
        write_json(path, {"key": key, "value": value})
        return read_json(path)["value"]


def limit_of(asked: str | float | None, whole: float, kind: str, name: str) -> float | None:
    """A limit in SI units: a share of ``whole`` (``60 %``), a quantity, or None.

    Raises:
        InputError: It cannot be read, or is not positive.
    """
    if asked is None:
        return None
    text = str(asked).strip()
    try:
        if text.endswith("%"):
            value = float(text[:-1]) / 100 * whole
        else:
            value = units.parse(text, kind) if isinstance(asked, str) else float(asked)
    except (UnitError, ValueError):
        raise InputError(f"--{name} is a share of the original such as '60 %', or a quantity, not {text!r}") from None
    if not value > 0:
        raise InputError(f"--{name} must be positive, not {text!r}")
    return value


def sizes_from(kept: Mapping[str, Any]) -> Sizes:
    """Sizes as they were written."""
    return Sizes(heads=tuple(kept["heads"]), neurons=tuple(kept["neurons"]), width=kept["width"])


def summary(found: Shrunk) -> dict[str, Any]:
    """The result as JSON can hold it, samples left out."""
    times = {}
    for name, item in (("latency", found.latency), ("original_latency", found.original_latency)):
        if item is not None:
            times[name] = {
                "request_p50_s": request_of(item),
                "ttft_p50_s": item.percentile("ttft", 0.5),
                "ttft_p99_s": item.percentile("ttft", 0.99),
                "clean": item.clean,
                "reasons": list(item.reasons),
            }
    return {
        "method": found.method,
        "folder": str(found.folder),
        "sizes": plain(found.sizes),
        "parameters": found.parameters,
        "original_parameters": found.original_parameters,
        "limit_s": found.limit_s,
        "predicted_s": found.predicted_s,
        "ratio": found.ratio,
        **times,
        "loss_before": found.loss_before,
        "loss_after": found.loss_after,
        "cpu_s": dict(found.cpu_s),
    }


def claim(target: Path, about: dict[str, Any], *, resume: bool) -> None:
    """Makes the folder this run's own, or finds that it is.

    Raises:
        StudyError: It holds another run, or this one and ``resume`` is not given.
    """
    path = target / "about.json"
    if path.exists():
        held = read_json(path)
        if held != json.loads(json.dumps(about)):
            differs = ", ".join(name for name in about if held.get(name) != json.loads(json.dumps(about[name])))
            raise StudyError(f"{target}: this folder holds a run that differs in {differs}; choose another --out")
        if not resume:
            raise StudyError(f"{target}: this folder already holds this run; go on with --resume, or choose --out")
        return
    with storage(target):
        (target / "state").mkdir(parents=True, exist_ok=True)
    write_json(path, about)


def _first_tokens(texts: Texts, most: int) -> Texts:
    """The first texts, of at most ``most`` tokens."""
    return texts.first(int((texts.starts[1:] <= most).sum()))
