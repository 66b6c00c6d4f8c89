"""The bad inputs of torture.py: generators over fields, files and options, and the word that a message must contain.

Every case is wrong and must be refused, unless it says ``rows``: a table whose bad rows may carry their own errors.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
NAN, HUGE_TEXT = float("nan"), "x" * 100_000
FIFO, FOLDER, ZERO = "<a pipe>", "<a folder>", "<a device>"  # what stands at a path in place of a file
WHOLE = (0, -1, 1.5, "x", [], {}, NAN, 10**40, True, "1 s")
TIMES = ("3 parsecs", "-5 s", "", 900, "nan s", "1e999 s", [], {}, True, HUGE_TEXT)
LIMITS = ("<= 5 parsecs", "~ 3 ms", "<= nan ms", "", 5, [], {}, "<= 3", "<=", HUGE_TEXT)
LISTS = ([], [-1], ["x"], "x", [1.5], None, [[1]], {}, [NAN], [10**40])
NAMES = ("no-such", "", 5, [], {"a": 1}, None, HUGE_TEXT)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input: a command line with its files, or a call of the Python API."""

    name: str
    words: tuple[str, ...]  # the message must contain one of them
    arguments: tuple[str, ...] = ()
    files: dict[str, str | bytes] = field(default_factory=dict)
    call: Callable[[], object] | None = None
    out: str = ""  # where standard output goes, in place of a file
    environment: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)  # symbolic links, by name
    rows: bool = False  # a table: bad rows may be answered with errors of their own


