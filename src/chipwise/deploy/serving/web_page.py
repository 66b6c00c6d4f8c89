"""Adds a web page and an engine (ONNX Runtime Web or wllama) to a model's folder, which any web server can serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.files import read_text, write_atomic, write_json
from chipwise.deploy.export.exporters import suffix_of
from chipwise.deploy.export.gguf_tokenizer import gguf_tokenizer
from chipwise.deploy.export.tokenizer_files import TOKENIZER, ends_of, read_tokenizer
from chipwise.deploy.runtimes import Facts
from chipwise.deploy.runtimes.web.engines import HERE, ORT_WEB, Engine
from chipwise.deploy.serving.engine import CHAT_PAGE, Promise
from chipwise.errors import Unsupported

CLASSIFY_PAGE, PROCESSOR = CHAT_PAGE.with_name("classify.html"), "preprocessor_config.json"
SPLIT = ("gpt2", "gpt-2")  # llama.cpp's names of byte-level BPE and of the split into words
_SCRIPT = '<script type="module">'


def write_page(folder: Path, *, engine: Engine = ORT_WEB, threads: int, promise: Promise | None) -> None:
    """Adds ``index.html`` and ``web/`` to a folder with a model. For a decoder with its tokenizer the page continues
    texts; for an image classifier with its preprocessing it classifies images. Other models get no page.

    Args:
        folder: The folder.
        engine: What runs the model: ``model.onnx`` in ONNX Runtime Web, ``model.gguf`` in wllama.
        threads: Threads of the runtime. Browsers allow more than one only if the web server sends the headers for
            cross-origin isolation.
        promise: The predicted speed, shown next to the speed that the page measures.

    Raises:
        Unsupported: The tokenizer is not a byte-level BPE that splits texts like the tokenizers that chipwise trains.
        Unreachable: The engine is not in the cache and cannot be fetched.
        StorageError: The folder cannot be written.
    """
    file = f"model{suffix_of(engine.name)}"
    facts = engine.facts(folder / file)
    scripts, page = [], read_text(CLASSIFY_PAGE)
    more: Mapping[str, object] = {}
    if (path := folder / TOKENIZER).is_file() and "encodes" not in facts:
        scripts += ["engine.js", "tokenizer.js"]
        page = read_text(CHAT_PAGE).replace(
            _SCRIPT, f'<script type="module" src="web/engine.js"></script>\n{_SCRIPT}', 1
        )
        more = _of_text(path, facts)
    elif "image" not in facts or not (folder / PROCESSOR).is_file():
        return
    web = folder / "web"
    web.mkdir(exist_ok=True)
    for name, content in {**{name: HERE / name for name in scripts}, **engine.scripts()}.items():
        write_atomic(web / name, content.read_bytes())
    told = {
        "model": facts["name"],
        "runtime": f"{engine.package.name}, {threads} thread{'s' if threads > 1 else ''}",
        "version": engine.package.version,
        "file": file,
        "threads": threads,
        **engine.load(facts, facts.get("max_tokens", 1), 1, {}),
        "promise": promise,
        **more,
    }
    write_json(web / "about.json", plain(told))
    write_atomic(folder / "index.html", page)


def _of_text(path: Path, facts: Facts) -> Mapping[str, object]:
    """Returns the facts that a page needs to continue texts."""
    used = gguf_tokenizer(path, vocab_size=facts["vocab_size"], max_tokens=facts["max_tokens"])
    if (used.model, used.pre) != SPLIT:
        raise Unsupported(
            f"{path}: a page can only split texts as GPT-2's tokenizer does, not as {used.model} and {used.pre}"
        )
    about = read_tokenizer(path, max_tokens=facts["max_tokens"])
    start, ends = about.roles.get("bos", about.roles.get("eos")), sorted(ends_of(path, about))
    return {"context": facts["max_tokens"], "chats": False, "start": start, "ends": ends}
