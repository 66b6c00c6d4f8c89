"""Program that tunes, compiles and times ONNX graphs; runs in the environment ``tvm`` (``core/environments.py``)."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from chipwise.core.workers import Message, Report, serve

THREADS = os.environ.get("OMP_NUM_THREADS", "1")
os.environ["TVM_NUM_THREADS"] = THREADS  # TVM reads it when it is imported

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import tvm  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.ir.utils import derived_object  # noqa: E402
from tvm.relax import transform  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402
from tvm.s_tir import meta_schedule  # noqa: E402
from tvm.s_tir.meta_schedule.builder import BuilderResult  # noqa: E402
from tvm.s_tir.meta_schedule.builder.local_builder import _worker_func  # noqa: E402
from tvm.support.popen_pool import PopenPoolExecutor, StatusKind  # noqa: E402

from chipwise.core.arrays import AnyArray  # noqa: E402
from chipwise.core.digest import digest  # noqa: E402
from chipwise.deploy.graphs import sessions  # noqa: E402
from chipwise.deploy.graphs.inputs import Feed, read_arrays  # noqa: E402
from chipwise.deploy.graphs.profiling import slower  # noqa: E402
from chipwise.deploy.runtimes.onnx_session import open_file, session_options  # noqa: E402
from chipwise.errors import MeasurementError, line_of  # noqa: E402

BUILD_S, RUN_S = 60.0, 60.0  # time limit of a trial in seconds
FEWEST, MOST = 16, 64  # schedules of one kernel that are tried in a batch; proposing a batch takes seconds
FILES = ("database_tuning_record.json", "database_workload.json")  # TVM writes them, one record per line
FINISHED = "finished.json"
MOST_BYTES = 2**31 - 1  # largest ONNX file without external data


def answer(job: Message, report: Report) -> Message:
    """The answer to one job; see the callers in ``tvm.py``."""
    match job["do"]:
        case "tune":
            graph = Imported(Path(job["model"]), read_arrays(job["feed"]))
            return tuned(graph, Path(job["room"]), job["trials"], report)
        case "open":
            return opened(Path(job["model"]), read_arrays(job["feed"]), job["schedules"])
        case "run":
            return timed(*models[job["number"]], job["passes"])
        case "race":
            return raced(Path(job["model"]), read_arrays(job["feed"]), job["schedules"])
        case "usage":
            return {"cpu_s": time.process_time()}
    return {"version": version("apache-tvm")}


def target() -> tvm.target.Target:
    """Returns TVM's description of this processor, with this process's number of threads as its cores."""
    processor = tvm.target.codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": int(THREADS)})


class Imported:
    """A graph in TVM's form, its kernels not yet scheduled.

    Raises:
        MeasurementError: The graph has an operator that TVM cannot import.
    """

    def __init__(self, path: Path, feed: Feed) -> None:
        graph = plain(path, feed)
        self.path, self.names = path, [item.name for item in graph.graph.input]
        content = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()
        self.digest = digest([content, str(target()), version("apache-tvm")])
        strange = {f"{node.domain}.{node.op_type}" for node in graph.graph.node if node.domain not in ("", "ai.onnx")}
        if strange:
            raise MeasurementError(f"{path}: TVM only knows ONNX's own operators, not {', '.join(sorted(strange))}")
        try:
            module, self.weights = relax.frontend.detach_params(from_onnx(graph, keep_params_in_input=True))
            with target():
                self.module = tvm.transform.Sequential(
                    [
                        transform.DecomposeOpsForInference(),
                        transform.CanonicalizeBindings(),
                        relax.get_pipeline("zero"),
                        transform.AttachAttrLayoutFreeBuffers(),
                    ]
                )(module)
        except Exception as error:  # no common base class
            raise MeasurementError(f"{path}: TVM cannot import this graph: {line_of(error, -1)}") from None


class Compiled:
    """A graph compiled by TVM with the schedules in a folder or, for None, with TVM's own schedules."""

    def __init__(self, graph: Imported, schedules: str | None) -> None:
        laid_out = [transform.SplitLayoutRewritePreproc(), transform.LiftTransformParams(), transform.FoldConstant()]
        with target():
            applied = [] if schedules is None else [transform.MetaScheduleApplyDatabase(schedules)]
            module = tvm.transform.Sequential([*applied, *laid_out])(graph.module)
            self._machine = relax.VirtualMachine(tvm.compile(module, target=target()), tvm.cpu())
        # In the layout that the kernels read.
        self._weights = self._machine["main_transform_params"](graph.weights["main"])
        self._names = graph.names

    def run(self, names: None, feed: Feed) -> list[AnyArray]:
        """Returns all outputs; ``names`` is only there because ONNX Runtime's sessions have it."""
        found = self._machine["main"](*(tvm.runtime.tensor(feed[name]) for name in self._names), *self._weights)
        return [item.numpy() for item in ([found] if hasattr(found, "numpy") else found)]


models: list[tuple[Compiled, Feed]] = []