SMOKE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "smoke.yaml").read_text())
SMOKE["data"]["paths"] = [str(ROOT / "src/chipwise/core/*.py")]
SMOKE["budget"] = {"cpu": "100 s", "final": "4 s", "workers": 2}
RUN_FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("workload.prompt_tokens", "workload.new_tokens", "workload.batch", "target.threads"), WHOLE),
    **dict.fromkeys(("space.max_tokens", "budget.workers"), WHOLE),
    **dict.fromkeys(("budget.cpu", "budget.final"), TIMES),
    **dict.fromkeys(("constraints.tpot_p99", "constraints.ttft_p50", "constraints.peak_memory"), LIMITS),
    **dict.fromkeys(("constraints.params", "constraints.bits_per_byte"), ("~ 3", "", [], {}, "<= x", HUGE_TEXT)),
    **dict.fromkeys(("space.d_model", "space.depth", "space.vocab_size", "space.head_size"), LISTS),
    **dict.fromkeys(("space.layer.heads", "space.layer.ffn_width"), LISTS),
    **dict.fromkeys(("space.layer.ffn", "space.weights", "space.layer.weights"), ([], ["mish"], "x", [1], {}, [[]])),
    **dict.fromkeys(("target.runtime", "target.device"), NAMES[:-2]),
    **dict.fromkeys(("data.source",), NAMES),
    **dict.fromkeys(("data.paths",), ("x", [], [5], {}, ["/dev/zero"], ["no/*.txt"], ["."], None)),
    **dict.fromkeys(("objectives.tpot_p50",), ("up", 5, [], None, {})),
    **dict.fromkeys(("name",), ("", "../../x", "a/b", 5, [], "two\nlines", HUGE_TEXT)),
    **dict.fromkeys(("seed",), (-1, 1.5, "x", [], NAN, 10**40)),
    **dict.fromkeys(("quality",), ("no-such", 5, [])),
    **dict.fromkeys(("search",), ({"strategy": "no-such"}, "no-such", 5, [])),
    **dict.fromkeys(("tasks",), (["no-such"], 5, [{"name": "x", "kind": "y"}], [5])),
    **dict.fromkeys(("train.on",), ("no-such", "", 5, [], "cuda:x", "ray:5", "jobs:/tmp", HUGE_TEXT)),
    **dict.fromkeys(("targets",), (["no-such"], 5, [5], {})),
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64}
DEEPSEEK = {
    **{**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": 16},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
}
T5 = {"model_type": "t5", "d_model": 64, "num_heads": 4, "d_kv": 16, "d_ff": 128, "num_layers": 2, "vocab_size": 100}
BERT = {**LLAMA, "model_type": "bert", "hidden_act": "gelu"}
for _name in ("num_key_value_heads",):
    DEEPSEEK.pop(_name)
for _name in ("rope_theta", "rms_norm_eps", "num_key_value_heads", "tie_word_embeddings"):
    BERT.pop(_name)
ABSURD = {  # fields that have bad values of their own
    "rms_norm_eps": (-1, "x", [], NAN, 10**400),
    "rope_theta": (-1, 0, "x", [], NAN, 10**400),
    "tie_word_embeddings": ("yes", 5, []),
    "hidden_act": ("mish", 5, [], HUGE_TEXT),
    "mlp_only_layers": ("all", [99], [-1], 5, ["x"]),
    "model_type": ("no-such", 5, [], {}, HUGE_TEXT),
    "torch_dtype": ("float7", 5, []),
    "rope_scaling": ({"rope_type": "magic"}, "magic", 5),
    "layer_types": (["full_attention"] * 3, "all", 5),
    "head_dim": (0, -1, 1.5, "x", []),
    "sliding_window": (0, -1, 1.5, "x", []),
    "n_shared_experts": (-1, 1.5, "x"),
    "first_k_dense_replace": (-1, 1.5, "x"),
}
COMMON = ("model_type", "torch_dtype", "rope_scaling", "layer_types", "head_dim")  # that every family has
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
BROKEN: dict[str, str | bytes] = {
    "empty": "",
    "binary": b"\xff\xfe\x00\x01" * 100,
    "cut off": '{"a": [1, 2',
    "list": "[1, 2]",
    "text": "hello",
    "deep list": "[" * 100_000 + "]" * 100_000,
    "deep mapping": '{"a":' * 5000 + "1" + "}" * 5000,
    "digits": '{"a": 1' + "0" * 6000 + "}",
    "control characters": "a: 1\0b\n",
    "tag": "!!python/object/apply:os.system ['true']",
    "bomb": BOMB,
    "twice": "a: 1\na: 2\n",
    "large": "a: " + "x" * 20_000_000,
    FIFO: FIFO,
    FOLDER: FOLDER,
    ZERO: ZERO,
}
READERS: dict[str, tuple[str, ...]] = {  # files from outside, and who reads them
    "config.json": ("estimate", "config.json", "--device", "l4"),
    "model.yaml": ("estimate", "model.yaml", "--device", "l4"),
    "chip.yaml": ("estimate", "gpt2", "--device", "chip.yaml"),
    "run.yaml": ("search", "run.yaml", "--out", "run"),
    "space.yaml": ("space", "space.yaml", "--device", "l4"),
    "rows.csv": ("estimate", "--table", "rows.csv", "--out", "out.csv"),
    "ops.csv": ("ops", "--table", "ops.csv", "--out", "out.csv"),
    "gemm.csv": ("validate", "gemm", "--truth", "gemm.csv", "--out", "out.csv"),
    "power.csv": ("validate", "power", "--truth", "power.csv", "--out", "out.csv"),
    "losses.json": ("explain", "gpt2", "--device", "l4", "--sensitivity", "losses.json"),
    "kept.jsonl": ("measurements", "import", "kept.jsonl"),
    "text.txt": ("train", "gpt2", "--steps", "1", "--data", "text.txt", "--out", "t"),
}
NUMBERS = ("0", "-1", "x", "1.5", "nan", "1e400", "")
PATHS = ("--html", "--out", "--data")  # a message may name the path itself
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "estimate gpt2 --device l4": {
        **dict.fromkeys(("--prompt", "--new", "--batch", "--tp", "--pp", "--ep", "--dp", "--microbatches"), NUMBERS),
        **dict.fromkeys(("--weights", "--kv", "--runtime"), ("no-such", HUGE_TEXT)),
        "--train-tokens": ("x", "-1", "nan", "0", ""),
    },
    "explain gpt2 --device l4": {
        **dict.fromkeys(("--prompt", "--new", "--batch", "--tp", "--threads", "--apply"), NUMBERS),
        **dict.fromkeys(("--weights", "--kv", "--runtime"), ("no-such",)),
        "--html": (".", "/dev/full", "/proc/x.html", "no/such/x.html", "a" * 300 + ".html"),
        "--sensitivity": ("no-such.json",),
    },
    "compare gpt2 --device l4": {
        **dict.fromkeys(("--prompt", "--new", "--batch", "--tp"), NUMBERS),
        **dict.fromkeys(("--weights", "--kv", "--runtime"), ("no-such",)),
    },
    f"space {ROOT}/examples/clinic.yaml --device l4": {
        "--draws": ("0", "-1", "x", "1000000000000"),
        "--samples": ("-1", "x"),
        "--seed": ("-1", "x"),
    },
    "measure gpt2": dict.fromkeys(("--prompt", "--new", "--batch", "--threads"), NUMBERS) | {"--sustained": ("x",)},
    "calibrate": {"--threads": NUMBERS, "--minutes": ("0", "x", "nan", "1000"), "--runtime": ("no-such",)},
    "train gpt2": {
        **dict.fromkeys(("--steps", "--tokens", "--batch", "--window", "--accumulate"), NUMBERS[:-1]),
        **dict.fromkeys(("--cpu-seconds", "--rate"), ("0", "-1", "x", "nan")),
        **dict.fromkeys(("--device", "--precision", "--sharing"), ("no-such",)),
    },
    "train gpt2 --steps 1": {"--data": ("no-such.txt", "", "/dev/zero"), "--peak": ("x", "5 parsecs")},
    "shrink .": {"--steps": NUMBERS[1:-1]},  # without a step nothing is healed
    f"search {ROOT}/examples/smoke.yaml": {
        "--workers": ("0", "-1", "x"),
        "--storage": ("mysql://x", "x", "sqlite:////no/such/dir/x.db"),
        "--out": ("/proc/run", "/dev/null/run"),
    },
    "fit": {"--from": ("thin-air",)},
    "validate": {"": ("no-such",)},
}
NAMED: tuple[tuple[str, str], ...] = (  # command with {} for a name that does not exist
    ("estimate {} --device l4", "model"),
    ("estimate gpt2 --device {}", "device"),
    ("explain {} --device l4", "model"),
    ("explain gpt2 --device {}", "device"),
    ("compare gpt2 {} --device l4", "model"),
    ("compare gpt2 --device l4,{}", "device"),
    ("devices show {}", "device"),
    ("measure {}", "model"),
    ("train {} --steps 1", "model"),
    ("report {}", "run"),
    ("search {}", "run"),
    ("evaluate {} --task organ-system", "model"),
    ("shrink {}", "model"),
    ("sensitivity {} --text t.txt", "model"),
    ("{}", "command"),
)
STRANGE_NAMES = ("no-such", "llama", "../..", "a" * 5000, "é\n", "-", "$(true)", "gpt2 ", ".")


