"""What the file of a resumed run may change, and how everything else is refused."""

from __future__ import annotations

import copy

import pytest

from chipwise.core.files import read_json
from chipwise.design.run.changes import check_changes
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import run_spec
from chipwise.design.run.start_spec import any_spec
from chipwise.errors import SpecError

FIELDS = {
    "name": "toy",
    "workload": {},
    "space": {
        "d_model": [32, 64],
        "depth": [1],
        "vocab_size": [512],
        "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [64]},
    },
    "data": {"source": "medical-definitions"},
    "constraints": {"tpot_p99": "<= 1 ms"},
    "budget": {"cpu": "10 min", "workers": 2},
    "targets": [{"device": "raspberry-pi-5", "constraints": {"tpot_p50": "<= 1 s"}}],
    "seed": 1,
}


def spec(**changes):
    data = copy.deepcopy(FIELDS)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        place[last] = value
    return run_spec(data, file="toy.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"constraints": {}},
        {"constraints": {"tpot_p99": "<= 2 ms", "peak_memory": "<= 1 GB"}},
        {"targets__0__constraints": {}},
        {"confidence": "80 %"},
        {"budget": {"cpu": "1 h", "final": "2 min", "workers": 1}},
        {"seed": 2},
        {"train": {"on": "jobs"}, "budget": {"cpu": "1 h"}},
    ],
)
def test_limits_budget_and_seed_may_change_and_where_it_trains(change, tmp_path) -> None:
    with RunFolder(tmp_path / "r", spec()) as folder:
        folder.study.touch()
    with RunFolder(tmp_path / "r", spec(**change), resume=True) as folder:
        assert folder.before == spec()
        assert folder.identity == spec().identity  # that of the trials
        assert read_json(tmp_path / "r" / "spec.json")["spec"] != folder.spec  # until the change is taken up
        folder.write_spec()
    with RunFolder(tmp_path / "r", spec(**change), resume=True) as folder:
        assert folder.before is None
        assert folder.identity == spec().identity
    with RunFolder(tmp_path / "r", spec(), resume=True) as folder:  # and back
        assert folder.before == spec(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"space__d_model": [32, 128]},
            r"^space\.d_model: was \[32, 64\] and is now \[32, 128\]; the run in r can",
        ),
        ({"space__layer__heads": [2]}, r"^space\.layer\.heads: was \[1\]"),
        ({"workload": {"prompt_tokens": 3}}, r"^workload\.prompt_tokens: was \d+ and is now 3"),
        ({"data__source": "wikitext-2"}, r"^data\.source: was 'medical-definitions' and is now"),
        ({"target": {"threads": 2}}, r"^target\.threads: was 1 and is now 2"),
        ({"targets__0__weight": 2.0}, r"^targets\[0\]\.weight"),
        ({"targets": []}, r"^targets.*: was"),
        ({"train": {"precision": "fp32"}}, r"^train\.precision: was left out and is now 'fp32'"),
        ({"quality": "proxy"}, r"^quality\.method"),
        ({"budget": {"tokens": "2M"}}, r"^budget: was 'cpu' and is now 'tokens'"),
    ],
)
def test_any_other_difference_is_refused_by_the_name_of_its_field(change, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        check_changes(spec(), spec(**change), folder="r")
    assert caught.value.exit_code == 2
    assert "limits (constraints, confidence), the budget and the seed" in str(caught.value)
    assert "--restart" in str(caught.value)


LAW = {
    **{name: FIELDS[name] for name in ("name", "workload", "space")},
    "quality": "law",
    "target": "h100-sxm",
    "constraints": {"tpot_p50": "<= 12 ms"},
    "budget": {"tokens": "100B"},
}
CUT = {
    "name": "small",
    "start_from": "model",
    "workload": {"prompt_tokens": 8, "new_tokens": 4},
    "constraints": {"ttft_p50": "<= 60 % of original"},
    "data": {"source": "files", "paths": ["text.txt"]},
    "budget": {"cpu": "5 min"},
}


def of_kind(fields, **changes):
    return any_spec({**fields, **changes}, file="run.yaml")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (LAW, {"constraints": {"tpot_p50": "<= 20 ms"}}),
        (LAW, {"confidence": "60 %"}),
        (LAW, {"seed": 5}),
        (CUT, {"constraints": {"ttft_p50": "<= 80 % of original"}}),
        (CUT, {"constraints": {"parameters": "<= 1M"}, "budget": {"cpu": "1 h"}}),
    ],
)
def test_searches_by_law_and_runs_from_a_model_take_other_limits(kind, change, tmp_path) -> None:
    with RunFolder(tmp_path / "r", of_kind(kind)) as folder:
        folder.study.touch()
    with RunFolder(tmp_path / "r", of_kind(kind, **change), resume=True) as folder:
        assert folder.before == of_kind(kind)
        folder.write_spec()
    with RunFolder(tmp_path / "r", of_kind(kind, **change), resume=True) as folder:
        assert folder.before is None


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (
            LAW,
            {"budget": {"tokens": "200B"}},
            r"^budget\.tokens: was '100B' and is now '200B'; .* only with new limits .* or another seed;",
        ),
        (CUT, {"seed": 1}, r"^seed: was 0 and is now 1; .* only with new limits \(constraints\) or another budget;"),
        (CUT, {"start_from": "other"}, r"^start_from: was 'model' and is now 'other'"),
        (CUT, {"weights": "int8"}, r"^weights: was 'fp32' and is now 'int8'"),
        (CUT, {"workload": {"prompt_tokens": 9, "new_tokens": 4}}, r"^workload\.prompt_tokens: was 8 and is now 9"),
    ],
)
def test_what_they_keep_is_refused_by_name(kind, change, said) -> None:
    with pytest.raises(SpecError, match=said):
        check_changes(of_kind(kind), of_kind(kind, **change), folder="r")


def test_a_search_does_not_become_a_run_from_a_model(tmp_path) -> None:
    with RunFolder(tmp_path / "r", spec()) as folder:
        folder.study.touch()
    with pytest.raises(
        SpecError, match=r"^start_from: the run in .* searches a space, but the new run does not; .*--out"
    ):
        RunFolder(tmp_path / "r", of_kind(CUT), resume=True)
