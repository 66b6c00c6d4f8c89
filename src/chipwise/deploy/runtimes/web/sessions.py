"""Models in a page, for the runtimes ``browser`` and ``wllama`` and for pages that other machines open.

The page in this folder runs the model and times every pass itself, by the browser's clock, so times include neither the
connection nor this process. Caches are passed from each step to the next as tensors, as web applications do:
ONNX Runtime Web copies them in and out. llama.cpp keeps them in its own memory.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.fields import build, whole_number
from chipwise.deploy.runtimes import Facts, SinglePass, Timed, check_positions, prompt_shape
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.engines import Engine
from chipwise.deploy.runtimes.web.messages import Ran, pack
from chipwise.deploy.runtimes.web.server import Page, Server
from chipwise.errors import MeasurementError, SpecError

LOAD_S, ANSWER_S = 120.0, 120.0
S_PER_BYTE = 1e-6  # extra time for loading a large model over a slow network
MOST_BYTES = 2**40
COMMANDS_TRIED = 9
COMMAND_S = 0.04  # passes are timed in groups of about this duration, so that the page does not idle in between
MOST_PASSES = 256
FINE_CLOCK_S = 1e-5  # with a coarser clock, several decode steps are timed at once
CLOCK_STEPS = 100  # then a sample lasts about this many steps of the clock


NOTHING = np.zeros((1, 1), np.float32)


class Passes(NamedTuple):
    """Passes that the page ran: the last output, the seconds of each pass, and the processor seconds of all passes."""

    output: AnyArray
    seconds: list[float]
    cpu_s: float | None


class Place:
    """Where models run: a page, the server that gives it files, and its browser if this process started it."""

    def __init__(self, engine: Engine, server: Server, page: Page, browser: Chromium | None = None) -> None:
        self.engine, self.server, self.page, self.browser = engine, server, page, browser
        self._command_s = self._cost_of_a_command()
        self._empty_bytes = browser.page_bytes() if browser is not None else None
        self.unused: list[int] = []  # models whose sessions are gone; the page forgets them before it loads another

    def _cost_of_a_command(self) -> float:
        """Processor seconds of the page's main thread for a command that does nothing: the median of several."""
        costs = []
        for _ in range(COMMANDS_TRIED):
            before = self.thread_s()
            self.ask("nothing")
            after = self.thread_s()
            costs += [] if before is None or after is None else [after - before]
        return float(np.median(costs)) if costs else 0.0

    def ask(self, do: str, *, timeout_s: float = ANSWER_S, **fields: object) -> Mapping[str, object]:
        """See :meth:`Page.ask`."""
        alive = self.browser.alive if self.browser is not None else lambda: True
        return self.page.ask(do, timeout_s=timeout_s, alive=alive, **fields)

    def run(self, do: str, **fields: object) -> Passes:
        """Runs passes, and reads the processor time of the page's main thread before and after.

        Raises:
            MeasurementError: The page failed, or its answer is malformed.
        """
        before = self.thread_s()
        try:
            ran = build(Ran, self.ask(do, timeout_s=ANSWER_S, **fields))
            output = NOTHING if ran.output is None else ran.output.array()
        except SpecError as error:
            raise MeasurementError(f"the page's answer is malformed: {error}") from None
        after = self.thread_s()
        cpu_s = None if before is None or after is None else max(after - before - self._command_s, 0.0)
        return Passes(output, list(ran.seconds), cpu_s)

    def thread_s(self) -> float | None:
        """Processor seconds of the page's main thread so far; None if unknown, or if models run in another thread."""
        return None if self.browser is None or self.engine.worker else self.browser.page_cpu_s()

    def memory_bytes(self) -> int | None:
        """Memory of the page, as the browser counts it; None if unknown.

        The browser does not count a worker's WebAssembly. With a worker, this is the memory of the page's process, less
        what that process took without a model.
        """
        if not self.engine.worker:
            found = self.ask("memory").get("bytes")
            return None if found is None else whole_number("bytes", found, most=MOST_BYTES)
        now = self.browser.page_bytes() if self.browser is not None else None
        return None if now is None or self._empty_bytes is None else max(now - self._empty_bytes, 0)

    def load(
        self,
        path: Path,
        *,
        capacity: int,
        batch: int,
        threads: int,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> BrowserSession:
        """Loads an exported file in the page.

        Raises:
            MeasurementError: The file cannot be run, or the page has fewer threads.
            Unsupported: The engine runs one sequence, and more are asked for.
        """
        facts = self.engine.facts(path)
        fields = self.engine.load(facts, capacity, batch, options)
        if "steps" in facts:
            raise MeasurementError(f"{path}: denoisers cannot be run in a browser; use --runtime onnxruntime")
        if threads > (most := self.page.got.threads):
            raise MeasurementError(
                f"threads: this page has at most {most}, not {threads}"
                + ("" if self.page.got.isolated else "; a browser gives threads only over https or on localhost")
            )
        while self.unused:
            self.ask("forget", model=self.unused.pop())
        number = self.server.add_model(path)
        try:
            told = self.ask(
                "open", timeout_s=LOAD_S + S_PER_BYTE * path.stat().st_size, model=number, threads=threads, **fields
            )
        except MeasurementError as error:
            raise MeasurementError(f"{path}: {error}") from None
        if "image" in facts or "request" in facts or "encodes" in facts:
            return BrowserPass(self, number, facts, batch=batch, first_input=str(told.get("input")))
        check_positions(path, facts["max_tokens"], capacity)
        return BrowserText(self, number, facts, capacity=capacity, batch=batch)


class BrowserSession(ABC):
    """A model in a page. See :class:`Session` and :class:`Elsewhere` in ``deploy/runtimes/__init__.py``."""

    def __init__(self, place: Place, number: int, facts: Facts) -> None:
        self.facts, self.steps_per_sample = facts, 1
        self.vocab_size = facts.get("vocab_size", 0)
        self._place, self._number = place, number
        got = place.page.got
        self._clock_s = got.clock_s
        self._told = {"browser": got.agent, "clock_step_s": got.clock_s, "webgpu": got.webgpu}
        weakref.finalize(self, place.unused.append, number).atexit = False

    @abstractmethod
    def prefill(self, tokens: AnyArray) -> AnyArray:
        """See :class:`Session`."""

    @abstractmethod
    def decode(self, tokens: AnyArray) -> AnyArray:
        """See :class:`Session`."""

    @abstractmethod
    def timed(self, tokens: AnyArray, steps: int) -> Timed:
        """Times one request of a model that generates, or several passes of another model, in the page."""

    def _check_clock(self, seconds: list[float]) -> None:
        if min(seconds) <= 0:
            raise MeasurementError(
                f"the browser's clock has steps of {self._clock_s * 1e3:g} ms, too coarse for this model; open the "
                "page over https or on localhost (for a phone on a cable: adb reverse)"
            )

    def settings(self) -> dict[str, object]:
        """Facts about the browser, to record with a measurement."""
        return dict(self._told)

    def cpu_s(self) -> float | None:
        """Processor seconds of all the browser's processes; None for a browser on another machine."""
        return self._place.browser.cpu_s() if self._place.browser is not None else None

    def peak_memory_bytes(self) -> int | None:
        """See :meth:`Place.memory_bytes`."""
        return self._place.memory_bytes()


class BrowserText(BrowserSession):
    """A text model that generates."""

    def __init__(self, place: Place, number: int, facts: Facts, *, capacity: int, batch: int) -> None:
        super().__init__(place, number, facts)
        self._capacity, self._batch, self._length = capacity, batch, 0
        self._tried = False  # whether ``steps_per_sample`` is known

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and processes ``tokens`` (batch, prompt)."""
        return self._generate(tokens, fresh=True).output[:, 0]

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Processes one more token of each sequence, ``tokens`` (batch, 1)."""
        return self._generate(tokens).output[:, 0]

    def timed(self, tokens: AnyArray, steps: int) -> Timed:
        """Times a prompt and ``steps`` greedy decode steps. With a coarse clock, several steps are timed together; each
        such group gives one time, the mean of its steps.

        Raises:
            MeasurementError: The clock is too coarse for this model.
        """
        prompt = self._generate(tokens, fresh=True, wanted=steps == 0)
        if not steps:
            self._check_clock(prompt.seconds)
            return Timed(prompt.output, prompt.seconds, [], [] if prompt.cpu_s is None else [prompt.cpu_s], [])
        found = self._generate(None, more=steps - 1)
        if self._clock_s > FINE_CLOCK_S and steps > 1 and not self._tried:
            self._tried = True
            usual_s = sum(found.seconds) / steps
            self.steps_per_sample = min(steps - 1, math.ceil(CLOCK_STEPS * self._clock_s / max(usual_s, self._clock_s)))
            return self.timed(tokens, steps)
        times = found.seconds if self.steps_per_sample == 1 else found.seconds[1:]
        self._check_clock([*prompt.seconds, *times])
        cpu_s = [] if prompt.cpu_s is None or found.cpu_s is None else [prompt.cpu_s, found.cpu_s / steps]
        return Timed(found.output[:, 0], prompt.seconds, times, cpu_s[:1], cpu_s[1:])

    def _generate(self, tokens: AnyArray | None, *, fresh: bool = False, more: int = 0, wanted: bool = True) -> Passes:
        """Runs a pass over ``tokens`` (None: over the most likely next tokens), and then ``more`` decode steps."""
        if fresh and tokens is not None:
            prompt_shape(tokens, batch=self._batch, capacity=self._capacity)
        length = (0 if fresh else self._length) + (1 if tokens is None else tokens.shape[1]) + more
        if length > self._capacity:
            raise MeasurementError(f"the cache holds {self._capacity} positions and is full")
        found = self._place.run(
            "generate",
            model=self._number,
            fresh=fresh,
            tokens=None if tokens is None else pack(np.asarray(tokens, np.int64)),
            steps=more,
            every=self.steps_per_sample,
            wanted=wanted,
        )
        self._length = length
        if wanted and found.output.shape != (self._batch, 1, self.vocab_size):
            raise MeasurementError(f"the page's logits have the unexpected shape {found.output.shape}")
        if len(found.seconds) != 1 + more // self.steps_per_sample:
            raise MeasurementError(f"the page's answer has an unexpected number of times, {len(found.seconds)}")
        return found


class BrowserPass(SinglePass, BrowserSession):
    """A model that answers in one pass: an encoder, a classifier or a ranking model."""

    def __init__(self, place: Place, number: int, facts: Facts, *, batch: int, first_input: str) -> None:
        super().__init__(place, number, facts)
        self._batch, self._first_input, self._passes = batch, first_input, 1

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Outputs for the model's inputs."""
        return self._place.run("run", model=self._number, feeds=self._feeds(tokens), passes=1).output

    def timed(self, tokens: AnyArray, steps: int) -> Timed:
        """Several passes over the same inputs."""
        passes = self._passes
        found = self._place.run("run", model=self._number, feeds=self._feeds(tokens), passes=passes)
        self._check_clock(found.seconds)
        self._passes = max(1, min(MOST_PASSES, int(COMMAND_S / max(min(found.seconds), self._clock_s))))
        cpu_s = [] if found.cpu_s is None else [found.cpu_s / passes]
        return Timed(found.output, found.seconds, [], cpu_s, [])

    def _feeds(self, tokens: AnyArray) -> dict[str, object]:
        """Inputs by name; see the sessions of ``onnxruntime.py``."""
        found: dict[str, AnyArray] = {}
        if "image" in self.facts:
            found[self._first_input] = np.asarray(tokens, np.int64 if "numbers" in self.facts else np.float32)
            if "question" in self.facts:
                found["words"] = np.zeros((self._batch, self.facts["question"]), np.int64)
        elif "request" in self.facts:
            history = self.facts["request"]["history"]
            ids, tags = np.asarray(tokens, np.int64)[:, :, 0], np.asarray(tokens, np.int64)[:, :, 1:]
            found |= {"history": ids[:, :history], "candidates": ids[:, history:]}
            if tags.shape[2]:
                found |= {"history_tags": tags[:, :history], "candidate_tags": tags[:, history:]}
        else:
            found["tokens"] = np.asarray(tokens, np.int64)
            if self.facts["padded"]:
                found["mask"] = np.ones(tokens.shape, np.int32)
        return {name: pack(value) for name, value in found.items()}
