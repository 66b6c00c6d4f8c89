"""Runs that choose, measure and write a GGUF mix of formats; see :mod:`chipwise.design.quantize.gguf_file`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest, plain
from chipwise.core.files import publish
from chipwise.core.results import Result
from chipwise.deploy.export.gguf_mix import STOCK, Mix, matrices, mix_bytes, stock_mix, write_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes import llama_server
from chipwise.deploy.runtimes.ggml import TYPES, Bytes, ggml
from chipwise.deploy.runtimes.llama_timing import PROMPT, ROUNDS, STEPS, FileTimes, file_rounds, least_times, prompt_of
from chipwise.design.quantize.answers import Kept
from chipwise.design.quantize.chip_prices import predict_prices
from chipwise.design.quantize.decoder import StreamedDecoder, divergence
from chipwise.design.quantize.kv_cache import USUAL_CACHE, CacheFormat, cache_bytes, offered_caches
from chipwise.design.quantize.losses import Passes, Sensitivity
from chipwise.design.quantize.mixes import Prices, choose_mix, price_rounds
from chipwise.design.quantize.windows import OPENING, OTHER, Windows, windows_of
from chipwise.errors import Infeasible, SpecError, Unsupported
from chipwise.training.loop.checkpoint import read_state, write_state

OnProgress = Callable[[str, int, int], None]
Held = tuple[Mix, str]  # a mix, and the format of the KV cache
FORMATS = tuple(name for name in TYPES if name not in ("F32", "IQ2_S", "IQ3_XXS"))
USUAL = "Q4_K_M"  # the stock mix whose size and time are the limits if no limits are given
PRICE_ROUNDS, PROMPT_ROUNDS = 25, 6
PREFILL_SLACK = 1.05  # how long the chosen mix's prefill may take, relative to the stock mix's
TIME_ERROR = 0.11  # nine of ten predicted step times are off by at most this share; benchmarks/gguf_mixes.py
FRONT, WORDS = 7, 24  # points of a front; tokens of a sample's continuation
_ATTEMPTS = 3  # most choices until the measured time meets the limit
_UNTIMED = "token_embd.weight"
_STREAM = "chipwise.stream/1"
FAR = 2.0  # from this ratio of the divergences on two texts, a note says so
LOSSES = "losses"  # folder of the losses by layer, in the run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMix:
    """A mix of formats with its predicted and measured loss and times; values that were not measured are None."""

    name: str
    size_bytes: int  # bytes of all tensors, without the cache
    predicted_loss: float  # divergence in nats per token
    predicted_s: float | None  # seconds of a decode step
    loss: float | None = None  # divergence measured on held-out text
    loss_error: float | None = None  # standard error of that divergence
    step_s: float | None = None  # measured: the least over rounds in which all mixes take turns
    predicted_prefill_s: float | None = None  # for a prompt of 256 tokens, or as many as the model reads
    prefill_s: float | None = None
    domains: Mapping[str, float] = field(default_factory=dict)  # measured divergence by text file
    keeps: bool = True  # whether the limits are met, by measurement if there is one
    cache: str = USUAL_CACHE  # format of the KV cache
    cache_bytes: int = 0  # bytes of the KV cache for the stated context; 0 if none is stated


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantisedGguf(Result):
    """Result for a GGUF file: the chosen mix of formats, or a stock mix (one of llama.cpp's) if that is as good."""

    source: str
    file: str | None  # None after a dry run
    verdict: str
    plan: str  # formats of weights, activations and KV cache with their cost, in one line
    limits: Mapping[str, float]  # bytes of size; seconds of a decode step and of a prefill of 256 tokens
    chosen: GgufMix
    stock: tuple[GgufMix, ...]
    formats: Mix  # format of each matrix in the written file
    repeatability: float | None  # of measured times: how much one file differs from itself, as a share
    original_loss: float | None  # loss of the original on the held-out text, in nats per token
    calibration_tokens: int
    held_tokens: int
    prices: str  # where the times of formats come from
    notes: tuple[str, ...] = ()
    fronts: Mapping[str, tuple[GgufMix, ...]] = field(default_factory=dict)  # predicted, by ``size`` and ``time``
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by file, how it continues the same words
    origin: Mapping[str, str] = field(default_factory=dict)  # name, licence and source of the weights
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by stage, since the run was last started

    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.source}: {self.verdict}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row for each mix."""
        return [plain(each) for each in (self.chosen, *self.stock)]


class GgufRun:
    """Runs the steps of one run; results that take time to compute are stored."""

    def __init__(
        self,
        file: GgufFile,
        texts: Sequence[Path],
        kept: Kept,
        *,
        device: str | None,
        seed: int,
        on_progress: OnProgress,
        context: int | None = None,
    ) -> None:
        self.context, self.depth = context, max(PROMPT, (context or 0) - STEPS)
        self.file, self.kept, self.device, self.progress = file, kept, device, on_progress
        self.decoder, self.shapes = StreamedDecoder(file), matrices(file)
        self.positions = self.decoder.arch.max_tokens
        self.text: Windows = windows_of(file, texts, max_tokens=self.positions)
        self.found: Sensitivity = Passes(
            self.decoder, self.text.calibration, FORMATS, kept.folder / LOSSES, seed=seed, on_progress=on_progress
        ).run()
        self.losses = self.found.losses
        if lacking := sorted(set(self.shapes) - set(self.losses)):
            raise SpecError(
                f"contains no losses of {lacking[0]}; remove the folder and start again", file=str(kept.folder / LOSSES)
            )
        shapes, self.spread = sorted(set(self.shapes.values())), (1 - TIME_ERROR, 1 + TIME_ERROR)
        self.rest_s = self.prompt_rest_s = 0.0
        self.prompt_prices: Prices = {}  # empty if another chip is predicted
        if device is None:
            inner = sorted({shape for name, shape in self.shapes.items() if name.startswith("blk.")})
            self.prices: Prices = self._timed("prices", shapes, rounds=PRICE_ROUNDS)
            self.prompt_prices = self._timed(
                "prompt prices", inner, rounds=PROMPT_ROUNDS, tokens=prompt_of(self.positions)
            )
            usual = stock_mix(USUAL, file)
            caches = (USUAL_CACHE,) if context is None else offered_caches(self.decoder.arch)
            times = dict(zip(caches, self.race([(usual, cache) for cache in caches])[0], strict=True))
            self.rest_s = max(0.0, times[USUAL_CACHE].step_s - self._products_s(usual))
            self.prompt_rest_s = max(0.0, times[USUAL_CACHE].prefill_s - self._prompt_products_s(usual))
            extra_s: Mapping[str, float] = {  # no cache format can save more time than the matrix products leave
                cache: max(each.step_s - times[USUAL_CACHE].step_s, -self.rest_s) for cache, each in times.items()
            }
        else:
            chip = predict_prices(self.decoder.arch, self.shapes, device, FORMATS, context=self.depth + STEPS)
            self.prices, self.rest_s, self.spread = chip.prices, chip.rest_s, (chip.low, chip.high)
            self.losses = {
                name: {kind: loss for kind, loss in own.items() if (kind, self.shapes[name]) in chip.prices}
                for name, own in self.losses.items()
            }
            if bare := [name for name, own in self.losses.items() if not own]:
                raise Unsupported(f"times on {device} cannot be predicted for any GGUF format that can store {bare[0]}")
            extra_s = chip.extra_s
        self.caches = self._cache_formats(extra_s) if context is not None else (CacheFormat(name=USUAL_CACHE),)
        self._original: Tensor | None = None

    def _cache_formats(self, extra_s: Mapping[str, float]) -> tuple[CacheFormat, ...]:
        """The KV-cache formats with their costs at this context, including the divergence on calibration text."""
        tokens = torch.from_numpy(self.text.calibration)
        names = [name for name in offered_caches(self.decoder.arch) if name in extra_s]

        def scored() -> list[float]:
            stage = "scoring cache formats: {}"
            whole = self._inputs(self.decoder, tokens, stage.format(USUAL_CACHE))
            head, made = self.decoder.head(), [0.0]
            for name in names[1:]:
                other = self._inputs(self.decoder, tokens, stage.format(name), cache=name)
                made.append(float(divergence((whole, head), (other, head), tokens)[0].mean()))
            return made

        losses = self.kept.numbers("cache losses", scored)
        return tuple(
            CacheFormat(
                name=name,
                size_bytes=cache_bytes(self.decoder.arch, name, self.context or 0),
                loss=loss,
                extra_s=extra_s[name],
            )
            for name, loss in zip(names, losses, strict=True)
        )

    def _timed(self, key: str, shapes: Sequence[tuple[int, int]], *, rounds: int, tokens: int = 1) -> Prices:
        """Times each format and shape in llama.cpp's kernels; returns the least seconds over all rounds."""
        keys = [(kind, shape) for shape in shapes for kind in FORMATS if TYPES[kind].fits(shape[1])]
        stage = "timing formats" if tokens == 1 else "timing formats of prompts"

        def rest(begun: int) -> Iterator[list[float]]:
            for number, each in enumerate(price_rounds(keys, rounds=rounds - begun, tokens=tokens), start=begun + 1):
                self.progress(stage, number, rounds)
                yield each

        return dict(zip(keys, map(min, *self.kept.series(key, rounds, rest)), strict=True))

    def answer(self, target: Path, limits: Mapping[str, float], kind: str | None, *, dry_run: bool) -> QuantisedGguf:
        """Chooses a mix, measures it against the best stock mix, and writes the better one to ``target``.

        Args:
            target: The file to write.
            limits: Upper limits: ``size`` in bytes and ``time`` in seconds. If they are empty and ``kind`` is None, the
                limits are the size (with the KV cache) and the time of the usual stock mix.
            kind: A format that all matrices get; None: a mix is chosen.
            dry_run: Whether to stop after the choice, without writing or measuring files.
        """
        mixes = {name: stock_mix(name, self.file) for name in STOCK}
        usual = None if limits or kind is not None else mixes[USUAL]
        if usual is not None:
            promise = self.promise(USUAL, usual, {})
            limits = {
                "size": promise.size_bytes + promise.cache_bytes,
                "time": promise.predicted_s or math.inf,
            }
        stock = {name: self._best_cache(name, mix, limits) for name, mix in mixes.items() if self._known(mix)}
        rival = min((each for each in stock.values() if each.keeps), key=lambda each: each.predicted_loss, default=None)
        if kind is None and rival is not None and rival.predicted_prefill_s is not None:
            limits = {**limits, "prefill": PREFILL_SLACK * rival.predicted_prefill_s}
        if kind is None:
            chosen, cache = self.choose(limits)
            promise = self.promise("chosen", chosen, limits, cache)
        else:
            chosen = self._uniform(kind)
            promise = self.promise(f"all {kind}", chosen, limits)
        if kind is not None:
            rival = min(stock.values(), key=lambda each: abs(each.size_bytes - promise.size_bytes), default=None)
        found = QuantisedGguf(
            source=str(self.file.path),
            file=None,
            verdict="dry run; nothing was written",
            plan=self._plan(chosen, promise),
            limits=limits,
            chosen=promise,
            stock=tuple(stock.values()),
            formats=chosen,
            repeatability=None,
            original_loss=None,
            calibration_tokens=self.text.calibration.size,
            held_tokens=0,
            prices=self._source(),
        )
        if dry_run:
            return found
        against = [] if rival is None else [(mixes[rival.name], rival.cache)]
        repeatability = None
        if self.device is None:
            promise, chosen, times, repeatability = self._kept_time(promise, chosen, limits, against, usual)
            if rival is not None:
                rival = replace(rival, step_s=times[1].step_s, prefill_s=times[1].prefill_s)
        promise, kl = self.measure(promise, chosen)
        others = None
        if rival is not None:
            rival, others = self.measure(rival, mixes[rival.name])
        verdict, stock_wins = _verdict(promise, kl, rival, others, asked=kind is not None)
        if stock_wins and rival is not None:
            chosen = mixes[rival.name]
        own = np.array(self.text.domains) != OTHER
        publish(self._made(chosen), target)
        return replace(
            found,
            file=str(target),
            verdict=verdict,
            plan=self._plan(chosen, rival if stock_wins and rival is not None else promise),
            chosen=promise,
            stock=tuple(rival if rival is not None and each.name == rival.name else each for each in found.stock),
            formats=chosen,
            repeatability=repeatability,
            original_loss=float(np.mean(np.array(self.kept.numbers("original loss", list))[own])),
            held_tokens=self.text.held[own].size,
            notes=_far(promise.domains),
            fronts={"size": self._front("size", stock.values()), "time": self._front("time", stock.values())},
            samples=self._samples({"source": self.file.path, "written": target}),
        )

    def _front(self, what: str, stock: Iterable[GgufMix]) -> tuple[GgufMix, ...]:
        """The mixes with the least predicted loss at several sizes (or times) in the range of the stock mixes."""
        places = [float(each.size_bytes) if what == "size" else each.predicted_s for each in stock]
        known, found = [place for place in places if place], []
        for number, limit in enumerate(np.geomspace(min(known), max(known), FRONT) if known else ()):
            self.progress(f"front of {what}", number, FRONT)
            with suppress(Infeasible):
                mix, cache = self.choose({what: float(limit)})
                found.append(self.promise(f"at {what} {number + 1}", mix, {}, cache))
        return tuple(found)

    def _samples(self, files: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
        """How each file continues the first words of held-out texts; empty if llama.cpp is not installed."""
        if not llama_server.available():
            return {}
        vocab_size, most = self.decoder.arch.vocab_size, OPENING + WORDS
        ask = partial(llama_server.ask, vocab_size=vocab_size, most_tokens=most, positions=0, new=WORDS, begin=OPENING)
        made = {"text": self.text.openings}
        for name, file in files.items():
            self.progress(f"text of {name}", 0, 1)
            made[name] = tuple(ask(file, text=each)["text"] for each in self.text.openings)
        return made

    def _kept_time(
        self, promise: GgufMix, mix: Mix, limits: Mapping[str, float], against: Sequence[Held], usual: Mix | None
    ) -> tuple[GgufMix, Mix, list[FileTimes], float]:
        """Times the chosen mix in alternation with stock mixes; if it breaks a limit, chooses with stricter limits.

        If the mix ``usual`` is given, it is timed too, and its time is the limit on a decode step. The limit on prefill
        is relative to the first mix in ``against``.

        Returns:
            Predictions and measured times of the final mix; its formats; the times of all timed mixes; and the relative
            difference between two timings of one file.
        """
        slack = {"time": 1.0, "prefill": 1.0}
        for attempt in range(_ATTEMPTS):
            stock = [] if usual is None else [(usual, USUAL_CACHE)]
            times, repeatability = self.race([(mix, promise.cache), *against, *stock])
            over = {
                "time": times[0].step_s / (limits.get("time", math.inf) if usual is None else times[-1].step_s),
                "prefill": times[0].prefill_s / (PREFILL_SLACK * times[1].prefill_s) if "prefill" in limits else 0.0,
            }
            noise = {"time": repeatability, "prefill": max(repeatability, *(each.prefill_spread for each in times[:2]))}
            keeps = all(share <= 1 + 2 * noise[name] for name, share in over.items())
            promise = replace(promise, step_s=times[0].step_s, prefill_s=times[0].prefill_s, keeps=keeps)
            if keeps or promise.name != "chosen" or attempt == _ATTEMPTS - 1:
                break
            slack = {name: share / max(1.0, over[name]) for name, share in slack.items()}
            try:
                other, cache = self.choose(limits, slack)
            except Infeasible:  # no mix is fast enough, so the stock file is the answer
                break
            self.forget(mix)
            mix = other
            promise = self.promise(promise.name, mix, limits, cache)
        return promise, mix, times, repeatability

    def _known(self, mix: Mix) -> bool:
        return all(
            kind in self.losses[name] and (name == _UNTIMED or (kind, self.shapes[name]) in self.prices)
            for name, kind in mix.items()
        )

    def _uniform(self, kind: str) -> dict[str, str]:
        made = dict.fromkeys(self.shapes, kind)
        if not self._known(made):
            raise Unsupported(f"chipwise cannot predict the time of {kind.lower()} on {self.device}")
        return made

    def _products_s(self, mix: Mix) -> float:
        untied = "output.weight" in self.shapes
        return sum(
            self.prices[kind, self.shapes[name]] for name, kind in mix.items() if not (untied and name == _UNTIMED)
        )

    def _prompt_products_s(self, mix: Mix) -> float:
        return sum(self.prompt_prices.get((kind, self.shapes[name]), 0.0) for name, kind in mix.items())

    def _predicted_s(self, mix: Mix) -> float | None:
        return self._products_s(mix) + self.rest_s if self._known(mix) else None

    def promise(self, name: str, mix: Mix, limits: Mapping[str, float], cache: CacheFormat | None = None) -> GgufMix:
        """Predicts a mix's size, divergence and times with a KV-cache format, and whether they meet the limits."""
        held = cache or self.caches[0]
        size, step_s = mix_bytes(self.file, mix), self._predicted_s(mix)
        step_s = None if step_s is None else step_s + held.extra_s
        prefill_s = self._prompt_products_s(mix) + self.prompt_rest_s if self.prompt_prices else None
        fits = size + held.size_bytes <= limits.get("size", math.inf)
        return GgufMix(
            name=name,
            size_bytes=size,
            predicted_loss=sum(self.losses[each][kind] for each, kind in mix.items()) + held.loss,
            predicted_s=step_s,
            predicted_prefill_s=prefill_s,
            keeps=fits and (step_s or math.inf) <= limits.get("time", math.inf) * 1.0001,
            cache=held.name,
            cache_bytes=held.size_bytes,
        )

    def _best_cache(self, name: str, mix: Mix, limits: Mapping[str, float]) -> GgufMix:
        """Predictions for a stock mix, with the KV-cache format that diverges least of those that meet the limits."""
        made = [self.promise(name, mix, limits, cache) for cache in self.caches]
        return min(made, key=lambda each: (not each.keeps, each.predicted_loss))

    def choose(self, limits: Mapping[str, float], slack: Mapping[str, float] | None = None) -> tuple[Mix, CacheFormat]:
        """The mix and KV-cache format with the least loss within the limits; ``slack`` multiplies limits on times."""
        found: list[tuple[float, Mix, CacheFormat]] = []
        refused: Infeasible | None = None
        for cache in self.caches:
            try:
                mix = self._choose_with(cache, limits, slack or {})
            except Infeasible as error:
                refused = error
                continue
            found.append((self.promise("", mix, {}, cache).predicted_loss, mix, cache))
        if not found:
            raise refused or Infeasible("no mix meets the limits")
        _, mix, cache = min(found, key=lambda each: each[0])
        return mix, cache

    def _choose_with(self, cache: CacheFormat, limits: Mapping[str, float], slack: Mapping[str, float]) -> Mix:
        """The mix with the least loss for one KV-cache format."""
        kinds = {name: list(own) for name, own in self.losses.items()}
        fixed = {
            "size": mix_bytes(self.file, {}) + cache.size_bytes,
            "time": self.rest_s + cache.extra_s,
            "prefill": self.prompt_rest_s,
        }
        least = {
            "size": fixed["size"]
            + sum(min(TYPES[kind].matrix_bytes(*self.shapes[name]) for kind in own) for name, own in kinds.items()),
            "time": fixed["time"]
            + sum(min(self._products_s({name: kind}) for kind in own) for name, own in kinds.items()),
        }
        for name, limit in limits.items():
            if name in least and least[name] > limit:
                option, unit = ("tpot", "time") if name == "time" else ("memory", "bytes")
                need = units.show(least[name], unit)
                raise Infeasible(f"{option}: llama.cpp's formats need at least {need}; loosen the limit")
        return choose_mix(
            self.shapes,
            self.losses,
            self.prices,
            limits={name: limit * slack.get(name, 1.0) - fixed[name] for name, limit in limits.items()},
            prompt_prices=self.prompt_prices,
        )

    def measure(self, promise: GgufMix, mix: Mix) -> tuple[GgufMix, Float64Array]:
        """Adds the measured divergence on held-out text to ``promise``; also returns the divergence of each window."""
        label = " ".join(["divergence", self._label(mix), *([] if promise.cache == USUAL_CACHE else [promise.cache])])
        kl = np.array(self.kept.numbers(label, partial(self._divergence, mix, promise.cache)))
        of = np.array(self.text.domains)
        domains = {name: float(kl[of == name].mean()) for name in dict.fromkeys(self.text.domains)}
        kl = kl[of != OTHER]
        return replace(
            promise, loss=float(kl.mean()), loss_error=float(kl.std(ddof=1) / len(kl) ** 0.5), domains=domains
        ), kl

    def _label(self, mix: Mix) -> str:
        return next((name for name in STOCK if stock_mix(name, self.file) == mix), digest(dict(mix)))

    def race(self, mixes: Sequence[Held]) -> tuple[list[FileTimes], float]:
        """Times mixes in alternation; returns each mix's least seconds, and how much two timings of one file differ."""
        raced = [*mixes, mixes[-1]]
        labels = [f"{self._label(mix)} {cache}" for mix, cache in mixes]

        def rest(begun: int) -> Iterator[list[float]]:
            files = [self._made(mix) for mix, _ in raced]
            caches, sizes = [cache for _, cache in raced], {"depth": self.depth, "positions": self.positions}
            made = file_rounds(files, caches, **sizes, rounds=range(begun, ROUNDS))
            for number, each in enumerate(made, start=begun + 1):
                self.progress(f"timing {' and '.join(labels)}", number, ROUNDS)
                yield each

        rounds = self.kept.series(" ".join([f"times at {self.depth}", *labels]), ROUNDS, rest)
        *found, again = least_times(rounds)
        return found, abs(again.step_s / found[-1].step_s - 1)

    def forget(self, mix: Mix) -> None:
        """Removes a mix's file; its results stay stored."""
        (self.kept.folder / f"{self._label(mix)}.gguf").unlink(missing_ok=True)

    def _divergence(self, mix: Mix, cache: str) -> list[float]:
        held = torch.from_numpy(self.text.held)
        if self._original is None:
            self._original = self._inputs(self.decoder, held, "original on held-out text")
        file = self._made(mix)
        made = StreamedDecoder(GgufFile.open(file))
        inputs = self._inputs(made, held, f"{file.stem} on held-out text", mix, cache)
        kl, loss = divergence((self._original, self.decoder.head()), (inputs, made.head()), held)
        self.kept.numbers("original loss", loss.tolist)
        return [float(each) for each in kl]

    def _inputs(
        self, decoder: StreamedDecoder, tokens: Tensor, stage: str, mix: Mix | None = None, cache: str = USUAL_CACHE
    ) -> Tensor:
        """The head's input. Stores the residual stream after each layer, so that a stopped run can continue."""
        key = digest([stage, cache])
        path = self.kept.folder / f"stream-{key}.safetensors"

        def keep(done: int, x_BTD: Tensor) -> None:
            write_state(path, _STREAM, key, {"x": x_BTD}, {"layers": done})
            self.progress(stage, done, len(decoder.blocks))

        held = read_state(path, _STREAM, key)
        begin = None if held is None else (held[1].get("layers", int), held[0]["x"])
        return decoder.head_inputs(tokens, mix, cache, keep, begin)

    def _made(self, mix: Mix) -> Path:
        """Writes a mix's file, if it does not exist yet; returns its path."""
        label = self._label(mix)
        path = self.kept.folder / f"{label}.gguf"
        if path.exists():
            return path

        def pack(name: str, kind: str) -> Bytes:
            weight = self.found.importance.get(name, np.ones(self.shapes[name][1], np.float32))
            return ggml().pack(self.decoder.matrix(name), TYPES[kind], weight)

        return write_mix(self.file, mix, path, pack, name=label, on_tensor=partial(self.progress, f"writing {label}"))

    def _source(self) -> str:
        if self.device is not None:
            return f"predicted from the data sheet of {self.device}"
        lib = ggml()
        return (
            f"measured on this machine in the kernels of {lib.package} {metadata.version(lib.package)}, "
            f"{lib.vectors()}, 1 thread"
        )

    def _plan(self, mix: Mix, promise: GgufMix) -> str:
        """Describes in one line the formats of weights, activations and KV cache, and the predicted time."""
        sizes = Counter[str]()
        for name, kind in mix.items():
            sizes[kind] += self.shapes[name][0] * self.shapes[name][1]
        total = sum(sizes.values())
        shares = ", ".join(
            f"{kind} {units.show(size / total, 'share', digits=2)}" for kind, size in sizes.most_common()
        )
        bits = sum(TYPES[kind].bits * size for kind, size in sizes.items()) / total
        hows = sorted({TYPES[kind].activations for kind in mix.values()} - {"none"})
        kv_bytes = cache_bytes(self.decoder.arch, promise.cache, 1)
        run = "" if promise.cache == USUAL_CACHE else f" (run llama.cpp with -ctk {promise.cache} -ctv {promise.cache})"
        step_s = promise.predicted_s
        low, high = ((step_s or 0.0) * share for share in self.spread)
        cost = units.span(step_s or 0.0, low, high, "time")
        return (
            f"weights {shares} ({bits:.2f} bits) · activations {' and '.join(hows)} (llama.cpp's kernels) · KV "
            f"{promise.cache}, {units.show(kv_bytes, 'bytes')} a token{run} · {cost} a token, predicted; "
            f"times of matrices {self._source()}"
        )


def _far(domains: Mapping[str, float]) -> tuple[str, ...]:
    """A note if the divergence on one text file is much larger than on another; else empty."""
    best, worst = (pick(domains, key=lambda name: domains[name]) for pick in (min, max))
    if domains[worst] <= FAR * domains[best]:
        return ()
    return (
        f"the divergence on {worst} is {domains[worst] / domains[best]:.1f} times that on {best}; if the model will "
        "read such text, add more of it to --data",
    )


def _verdict(
    chosen: GgufMix, kl: Float64Array, rival: GgufMix | None, others: Float64Array | None, *, asked: bool
) -> tuple[str, bool]:
    """The verdict in words, and whether to write the stock mix instead of the chosen mix."""
    if rival is None or others is None or rival.loss is None or chosen.loss is None:
        return "the chosen mix; no stock mix meets the limits", False
    gain = others - kl
    error = float(gain.std(ddof=1) / len(gain) ** 0.5)
    less = units.show(abs(1 - chosen.loss / rival.loss), "share", digits=2)
    if asked:
        word = "less" if chosen.loss < rival.loss else "more"
        return f"one format, as asked: {less} {word} divergence than {rival.name}, the stock mix nearest in size", False
    slower = chosen.step_s is not None and not chosen.keeps
    if slower or float(gain.mean()) <= 2 * error:
        why = "its measured time exceeds a limit" if slower else "its divergence is not significantly less"
        return f"use the stock file: {rival.name} (the chosen mix loses: {why})", True
    return f"the chosen mix: {less} less divergence than {rival.name}, the best stock mix within the limits", False
