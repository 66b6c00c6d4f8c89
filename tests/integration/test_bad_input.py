"""Every mistake gives one clear message and an exit code, never a traceback."""

from __future__ import annotations

import shutil

import pytest
import yaml
from runs import EXAMPLES, chipwise, in_process

SMOKE = yaml.safe_load((EXAMPLES / "smoke.yaml").read_text())


def spec(tmp_path, **changes):
    """The smoke spec with changed fields and an absolute path of its text."""
    data = {**SMOKE, **changes}
    if data["data"] == SMOKE["data"]:
        data["data"] = {**SMOKE["data"], "paths": [str(EXAMPLES.parent / "src/chipwise/*/*.py")]}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def refused(path, tmp_path, *words: str, out=None, run=in_process) -> None:
    done = run("search", path, "--out", out or tmp_path / "run")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def space(**changes):
    return {**SMOKE["space"], **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sapce": {}}, ("sapce", "did you mean 'space'")),
        ({"target": {"device": "no-such-chip"}}, ("target.device", "local")),
        ({"target": {"runtime": "onnxruntim"}}, ("onnxruntim", "did you mean 'onnxruntime'")),
        ({"constraints": {"tpot_p99": "<= 5 parsecs"}}, ("constraints.tpot_p99", "parsecs")),
        ({"constraints": {"tpot_p99": []}}, ("constraints.tpot_p99", "empty")),
        ({"constraints": {"tpot_p99": ["<= 1 ms", ">= 2 ms"]}}, ("constraints.tpot_p99", "contradicts")),
        ({"space": space(d_model=[])}, ("space.d_model", "empty")),
        ({"space": space(layer={**SMOKE["space"]["layer"], "kv_heads": [3]})}, ("kv_heads", "divides")),
        ({"workload": {"prompt_tokens": 500, "new_tokens": 500}}, ("space.max_tokens", "1000")),
        ({"target": {"runtime": ""}}, ("target.runtime", "unknown runtime ''")),
        ({"target": {"runtime": "vllm"}}, ("target.runtime", "onnxruntime")),
        ({"space": space(max_tokens=10**40)}, ("space.max_tokens", "at most 1,000,000,000")),
        ({"space": space(depth=[10**6])}, ("space.depth", "at most 128")),
        ({"space": space(d_model=[10**40])}, ("space.d_model", "at most 1,000,000,000")),
        ({"constraints": {"peak_memory": "x" * 100_000}}, ("constraints.peak_memory", "xxx…")),
        ({"data": {"source": "files", "paths": ["nowhere/*.txt"]}}, ("spec.yaml: data.paths", "nowhere/*.txt")),
        ({"data": {"source": "files", "paths": ["/dev/zero"]}}, ("spec.yaml: data.paths", "pipe or device")),
        ({"data": {"source": "files", "paths": ["text.txt"]}}, ("spec.yaml: data.paths", "text.txt", "no such file")),
        ({"data": {"source": "files", "pahts": ["text.txt"]}}, ("spec.yaml: data.pahts", "did you mean 'paths'")),
        ({"data": {"source": "medical-definition"}}, ("did you mean 'medical-definitions'",)),
        ({"budget": {"cpu": "3 s"}}, ("budget",)),
        ({"budget": {"cpu": "20"}}, ("budget.cpu", "no unit")),
        ({"objectives": {"tpot_p50": "minimize"}}, ("objectives", "bits_per_byte")),
        ({"tasks": ["organ-systems"]}, ("tasks[0].name", "did you mean 'organ-system'")),
        ({"tasks": ["nowhere.csv"]}, ("nowhere.csv", "no such file")),
        (
            {"tasks": ["organ-system"], "constraints": {"accuracy@organ-system": ">= 85"}},
            ("constraints.accuracy@organ-system", "write '>= 85 %'"),
        ),
        ({"quality": "super-net"}, ("quality.method", "did you mean 'supernet'")),
        ({"targets": ["h100-sx"]}, ("targets[0].device", "h100-sxm")),
        ({"seed": -1}, ("seed", "at least 0")),
        ({"objectives": {"bits_per_byte": "maximize"}}, ("objectives", "bits_per_byte: minimize")),
        ({"name": "two\nlines"}, ("name", "cannot name a folder")),
    ],
)
def test_a_wrong_field_is_named(changes, words, tmp_path) -> None:
    refused(spec(tmp_path, **changes), tmp_path, *words)


def test_a_task_without_a_label_is_named_before_anything_is_trained(tmp_path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\none,a\ntwo,\nthree,b\n")
    refused(spec(tmp_path, tasks=["mine.csv"]), tmp_path, "mine.csv", "line 3", "label is missing")
    assert not (tmp_path / "run" / "trainings").exists()
    assert not (tmp_path / "run" / "profile.json").exists()


def test_limits_that_no_candidate_meets_are_named_with_the_closest_value(smoke_run, tmp_path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "profile.json").write_bytes((smoke_run / "profile.json").read_bytes())
    path = spec(tmp_path, constraints={"tpot_p99": "<= 1 ns"})
    refused(path, tmp_path, "tpot_p99 <= 1 ns", "closest candidate", out=run)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"name: [unclosed", "broken YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "spec.yaml"),
        (b"", "nothing"),
        (b"name: a\nname: b\n", "twice"),
        (b"name: a\0b\n", "control characters"),
        (b"!!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_a_broken_file_is_named(content, word, tmp_path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    refused(path, tmp_path, word, "spec.yaml")


def test_a_missing_file_is_named(tmp_path) -> None:
    refused(tmp_path / "absent.yaml", tmp_path, "absent.yaml", "no such file", run=chipwise)


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"\xff\xfe\x00binary\x00" * 1000, "text"), (b"a few words only\n", "spec.yaml: data: too little")],
)
def test_unusable_text_is_named(content, word, tmp_path) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    path = spec(tmp_path, data={"source": "files", "paths": ["text.txt"]})
    refused(path, tmp_path, word, "text.txt" if word == "text" else "")


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(spec(tmp_path), tmp_path, "file", "choose another place", out=tmp_path / "file" / "run")


def test_a_corrupt_study_is_named_with_its_line(smoke_file, smoke_run, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(smoke_run, run, ignore=shutil.ignore_patterns("trials", "trainings"))
    lines = (run / "study.journal").read_bytes().splitlines(keepends=True)
    lines[3] = b'{"op_code": 2, "work\n'
    (run / "study.journal").write_bytes(b"".join(lines))
    done = in_process("search", smoke_file, "--out", run, "--resume")
    assert done.returncode == 2
    assert "line 4" in done.stderr
    assert "Traceback" not in done.stderr


def test_report_of_no_run_says_so(tmp_path) -> None:
    done = in_process("report", tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_measure_of_an_unknown_name_offers_the_nearest() -> None:
    done = in_process("measure", "gpt22")
    assert done.returncode == 2
    assert "gpt2" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_where_it_happened(tmp_path) -> None:
    done = chipwise("--debug", "search", tmp_path / "absent.yaml")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_help_teaches() -> None:
    done = in_process("--help")
    assert done.returncode == 0
    for command in ("search", "report", "calibrate", "measure"):
        assert command in done.stdout
