"""Serves a model on this machine, and shows its predicted decode time."""

from __future__ import annotations

import tempfile
from pathlib import Path

from chipwise.core.fields import whole_number
from chipwise.deploy.export.sources import Source, check_held, write_onnx
from chipwise.deploy.measure import harness
from chipwise.deploy.serving.engine import ENGINES, Engine, Promise
from chipwise.deploy.serving.server import Server
from chipwise.design.models.exports import weights_of
from chipwise.design.models.measuring import design_inside, predict
from chipwise.design.run.winner import WinnerFile, promised, read_winner
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

CONTEXT, SLOTS, PORT = 4096, 4, 8000
_FILES = ("model.onnx", "model.gguf", "onnx/model.onnx")  # searched in folders in this order; the last: transformers.js


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    slots: int = SLOTS,
    context: int = CONTEXT,
    threads: int | None = None,
) -> Server:
    """Starts a server for a model, with OpenAI's API (including streaming) and a chat page.

    Args:
        model: A run's or a winner's folder, the folder of an export, a Hugging Face folder with weights (served as ONNX
            in FP32), or a ``.gguf`` or ``.onnx`` file. GGUF runs in llama.cpp, the others in ONNX Runtime.
        host: Address to listen on. An address that other machines can reach needs a token.
        port: Port to listen on; 0 chooses a free one.
        token: Token that clients must send as ``Authorization: Bearer TOKEN``. Default: no token if only this machine
            can reach the address, else a random token.
        slots: Number of requests that are answered at the same time; further requests wait. Each slot has its own KV
            cache.
        context: Largest number of tokens in a prompt and its answer together; at most the model's context length.
        threads: Threads for each request. Default: for a winner as in its run, else 1.

    Raises:
        InputError: The model is unknown or has no tokenizer, or the address cannot be used.
        StudyError: The run has no winner yet.
        Unsupported: The model does not generate text.
        MeasurementError: The runtime cannot load the file.
        MissingExtra: The runtime is not installed.
    """
    whole_number("slots", slots)
    whole_number("context", context, least=2)
    whole_number("port", port, least=0, most=65_535)
    place = weights_of(Path(model))
    winner = read_winner(place) if place.is_dir() else None
    used = threads or (1 if winner is None else winner.threads)
    harness.check_threads(used)
    with tempfile.TemporaryDirectory() as room:  # may be removed, because runtimes keep what they have read
        path, design = _file(place, winner, Path(room))
        engine: Engine = ENGINES.load(path.suffix)(path, slots=slots, context=context, threads=used)
    try:
        promise = _promise(winner, design, engine.runtime, used)
        stock = engine.name == "model" and place.suffix not in ENGINES  # the file's name says less than its folder's
        name = design.arch.name if design is not None else place.resolve().name if stock else engine.name
        return Server(engine, name=name or "model", host=host, port=port, token=token, promise=promise)
    except BaseException:
        engine.close()
        raise


def _file(place: Path, winner: WinnerFile | None, room: Path) -> tuple[Path, Design | None]:
    """The file to serve, and its design if known. If the folder has only weights, they are exported to ``room``.

    Raises:
        SpecError: The path is neither a file nor a folder with a model.
        Unsupported: The model generates no text.
    """
    design = None if winner is None else winner.design
    if design is not None and not design.arch.causal:
        raise Unsupported(f"{place}: this model generates no text; chipwise serve takes only decoders")
    if place.suffix in ENGINES:
        if not place.is_file():
            raise SpecError("there is no such file", file=str(place))
        return place, design_inside(place)
    wanted = "model.gguf" if winner is not None and winner.runtime in ("llama.cpp", "wllama") else _FILES[0]
    found = next((place / name for name in (wanted, *_FILES) if (place / name).is_file()), None)
    if found is not None:
        return found, design or design_inside(found)
    source = Source.read(place)
    if not source.arch.causal:
        raise Unsupported(f"{place}: this model generates no text; chipwise serve takes only decoders")
    check_held(source.arch, "onnx")
    design = design or Design(arch=source.arch)
    write_onnx(source, design, room)
    return room / "model.onnx", design


def _promise(winner: WinnerFile | None, design: Design | None, runtime: str, threads: int) -> Promise | None:
    """The decode time that the run predicted, else the one from this machine's profile; None if there is neither."""
    if winner is not None and (known := winner.promise()) is not None:
        return known
    workload = Workload() if winner is None else winner.workload
    found = None if design is None else predict(design, workload, runtime=runtime, threads=threads)
    if found is None or "tpot_p50" not in found.metrics:
        return None
    step = found.metrics["tpot_p50"]
    return promised((step.value, step.low, step.high), workload, runtime=runtime, threads=threads)
