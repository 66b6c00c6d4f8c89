"""Serves a page that measures a model in any browser that opens it, such as on a phone; stores the measurements."""

from __future__ import annotations

import contextlib
import io
import queue
import tempfile
from collections.abc import Callable
from pathlib import Path

from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.pages import Pages
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.deploy.runtimes.web.engines import ENGINES
from chipwise.design.models.measuring import exported_file, usual_request
from chipwise.errors import ChipwiseError, UnknownName


def measure_pages(
    model: str | Path,
    *,
    listen: str,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str | None = None,
    keep: bool = True,
    count: int | None = None,
    on_open: Callable[[str, str], object] = lambda address, code: None,
    on_result: Callable[[str, Measurement | ChipwiseError], object] = lambda machine, found: None,
) -> list[Measurement]:
    """Serves a page that measures a model in the browser (in ONNX Runtime Web or wllama), and collects the results.

    Args:
        model: As for :func:`measure`.
        listen: Address to listen on: ``0.0.0.0:8000`` for phones in the same network; ``127.0.0.1:8000`` for this
            machine alone, or for a phone on a cable (``adb reverse tcp:8000 tcp:8000``).
        runtime: ``browser`` (ONNX Runtime Web) or ``wllama`` (llama.cpp). Default: wllama for GGUF files, else browser.
        threads: Threads of the runtime. Default: if the model is a winner, as in its run; else 1. More than 1 thread
            needs https or localhost.
        batch: Concurrent requests. Default: if the model is a winner, as in its run; else 1.
        prompt: Prompt tokens. Default: if the model is a winner, as in its run; else 64.
        new: New tokens. Default: if the model is a winner, as in its run; else 64.
        weights: Weight format of a model that is not exported yet. Default: fp32.
        keep: Whether to save the results to the measurement store, under the name of the browser's machine.
        count: Number of pages to wait for before returning. Default: return only after Ctrl-C.
        on_open: Called with the address and its QR code as text (empty if segno is not installed).
        on_result: Called for each page with its machine, and with the measurement or the reason why there is none.

    Raises:
        InputError: The model is unknown, or ``listen`` is not an address that can be used.
        UnknownName: ``runtime`` is not a runtime for browsers.
        Unreachable: The runtime's package is not in the cache and cannot be downloaded.
    """
    runtime = runtime or ("wllama" if Path(model).suffix == ".gguf" else "browser")
    if runtime not in ENGINES:
        raise UnknownName("runtime of pages", runtime, ENGINES)
    workload, usual_threads = usual_request(str(model), batch=batch, prompt=prompt, new=new)
    results: queue.SimpleQueue[tuple[str, Measurement | ChipwiseError]] = queue.SimpleQueue()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as room:
        path, design = exported_file(str(model), Path(room), runtime=runtime, weights=weights, workload=workload)
        pages = Pages(
            path,
            workload,
            listen=listen,
            runtime=runtime,
            threads=threads or usual_threads,
            on_result=lambda machine, found: results.put((machine, found)),
        )
        with contextlib.closing(pages), contextlib.suppress(KeyboardInterrupt):
            on_open(pages.address, qr_code(pages.address))
            seen = 0
            while count is None or seen < count:
                machine, found = results.get()
                seen += 1
                if isinstance(found, Measurement):
                    measured.append(found)
                    if keep:
                        MeasurementStore().add(found, design=design, source="measure in a browser elsewhere")
                on_result(machine, found)
    return measured


def qr_code(text: str) -> str:
    """A QR code of ``text`` in block characters; empty if segno is not installed."""
    try:
        import segno
    except ImportError:  # segno comes with the extra ``phone``; without it, only the address is shown
        return ""
    drawn = io.StringIO()
    segno.make(text, error="l").terminal(drawn, compact=True, border=2)
    return drawn.getvalue()
