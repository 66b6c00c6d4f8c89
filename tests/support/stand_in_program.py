"""A program in the place of an environment's Python: one given, or one that computes with torch."""

from __future__ import annotations

import sys
from pathlib import Path

import chipwise

_SOURCE = """#!{python}
import shutil, sys, time
sys.path[:0] = {path!r}
import numpy as np
from chipwise.core.workers import serve
from chipwise.deploy.runtimes.torch import TorchRuntime
from chipwise.deploy.runtimes.torch_serving import load

held = []

def answer(job, report):
    match job["do"]:
        case "write":
            assert set(job["formats"].values()) <= {{"fp32", "int8", "int4"}}
            shutil.copy(job["weights"], job["out"])
            return {{"bytes": 1}}
        case "open":
            most = load(job["model"])[0].arch.max_tokens
            session = TorchRuntime().open(job["model"], capacity=most, batch=1, threads=job["threads"], options={{}})
            held.append(session)
            facts = dict(session.facts, vocab_size=session.vocab_size, max_tokens=most)
            return {{"number": len(held) - 1, "facts": facts, "memory_bytes": 10**9}}
        case "run":
            session, tokens, seconds = held[job["number"]], np.array(job["tokens"]), []
            for step in range(1 + job["steps"]):
                start = time.perf_counter()
                logits = (session.decode if step or job["start"] else session.prefill)(tokens)
                seconds.append(time.perf_counter() - start)
                tokens = logits.argmax(-1)[:, None]
            return {{"logits": logits.tolist(), "seconds": seconds, "cpu_s": seconds, "memory_bytes": 10**9}}
        case "usage":
            return {{"cpu_s": time.process_time()}}
        case "version":
            return {{"version": "stand-in"}}
    return {{}}

serve(answer)
"""


def write_program(place: Path, source: str = _SOURCE) -> Path:
    """Writes the program; by default both converter and runtime of any format in an environment of its own.

    ``source`` has ``{python}`` and ``{path!r}`` where this Python and the folder of chipwise belong.
    """
    place.write_text(source.format(python=sys.executable, path=[str(Path(chipwise.__file__).parents[1])]))
    place.chmod(0o755)
    return place
