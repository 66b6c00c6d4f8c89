"""A child process that trains: ``python -m chipwise.training.worker``, one JSON object a line, jobs in and events out.

It ends when its input closes, even in the middle of a training, so it never outlives the process that started it. What
a job needs travels as data; nothing in a job is executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from chipwise.core.digest import plain
from chipwise.core.errors import ChipwiseError
from chipwise.core.files import build
from chipwise.spec import ArchSpec
from chipwise.spec.io import from_data, to_data

if TYPE_CHECKING:
    from chipwise.training.trainer import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """One training, and the quality of its weights in the formats asked for."""

    arch: ArchSpec
    tokens: str  # file that a TokenStore wrote
    folder: str  # where the training keeps its state and leaves its weights
    cpu_budget_s: float
    seed: int
    formats: tuple[str, ...] = ()  # such as int8 and int4
    max_validation_bytes: int | None = None
    start: str | None = None  # safetensors file of the weights to begin with
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)  # fields of Recipe that differ from its defaults

    def to_line(self, number: int) -> str:
        """The job as a line of the worker's input."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return json.dumps({"job": number, **fields, "arch": to_data(self.arch)})

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> TrainJob:
        """The job that a line held."""
        fields = dict(data)
        return build(cls, {**fields, "arch": from_data(fields.get("arch"))})

    def run(self, tell: Callable[[Update], None]) -> dict[str, Any]:
        """Trains and judges; the result as JSON can hold it. ``tell`` gets an ``Update`` about once a second."""
        from chipwise.training.evaluate import quantised_bits_per_byte
        from chipwise.training.tokenizer import load_tokens
        from chipwise.training.trainer import Recipe, train

        data = load_tokens(Path(self.tokens))
        result = train(
            self.arch,
            data,
            cpu_budget_s=self.cpu_budget_s,
            seed=self.seed,
            folder=self.folder,
            recipe=build(Recipe, self.recipe, field="recipe"),
            start=self.start,
            progress=tell,
            max_validation_bytes=self.max_validation_bytes,
        )
        values: dict[str, Any] = plain(result)
        judged = partial(quantised_bits_per_byte, data=data, max_bytes=self.max_validation_bytes)
        values["quantised"] = {form: judged(self.arch, result.weights, form).bits_per_byte for form in self.formats}
        return values


class Job(Protocol):
    """What a worker can do: a training alone, or one of shared weights (``train/supernet/job.py``)."""

    def to_line(self, number: int) -> str:
        """The job as a line of the worker's input."""
        ...

    def run(self, tell: Callable[[Update], None]) -> dict[str, Any]:
        """Does it; the result as JSON can hold it. ``tell`` gets an ``Update`` about once a second."""
        ...


def read_job(data: dict[str, Any]) -> Job:
    """The job that a line held."""
    fields = dict(data)
    if fields.pop("kind", None) == "supernet":
        from chipwise.training.supernet.job import SupernetJob

        return SupernetJob.from_data(fields)
    return TrainJob.from_data(fields)


def serve(jobs: IO[str], events: IO[str]) -> None:
    """Works off ``jobs`` until they end; then leaves at once, whatever is under way."""
    waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def watch() -> None:
        for line in jobs:
            if line.strip():
                waiting.put(_parsed(line))
        os._exit(0)  # nobody is left to read a result

    def say(event: str, number: Any, **values: Any) -> None:
        events.write(json.dumps({"event": event, "job": number, **values}) + "\n")
        events.flush()

    def tell(number: Any, update: Update) -> None:
        say("progress", number, **dataclasses.asdict(update))

    threading.Thread(target=watch, daemon=True).start()
    _limit_threads()
    say("ready", None, pid=os.getpid())
    while True:
        data = waiting.get() or {}
        number = data.pop("job", None)
        try:
            result = read_job(data).run(partial(tell, number))
        except ChipwiseError as error:
            say("error", number, kind=type(error).__name__, message=str(error))
        except MemoryError:
            say("error", number, kind="MemoryError", message="the training did not fit into memory")
        except Exception as error:  # a fault of one candidate must not cost the others
            say("error", number, kind=type(error).__name__, message=f"{type(error).__name__}: {error}")
        else:
            say("result", number, result=result)


def _parsed(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}


def _limit_threads() -> None:
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Serves standard input; whatever libraries print goes to standard error."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, events)
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