def shown(value: object) -> str:
    """A short name of a value."""
    return f"{value!r:.30}"


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """``base`` with one field changed."""
    data = copy.deepcopy(base)
    *outer, last = path.split(".")
    place = data
    for name in outer:
        place = place.setdefault(name, {})
    place[last] = value
    return data


def run_files() -> Iterator[Case]:
    """Run files with one wrong field, and with one misspelt."""
    search = ("search", "run.yaml", "--out", "run")
    for path, values in RUN_FIELDS.items():
        for value in values:
            text = yaml.dump(changed(SMOKE, path, value))
            last = path.rpartition(".")[2]
            words = (last if len(last) > 2 else path,)
            words += ("cannot name a folder", "no text", "pipe or device") if last == "paths" else ()
            yield Case(name=f"run file {path}={shown(value)}", words=words, arguments=search, files={"run.yaml": text})
    for name in ("target", "workload", "constraints", "space", "data", "budget"):
        for typo in ("xx", *(f"{key}e" for key in SMOKE[name])):
            text = yaml.dump(changed(SMOKE, f"{name}.{typo}", 1))
            yield Case(
                name=f"run file {name}.{typo}", words=(f"{name}.{typo}",), arguments=search, files={"run.yaml": text}
            )
        text = yaml.dump(changed(SMOKE, name, 5))
        yield Case(name=f"run file {name}=5", words=(name,), arguments=search, files={"run.yaml": text})


