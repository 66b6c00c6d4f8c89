"""Runs one command for each promise of the three field texts and writes docs/notes/promises.md.

usage: promises.py [--check | --only 35,36]

The texts (a page on GPUs, a wiki, an article) name 76 capabilities and workflows; each is stated here in our own words,
with a command whose output shows a figure. The status is

- *works*: the command ran and printed the figure;
- *in part*: the command ran and printed the figure, but something is missing, which the page names;
- *needs hardware*: the command ran and printed the figure, but the page names hardware that this machine lacks;
- *not yet*: no command does it; the command shown comes nearest.

If a command fails, or its output lacks the figure, the script ends with an error and leaves the page as it was. The
script takes about five minutes on two cores, so CI does not run it. ``--check`` runs all commands and writes nothing;
``--only`` runs the commands of the promises with these numbers and rewrites their lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

PAGE = Path(__file__).parents[1] / "notes" / "promises.md"
LLAMA, SMALL = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-0.6B"
COMMANDS = {  # in this order, in one folder; quotation marks as in a shell
    "init smoke": "init smoke",
    "init agent": "init agent",
    "init phone": "init phone",
    "init ranking": "init ranking",
    "init vision": "init vision",
    "init orders": "init orders",
    "init conservative": "init conservative",
    "search": "search smoke.yaml",
    "learnt": "prior show",
    "grow": "search conservative.yaml",
    "space": "space smoke.yaml",
    "space phone": "space phone.yaml",
    "space vision": "space vision.yaml",
    "space ranking": "space ranking.yaml",
    "space orders": "space orders.yaml",
    "gptq": "export runs/smoke --to onnx --weights int4 --method gptq --out smoke-int4",
    "onnx": "export runs/smoke --to onnx --out smoke-onnx",
    "train": "train small.yaml --cpu-seconds 20 --out small",
    "three": "quantize small/model --data notes.txt --context 256 --dry-run",
    "kit": "kit runs/smoke",
    "estimate": f"estimate {LLAMA} --device h100-sxm --batch 16 --prompt 1500 --new 250",
    "formats": f"estimate {LLAMA} --device h100-sxm --weights fp8 --kv fp8",
    "batch": f"estimate {LLAMA} --device h100-sxm --batch 128",
    "kernels": f"estimate {LLAMA} --device h100-sxm --kernels",
    "mixture": "estimate mistralai/Mixtral-8x7B-v0.1 --device h100-sxm --tp 2 --ep 2",
    "tpu": f"estimate {LLAMA} --device tpu-v4",
    "phone": f"estimate {SMALL} --device snapdragon-8-elite --prompt 64 --prompt-p99 900 --new 64",
    "trtllm": f"estimate {LLAMA} --device h100-sxm --runtime trtllm --weights fp8",
    "own": f'estimate {LLAMA} --device rtx-4090 --buy list --electricity "0.30 USD/kWh"',
    "explain": f"explain {LLAMA} --device a100-sxm-80gb --prompt 2000 --batch 16 --all",
    "small": "explain runs/smoke/winner --device raspberry-pi-5 --runtime onnxruntime --prompt 16 --new 16",
    "held": "explain runs/smoke/winner --device snapdragon-8-elite --runtime llama.cpp --prompt 16 --new 16",
    "explain fp8": f"explain {LLAMA} --device h100-sxm --all",
    "compare": f"compare meta-llama/Llama-2-7b-hf {LLAMA} --device a100-sxm-80gb,l4 --prompt 32000",
    "sheet": "devices show h100-sxm",
    "devices": "devices",
    "runtimes": "runtimes",
    "strategies": "strategies",
    "step": "training-step gpt2 --batch 12 --checkpoint --device a100-sxm-80gb",
    "parallel": f"training-step {LLAMA} --device h100-sxm --tp 8 --batch 8",
    "diffusion": "pictures black-forest-labs/FLUX.1-dev --device h100-sxm --steps 28",
    "parts": "parts openai/whisper-small --device snapdragon-8-elite --weights w8a16",
    "law": f"estimate {LLAMA} --device h100-sxm --train-tokens 2T",
    "batching": "simulate bert-large-uncased --device a100-sxm-80gb --rate 800/s --prompt 120 --max-tokens 600",
    "gaps": f"simulate {LLAMA} --device h100-sxm --rate 8/s --prompt 1500 --new 250",
    "disturbed": f"simulate {LLAMA} --device h100-sxm --rate 8/s --prompt 1500 --new 250 --slow-share 5% "
    "--slow-factor 1.5 --network-p50 20ms --network-p99 120ms",
    "plan": f"plan {LLAMA} --rate 8/s --new 250 --itl-p99 100ms --device h100-sxm,l40s --tp 1 --out plan.json",
    "apart": f"plan {LLAMA} --rate 8/s --prompt 3000 --new 200 --device h100-sxm,l40s --tp 1 --fleets together,apart",
    "bill": 'bill plan.json --growth "8 %/month" --buy "28000 USD" --electricity "0.30 USD/kWh"',
    "stores": 'bill --machines 4000 --power 150W --electricity "0.15 USD/kWh" --months 1',
    "agent": "agent agent.yaml",
    "fused": "measure block.py:build --shape src=1,1,128 --profile --no-keep",
    "compiled": "measure block.py:build --shape src=1,128,128 --runtime tvm --trials 64 --no-keep",
    "grouped": "measure block.py:experts --shape x=8,4,128 --profile --no-keep",
    "measure": "measure gpt2 --prompt 32 --new 16 --no-keep",
    "hot": f"estimate {SMALL} --device raspberry-pi-5 --prompt 64 --new 64 --ambient 45C",
    "sustained": "measure runs/smoke/winner --sustained 10s --no-keep",
}
EXAMPLES = ("smoke", "agent", "phone", "ranking", "vision", "orders", "conservative")
BLOCK = """import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(8, 128, 256)), nn.Parameter(torch.randn(8, 256, 128))

    def forward(self, x):
        return torch.relu(x @ self.up) @ self.down