def plain(path: Path, feed: Feed) -> onnx.ModelProto:
    """The graph for the shapes of ``feed``, with constants folded by ONNX Runtime.

    Raises:
        MeasurementError: ONNX Runtime refuses the graph, or it is too large.
    """
    graph = onnx.load(path)
    for item in graph.graph.input:
        for axis, size in zip(item.type.tensor_type.shape.dim, feed[item.name].shape, strict=True):
            axis.ClearField("dim_param")
            axis.dim_value = size
    if graph.ByteSize() > MOST_BYTES:
        raise MeasurementError(f"{path}: TVM measures graphs of up to 2 GiB; this one has {graph.ByteSize():,} bytes")
    with tempfile.TemporaryDirectory() as room:
        options = session_options(1)  # basic optimisations only write ONNX's own operators
        options.optimized_model_filepath = f"{room}/plain.onnx"
        open_file(graph.SerializeToString(), options, name=str(path))
        return onnx.load(f"{room}/plain.onnx")


def tuned(graph: Imported, room: Path, trials: int, report: Report) -> Message:
    """Tries schedules of all kernels, ``trials`` in total including those of earlier calls, and stores the results.

    Returns:
        The folder of the graph's schedules in ``room``.
    """
    folder = room / graph.digest
    tried, _ = (whole_lines(folder / name) for name in FILES)
    if (finished := folder / FINISHED).exists():
        tried = json.loads(finished.read_text())["trials"]
    if tried < trials:
        folder.mkdir(parents=True, exist_ok=True)
        kernels = meta_schedule.relax_integration.extract_tasks(graph.module, target())
        contexts, weights = meta_schedule.relax_integration.extracted_tasks_to_tune_contexts(
            kernels, str(folder), seed=tried, num_threads=os.cpu_count()
        )
        meta_schedule.tune.tune_tasks(
            tasks=contexts,
            task_weights=weights,
            work_dir=str(folder),
            max_trials_global=trials - tried,
            num_trials_per_iter=max(
                FEWEST, min(MOST, trials // (2 * len(kernels)))
            ),  # so that each kernel has its turn
            builder=Builder(),
            runner=meta_schedule.runner.LocalRunner(timeout_sec=RUN_S),
            measure_callbacks=[
                *meta_schedule.measure_callback.MeasureCallback.create("default"),
                Progress(report, tried, trials),
            ],
        )
        finished.write_text(json.dumps({"trials": trials}))
    return {"folder": str(folder)}


def whole_lines(path: Path) -> int:
    """Counts the complete lines of a text file, 0 if it is missing; cuts off a line that a killed process left."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return whole.count(b"\n")


@derived_object
class Builder(meta_schedule.builder.PyBuilder):
    """Compiles in processes that stay alive; TVM's own builder starts and imports TVM anew for every few schedules."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PopenPoolExecutor(max_workers=os.cpu_count(), timeout=BUILD_S)

    def build(self, build_inputs: Sequence[meta_schedule.builder.BuilderInput]) -> list[object]:
        """Compiles kernels; returns the path of each, or the error."""
        asked = [(None, None, each.mod, each.target, None) for each in build_inputs]
        told = self.pool.map_with_error_catching(lambda one: _worker_func(*one), asked)
        return [
            BuilderResult(each.value, None)
            if each.status == StatusKind.COMPLETE
            else BuilderResult(None, line_of(each.value or f"not compiled within {BUILD_S:g} s"))
            for each in told
        ]


@derived_object
class Progress(meta_schedule.measure_callback.PyMeasureCallback):
    """Reports how many schedules were tried."""

    def __init__(self, report: Report, tried: int, trials: int) -> None:
        super().__init__()
        self.report, self.tried, self.trials = report, tried, trials

    def apply(
        self, scheduler: object, kernel: int, schedules: Sequence[object], builds: Sequence[object], runs: object
    ) -> None:
        """Called after each batch of trials."""
        self.tried += len(builds)
        self.report(done=min(self.tried, self.trials), of=self.trials)


def opened(path: Path, feed: Feed, schedules: str | None) -> Message:
    """Compiles a graph and runs it once."""
    model = Compiled(Imported(path, feed), schedules)
    for array in model.run(None, feed):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise MeasurementError(f"{path}: an output is not finite for these inputs; give other inputs")
    models.append((model, feed))
    return {"number": len(models) - 1}


def timed(model: Compiled, feed: Feed, passes: int) -> Message:
    """Returns seconds of passes, in wall time and in processor time."""
    cpu_clock = time.thread_time if THREADS == "1" else time.process_time
    seconds, cpu_s = [], []
    for _ in range(passes):
        cpu_start, began = cpu_clock(), time.perf_counter()
        model.run(None, feed)
        seconds.append(time.perf_counter() - began)
        cpu_s.append(cpu_clock() - cpu_start)
    return {"seconds": seconds, "cpu_s": cpu_s}


def raced(path: Path, feed: Feed, schedules: str | None) -> Message:
    """Times TVM and ONNX Runtime in turns, and compares their outputs.

    ``difference`` is the largest over the graph's outputs of max abs(TVM - ONNX Runtime) / max abs(ONNX Runtime).
    """
    graph, threads = Imported(path, feed), int(THREADS)
    ours, theirs = Compiled(graph, schedules), sessions.opened(path, threads=threads)
    apart = [
        float(np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(np.float32).tiny))
        for a, b in zip(ours.run(None, feed), sessions.outputs(theirs, feed, path).values(), strict=True)
    ]
    seconds, ratio = slower(
        partial(sessions.opened, path, threads=threads), partial(Compiled, graph, schedules), feed, threads
    )
    return {"other_s": seconds[0], "seconds": seconds[1], "slower": ratio, "difference": max(apart)}


if __name__ == "__main__":
    serve(answer)