def configs() -> Iterator[Case]:
    """config.json files with one wrong field."""
    for base in (LLAMA, MOE, GPT2, DEEPSEEK, T5, BERT):
        sizes = {name: (*WHOLE[:-2], -(10**30)) for name, value in base.items() if type(value) is int}
        own = {name: values for name, values in ABSURD.items() if name in base or (base is LLAMA and name in COMMON)}
        for path, values in {**sizes, **own}.items():
            for value in values:
                yield Case(
                    name=f"{base['model_type']} {path}={shown(value)}",
                    words=(path, "config.json: not valid JSON"),
                    arguments=("estimate", "config.json", "--device", "l4"),
                    files={"config.json": json.dumps(changed(base, path, value))},
                )


def broken_files() -> Iterator[Case]:
    """Files of every kind with wrong content, and paths that are not files."""
    for file, arguments in READERS.items():
        for kind, content in BROKEN.items():
            if file == "text.txt" and kind not in ("empty", "binary", FIFO, FOLDER, ZERO):
                continue
            yield Case(name=f"{file} {kind}", words=(file,), arguments=arguments, files={file: content})


def options() -> Iterator[Case]:
    """Options with invalid values."""
    for command, named in OPTIONS.items():
        for option, values in named.items():
            for value in values:
                given = (option, value) if option else (value,)
                words = (
                    option,
                    option.strip("-").replace("-", "_"),
                    value[:20] if len(value) > 3 or option in PATHS else "",
                )
                if option == "--prompt" and value == "1e400":
                    continue
                yield Case(
                    name=f"{command.split('/')[0]} {option} {shown(value)}",
                    words=tuple(word for word in words if word),
                    arguments=(*command.split(), *given),
                )


def names() -> Iterator[Case]:
    """Unknown names."""
    for command, kind in NAMED:
        for name in STRANGE_NAMES:
            if (kind, name) in {("model", "gpt2 "), ("command", "-")}:
                continue
            arguments = tuple(part.replace("{}", name) for part in command.split())
            words = (name.strip()[:20], repr(name[:20]).strip("'"), "config.json", "folder")
            yield Case(name=f"{command} {shown(name)}", words=words, arguments=arguments)


def tables() -> Iterator[Case]:
    """Tables with a wrong column or cell."""
    row = {"row_id": "1", "model": "gpt2", "device": "l4", "batch": "1", "isl": "8", "osl": "8"}
    for column, values in {
        "model": ("no-such", ""),
        "device": ("no-such", ""),
        "batch": ("0", "x", "-1", "1.5", "nan", "1e40"),
        "isl": ("0", "x", "1e40"),
        "osl": ("0", "x"),
    }.items():
        for value in values:
            yield Case(
                name=f"table {column}={shown(value)}",
                words=(column, "row"),
                arguments=("estimate", "--table", "rows.csv", "--out", "out.csv"),
                files={"rows.csv": table(row, {**row, column: value})},
                rows=True,
            )
    for kind, good in MEASURED.items():
        for column in good:
            for value in ("", "x", "-1", "nan", "0"):
                yield Case(
                    name=f"validate {kind} {column}={shown(value)}",
                    words=(column, "column", "row"),
                    arguments=("validate", kind, "--truth", "truth.csv", "--out", "out.csv"),
                    files={"truth.csv": table(good, {**good, column: value})},
                    rows=True,
                )
            yield Case(
                name=f"validate {kind} without {column}",
                words=(column,),
                arguments=("validate", kind, "--truth", "truth.csv", "--out", "out.csv"),
                files={"truth.csv": table({name: cell for name, cell in good.items() if name != column})},
                rows=True,
            )