def experts():
    return Experts().eval()


def build():
    layer = nn.TransformerEncoderLayer(128, 4, 512, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
"""
SMALL_DECODER = """schema: chipwise.arch/1
name: small
vocab_size: 1024
d_model: 128
max_tokens: 256
layers:
  - &layer {attention: {heads: 4, kv_heads: 2, head_size: 32}, ffn: {width: 256}}
  - *layer
"""


@dataclass(frozen=True)
class Promise:
    """What a user can do, the command that shows it, and a pattern that finds the figure in the command's output.

    At most one of these gives the reason of a status other than *works*: ``missing`` names what is missing (*in part*),
    ``hardware`` the hardware that is missing (*needs hardware*), ``instead`` what is missing (*not yet*).
    """

    number: int
    says: str
    command: str
    figure: str
    missing: str = ""
    hardware: str = ""
    instead: str = ""

    @property
    def status(self) -> str:
        """The status, with its reason unless it is *works*."""
        for word, reason in (("not yet", self.instead), ("needs hardware", self.hardware), ("in part", self.missing)):
            if reason:
                return f"*{word}*: {reason}"
        return "*works*"


FUSED = r"without the runtime's optimisations +\d.*"
HELD = r"(a token [^:]*? holds: read at [\s\S]*?)\s+of memory"
PRIOR = r"\d+ training runs? in"
FILES = "files for QNN, and a run on a board or a phone"
THREE = r"weights [\s\S]*? activations [\s\S]*? KV [\s\S]*?a token, predicted"
GPU = "a GPU; the same scripts are tested on a CPU"
TPOT, TTFT, MFU = r"TPOT +[\d.]+ .?s", r"TTFT of one prompt +[\d.]+ .?s", r"MFU [\d.]+ %, MBU [\d.]+ %"
TRAINED = r"report: ([\d,]+ priced, \d+ trained, \d+ measured)"
CHOSEN = r"d\d+ L\d h\S+ (?:relu|swiglu):\d+ .*"
DISTINCT = r"[\d.,e+]+ distinct designs"
PROMISES = (
    Promise(1, "The level of memory that bounds an operator is named.", "small", HELD),
    Promise(2, "Used shares of the peak FLOPs and of the bandwidth, and each operator's arithmetic intensity.",
            "estimate", MFU),
    Promise(3, "Matrix units by number format, with their tile sizes.", "sheet", r"tile\.bf16 +\S+"),
    Promise(4, "Fused kernels are distinguished from unfused ones.", "fused", FUSED),
    Promise(5, "Attention in tiles that stay on the chip.", "explain", r"attention\.attend.*?\d+ %"),
    Promise(6, "Widths that suit the chip's tiles.", "grow",
            r"predicted effect of alignment[\s\S]*?\)\s.*"),
    Promise(7, "Norm before each block.", "space orders", r"(?m)(d\d+ L\d .*?norm:\w+ .*)$"),
    Promise(8, "The activation function is a choice of each layer.", "space", CHOSEN),
    Promise(9, "Formats of weights, activations and cache for a chip.", "three", THREE),
    Promise(10, "Post-training rounding with calibration data, and GGUF files.", "gptq", r"rounded by: .*",
            "AWQ and HQQ"),
    Promise(11, "Shared weights, and activations that are recomputed to save memory.", "step", r"recomputed +\S+ ms"),
    Promise(12, "A benchmark of a model on a GPU.", "measure", r"tpot_p50 +\S+ .?s", hardware=GPU),
    Promise(13, "Times on a GPU from the GPU's own clock, after synchronisation.", "measure", r"ttft_p50 +\S+ .?s",
            hardware=GPU),
    Promise(14, "Training and serving over several devices.", "parallel", r"step +\S+ ms",
            hardware="several GPUs; such runs are predicted, and tests run them in several processes on a CPU"),
    Promise(15, "FP8 only in layers that tolerate it.", "explain fp8", r"weights in fp8, except for \d+ of \d+ layers",
            "the loss of a file with such mixed formats, measured in vLLM"),
    Promise(16, "Operators that are fused into groups.", "fused", FUSED),
    Promise(17, "Products of many experts as one grouped product.", "grouped",
            r"its grouped products \(2\) one by one +\d.*"),
    Promise(18, "Working sets that fit into a cache.", "held", HELD,
            hardware="a GPU or a phone to confirm it; the speeds of caches are from published measurements"),
    Promise(19, "A limit on MFU, the used share of the peak.", "space phone", r"mfu +least +[\d.]+ %"),
    Promise(20, "One design that suits chips of two makers.", "compare", r"l4: vllm.*"),
    Promise(21, "Quality against cost, decided at design time.", "search", TRAINED),
    Promise(22, "A request's many candidates share one context.", "explain",
            r"128 candidates .*? times as much as one"),
    Promise(23, "A model over several cards.", "parallel", r"memory per device +\S+ GB",
            hardware="several cards; sharded runs are predicted"),
    Promise(24, "Batches filled by tokens, and the load at which a server saturates.", "batching",
            r"saturates at \S+ requests/s"),
    Promise(25, "Model and serving designed together, instead of one after the other.", "search", TRAINED,
            "a gate for CI, and a new search that starts when measurements of deployed models drift"),
    Promise(26, "Ranking models.", "space ranking", DISTINCT,
            "a measured ranker sharded over processes, to compare with its prediction; tables of realistic size"),
    Promise(27, "Compilers that tune the chosen model.", "compiled",
            r"in turns with ONNX Runtime: .*? times as long"),
    Promise(28, "The price of a query.", "own", r"price of output +\$\S+ per million tokens"),
    Promise(29, "Monthly cost: now, and with growth.", "bill", r"rent .*? in month 24"),
    Promise(30, "Chips of makers besides NVIDIA, such as TPUs.", "tpu",
            TPOT, "validation against published runs of these chips"),
    Promise(31, "Inference on the device.", "kit", r"\d+ models in \S+", FILES),
    Promise(32, "Streams with hard limits on the gap between tokens.", "gaps", r"P99 gap between tokens \S+ .?s"),
    Promise(33, "Small devices with models tuned for them.", "phone", TPOT, "LoRA; microcontrollers"),
    Promise(34, "Large batches, their throughput and memory.", "batch", r"throughput, all requests +\S+ \S+"),
    Promise(35, "Speed in hot surroundings.", "hot", r"TPOT under long load +.*?\)",
            hardware="a device in a hot room, which would confirm the prediction; kits and `chipwise measure` "
                     "record speed and temperature on such a device"),
    Promise(36, "Speed after minutes of load.", "hot", r"it keeps .*? of its speed"),
    Promise(37, "The effect of neighbours on a shared machine.", "disturbed", r"P99 gap between tokens \S+ .?s"),
    Promise(38, "The effect of networks with varying delay.", "disturbed", r"P99 TTFT \S+ ms"),
    Promise(39, "Thousands of designs, judged by a model that learnt from earlier training runs.", "learnt", PRIOR),
    Promise(40, "Search by reinforcement, evolution, gradients and grids.", "strategies", r"reinforce .*?trials"),
    Promise(41, "Early stopping, predictors, shared weights.", "strategies", r"halving .*"),
    Promise(42, "A limit on P99 for a chip that is not here.", "phone", r"P99 +\S+ .?s \(.*?\)"),
    Promise(43, "A power budget of a phone.", "space phone", r"power +least +\S+ .?W"),
    Promise(44, "The electricity cost of devices in many stores.", "stores", r"electricity \$[\d,]+"),
    Promise(45, "All limits of a phone at once.", "space phone", r"power <= 2\sW: [\s\S]*?it meets: <= \S+\sW",
            hardware="a phone to confirm it; the command predicts which limit cannot be met, and the nearest "
                     "limit that can be met"),
    Promise(46, "Depth, width, heads and kernels as choices of each layer.", "space", CHOSEN),
    Promise(47, "Number formats of activations.", "three", THREE),
    Promise(48, "A space that grows where the best designs lie at its edge.", "grow",
            r"it was widened by [\s\S]*? limits"),
    Promise(49, "Training that takes the later number format into account.", "onnx", r"rounded by: .*",
            "an option in run files that makes the last part of training quantisation-aware"),
    Promise(50, "Compiled and measured on the target.", "kit", r"\d+ models in \S+", FILES),
    Promise(51, "Cost models combined with measurements.", "search", TRAINED),
    Promise(52, "Development boards.", "kit", r"\d+ models in \S+", FILES),
    Promise(53, "Why a kernel is slow.", "explain", r"short kernels +\S+ .?s", "hardware counters"),
    Promise(54, "The front of quality and cost, and its knee.", "search", r"winner +reference design +knee"),
    Promise(55, "A design that reaches a stated accuracy, time and power on a phone.", "space phone", DISTINCT,
            hardware="a result from a real phone; the command predicts which limit is not met, and by how much"),
    Promise(56, "Grouped feed-forwards in place of dense ones.", "space orders", r"(?m)(d\d+ L\d .*?-g4:.*)$"),
    Promise(57, "The order of attention and feed-forward.", "space orders", r"(?m)(d\d+ L\d .*?-none.*)$"),
    Promise(58, "Fewer heads, wider feed-forward.", "explain", r"\d+ KV heads -> \d+"),
    Promise(59, "A search that is better than random search.", "strategies", r"random +as a baseline",
            "a gain on real training runs of images and sounds, where searches only equalled random search"),
    Promise(60, "Predictors that learn from deployed devices.", "runtimes", r"\d+ runtimes",
            "reading devices' measurements as they arrive (chipwise teach reads tables and kits' results)"),
    Promise(61, "Dozens of different target devices.", "devices", r"(?m)^xring-o1 +.*?GB/s"),
    Promise(62, "Spaces and tables of other search projects.", "strategies", r"gradient .*?DARTS",
            instead="reading the spaces of such projects where they are installed"),
    Promise(63, "Schedules tuned by a compiler.", "compiled", r"a pass after \d+ trials"),
    Promise(64, "TensorRT-LLM.", "trtllm", TPOT, "a measured run; it is only predicted"),
    Promise(65, "Vizier's designers.", "strategies", r"vizier .*?nsga2\)", "compilation for TPUs"),
    Promise(66, "Tables of published search benchmarks.", "strategies", r"Scores on spaces with known Pareto fronts",
            "a documented example with HW-NAS-Bench"),
    Promise(67, "Phones, boards and browsers.", "phone", TPOT,
            hardware="a phone or a board; browsers measure here (measure --runtime browser)"),
    Promise(68, "Models for edge devices, in the sizes that people deploy.", "phone",
            TPOT, "searches at these sizes; so far `chipwise shrink` starts from models of these sizes"),
    Promise(69, "A language model of 100 M parameters, best for a phone.", "space phone", DISTINCT,
            instead="such a model, made from public weights, with its quality and its energy"),
    Promise(70, "The cheapest computation for an answer.", "plan", r"\$\S+ per million output tokens",
            "searches at the sizes that people deploy"),
    Promise(71, "Images, speech, diffusion.", "diffusion", r"image +\S+ \S+|\d\S* s",
            "large models; only small ones were trained"),
    Promise(72, "Video in real time on one device.", "space vision", r"fps .*"),
    Promise(73, "Agents that see, think and act in time.", "agent", r"move think to .*? P99 \S+ s.*"),
    Promise(74, "Four questions about every model: which chip, how fast, at what price, and does it suit the chip.",
            "search", TRAINED),
    Promise(75, "The whole life cycle of a model.", "search", TRAINED, "see 25"),
    Promise(76, "Prefill and decode on different machines, with NVIDIA Dynamo's file.", "apart",
            r"first bottleneck: .*",
            "a check of the file by Dynamo's own parser"),
)  # fmt: skip


def main() -> None:
    """Runs all commands, and writes the page unless ``--check`` is given."""
    only = {int(number) for number in sys.argv[-1].split(",")} if "--only" in sys.argv else None
    chosen = [promise for promise in PROMISES if only is None or promise.number in only]
    outputs = run_all({promise.command for promise in chosen})
    rows = {} if only is None else dict(re.findall(r"(?m)^\| (\d+) (\|.*)$", PAGE.read_text(encoding="utf-8")))
    failed = []
    for promise in chosen:
        found = re.search(promise.figure, outputs[promise.command], flags=re.MULTILINE)
        if found is None:
            failed.append(f"{promise.number}: no {promise.figure!r} in chipwise {COMMANDS[promise.command]}")
            continue
        figure = " ".join(found[found.lastindex or 0].split()).replace("|", "\\|")
        command = COMMANDS[promise.command].replace("|", "\\|")
        rows[str(promise.number)] = f"| {promise.says} | {promise.status} | `chipwise {command}` | {figure} |"
    if failed:
        sys.exit("\n".join(failed))
    if "--check" not in sys.argv:
        PAGE.write_text(page([f"| {number} {row}" for number, row in rows.items()]), encoding="utf-8")


def run_all(wanted: set[str]) -> dict[str, str]:
    """Runs the wanted commands in a temporary folder and returns their outputs by name; a failure ends the script."""
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "block.py").write_text(BLOCK, encoding="utf-8")
        Path(folder, "small.yaml").write_text(SMALL_DECODER, encoding="utf-8")
        Path(folder, "notes.txt").write_text("\n".join(topics.values())[:40_000], encoding="utf-8")
        environment = os.environ | {"COLUMNS": "300", "CHIPWISE_HOME": f"{folder}/home", "NO_COLOR": "1"}
        for name, command in COMMANDS.items():
            if name not in wanted and not any(command == first for each in wanted for first in before(each)):
                continue
            print(f"chipwise {command}", file=sys.stderr, flush=True)
            words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', command)]
            done = subprocess.run(
                [sys.executable, "-m", "chipwise", *words], cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode not in (0, 4):  # 4: a busy machine left limits unconfirmed
                sys.exit(f"chipwise {command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            outputs[name] = done.stdout + done.stderr
    return outputs


def before(name: str) -> list[str]:
    """The commands that write the files that the command ``name`` reads."""
    files = re.findall(r"[\w/]+\.(?:yaml|json)|runs/smoke|small/model", COMMANDS[name])
    writers = {f"{stem}.yaml": f"init {stem}" for stem in EXAMPLES}
    writers |= {"runs/smoke": COMMANDS["search"], "plan.json": COMMANDS["plan"], "small/model": COMMANDS["train"]}
    found = [writers[file] for file in files if file in writers and writers[file] != COMMANDS[name]]
    found += [COMMANDS["search"]] if name == "learnt" else []
    return found + ([COMMANDS["init smoke"]] if COMMANDS["search"] in found else [])


def page(rows: list[str]) -> str:
    """The text of the page with these table rows."""
    words = ("works", "in part", "needs hardware", "not yet")
    counts = {word: sum(promise.status.startswith(f"*{word}*") for promise in PROMISES) for word in words}
    counted = ", ".join(f"“{word}” {count}" for word, count in counts.items())
    return (
        "# What the field promises\n\n"
        "Three texts about models that are designed for their hardware name 76 capabilities. The table states each\n"
        "capability in our own words, with a command that shows how far chipwise provides it, and a figure that the\n"
        "command printed. After the status *in part* or *not yet*, the table says what is missing; after *needs\n"
        "hardware*, it names the missing hardware. `python docs/scripts/promises.py` runs all commands and writes\n"
        "this page; the times of searches and measurements are those of the machine on which the script ran last.\n"
        "`block.py` "
        "contains two layers of PyTorch's `nn.TransformerEncoder` of width 128, and eight experts of 128 x 256;\n"
        "`notes.txt` is a part of Python's manual. A figure from `measure --profile` shows the number of operators,\n"
        "the time of a pass, and the ratio of this time to that of a pass of the unchanged graph.\n\n"
        f"Number of promises by status: {counted}.\n\n"
        "| # | promise | status: what is missing | command | figure |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
