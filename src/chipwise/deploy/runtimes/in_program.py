"""Runtimes in separate Python environments (see ``core/environments.py``).

A program in the environment (``timed_program.py``) runs the model and times every pass by its own clock, so times
exclude messages.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.core.environments import Program, program
from chipwise.deploy.runtimes import Facts, Timed, check_positions, prompt_shape
from chipwise.errors import MeasurementError, Unsupported


class ProgramSession:
    """A loaded file. See :class:`Session` and :class:`Elsewhere` in ``deploy/runtimes/__init__.py``."""

    steps_per_sample = 1

    def __init__(self, path: Path, asked: Program, *, capacity: int, threads: int, excludes: str) -> None:
        self._program, self._excludes = asked, excludes
        self._capacity, self._length = capacity, 0
        opened = self._program.ask("open", model=str(path.absolute()), threads=threads, capacity=capacity)
        self.facts: Facts = plain(opened["facts"])
        self._number, self._memory_bytes = opened["number"], plain(opened["memory_bytes"])
        weakref.finalize(self, self._program.ask, "forget", number=self._number).atexit = False
        check_positions(path, self.facts["max_tokens"], capacity)
        self.vocab_size: int = self.facts["vocab_size"]

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and processes ``tokens`` (1, prompt)."""
        self._length = 0
        return self._run(tokens).output

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Processes one more token, ``tokens`` (1, 1)."""
        return self._run(tokens).output

    def timed(self, tokens: AnyArray, steps: int) -> Timed:
        """Times a prompt and ``steps`` greedy decode steps."""
        self._length = 0
        return self._run(tokens, steps)

    def _run(self, tokens: AnyArray, steps: int = 0) -> Timed:
        if not self._length:
            prompt_shape(tokens, batch=1, capacity=self._capacity)
        length = self._length + tokens.shape[1] + steps
        if length > self._capacity:
            raise MeasurementError(f"the cache holds {self._capacity} positions and is full")
        told = self._program.ask("run", number=self._number, tokens=tokens.tolist(), start=self._length, steps=steps)
        self._length = length
        seconds, cpu_s = plain(told["seconds"]), plain(told["cpu_s"])
        self._memory_bytes = plain(told["memory_bytes"])
        output = np.asarray(told["logits"], np.float32)
        return Timed(output, seconds[:1], seconds[1:], cpu_s[:1], cpu_s[1:])

    def cpu_s(self) -> float | None:
        """Processor seconds of the program so far."""
        used: float = plain(self._program.ask("usage")["cpu_s"])
        return used

    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the program, less what it used before it loaded the first model."""
        most: int = self._memory_bytes
        return most

    def settings(self) -> dict[str, object]:
        """Settings to record with a measurement."""
        return {"memory_excludes": self._excludes}


class ProgramRuntime:
    """A runtime on the CPU, in the environment called ``name``. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name: str
    title: str
    module: str  # Python module of the program
    excludes: str  # what the reported memory of the program excludes

    def version(self) -> str:
        """The runtime's own version."""
        return str(program(self.name, self.module).ask("version")["version"])

    def open(
        self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]
    ) -> ProgramSession:
        """Loads an exported file.

        Raises:
            MeasurementError: The file cannot be run, or options are given.
            Unsupported: ``batch`` is not 1; the file's cache holds one sequence.
            Unreachable: The environment is missing; the message says how to make it.
        """
        if options:
            raise MeasurementError(f"{self.name} takes no options, but {sorted(options)} were given")
        if batch != 1:
            raise Unsupported(f"the cache of a file for {self.title} holds one sequence, not {batch}; use --batch 1")
        asked = program(self.name, self.module, threads=threads)
        return ProgramSession(Path(path), asked, capacity=capacity, threads=threads, excludes=self.excludes)