MEASURED = {  # a row that `chipwise validate` can answer, by kind
    "gemm": {
        **{"row_id": "1", "system": "h100-sxm", "backend": "vllm", "dtype": "bf16"},
        **{"m": "8", "n": "64", "k": "64", "latency_s": "1e-5"},
    },
    "serving": {
        **{"row_id": "1", "model": "gpt2", "device": "l4", "isl": "8", "osl": "8"},
        **{"backend": "vllm", "batch": "1", "silicon_tpot_ms": "2"},
    },
    "power": {
        **{"row_id": "1", "op": "moe", "device": "b200-sxm", "latency_s": "1e-3", "power_w": "400"},
        **{"num_tokens": "8", "hidden_size": "64", "inter_size": "64", "topk": "2", "num_experts": "8"},
        **{"moe_tp_size": "1", "moe_ep_size": "1", "moe_dtype": "bfloat16", "distribution": "uniform"},
    },
}


def table(*rows: dict[str, str]) -> str:
    """Rows as CSV, under the names of the first one's columns."""
    return "".join(",".join(cells) + "\n" for cells in (rows[0], *(row.values() for row in rows)))


def calls() -> Iterator[Case]:
    """Calls of the Python API with wrong types and values."""
    import chipwise
    from chipwise.model.arch.arch import uniform
    from chipwise.model.arch.feed_forward import FeedForward
    from chipwise.model.arch.layer import Layer
    from chipwise.model.arch.mixers import Attention

    wrong = (None, 5, 1.5, [], {}, b"x", object(), "", "no-such", NAN)
    first: dict[str, Callable[[Any], object]] = {
        "estimate model": lambda value: chipwise.estimate(value, device="l4"),
        "estimate device": lambda value: chipwise.estimate("gpt2", device=value),
        "explain model": lambda value: chipwise.explain(value, device="l4"),
        "explain device": lambda value: chipwise.explain("gpt2", device=value),
        "compare models": lambda value: chipwise.compare(value, devices=["l4"]),
        "compare devices": lambda value: chipwise.compare(["gpt2"], devices=value),
        "resolve model": lambda value: chipwise.resolve(value),
        "load_run path": lambda value: chipwise.load_run(value),
        "report run": lambda value: chipwise.report(value),
        "search spec": lambda value: chipwise.search(value),
    }
    for name, make in first.items():
        for value in wrong:
            word = name.split()[1]
            words = (word, word.rstrip("s"), "file", "folder", f"{value!r:.20}")
            if name == "compare devices" and value is None:
                continue
            yield Case(name=f"API {name}={shown(value)}", words=words, call=lambda make=make, value=value: make(value))
    numbers = (0, -1, 1.5, "x", NAN, [], 10**40)
    sizes_of = {"prompt", "new", "prompt_tokens", "new_tokens", "batch", "tp", "pp", "ep", "dp"}
    for name in sorted(inspect.signature(chipwise.estimate).parameters.keys() & sizes_of):
        for value in numbers:
            yield Case(
                name=f"API estimate {name}={shown(value)}",
                words=(name,),
                call=lambda name=name, value=value: chipwise.estimate("gpt2", device="l4", **{name: value}),
            )
            if name == "batch":
                yield Case(
                    name=f"API Workload {name}={shown(value)}",
                    words=(name,),
                    call=lambda name=name, value=value: chipwise.Workload(**{name: value}),
                )
    for name in ("vocab_size", "d_model", "depth", "heads", "ffn_width"):
        sizes: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "depth": 1, "heads": 2, "ffn_width": 8}
        for value in numbers:
            words = ("width",) if name == "ffn_width" else ("layers", "depth") if name == "depth" else (name,)
            yield Case(
                name=f"API uniform {name}={shown(value)}",
                words=words,
                call=lambda changes={**sizes, name: value}: uniform(**changes),
            )
    head: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_size": 8}
    for name in head:
        for value in (*numbers, 4.0, None):
            yield Case(
                name=f"API Attention {name}={shown(value)}",
                words=(name,),
                call=lambda changes={**head, name: value}: Attention(**changes),
            )
    for value in ("mish", 5, None, []):
        yield Case(
            name=f"API activation={value!r}",
            words=("activation",),
            call=lambda v=value: FeedForward(width=8, activation=v),
        )
        if value is not None:
            yield Case(
                name=f"API Layer ffn={value!r}", words=("ffn",), call=lambda v=value: Layer(attention=None, ffn=v)
            )


def every() -> list[Case]:
    """All cases."""
    makers = (run_files, configs, broken_files, options, names, tables, calls)
    return [case for make in makers for case in make()]
