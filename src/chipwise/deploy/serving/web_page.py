"""Models that run in a page: ONNX Runtime Web and a page in a folder that any web server can serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.files import read_text, write_atomic, write_json
from chipwise.deploy.export.gguf_tokenizer import gguf_tokenizer
from chipwise.deploy.export.tokenizer_files import TOKENIZER, ends_of, read_tokenizer
from chipwise.deploy.runtimes import Facts
from chipwise.deploy.runtimes.web.engines import OPTIMISE, caches, facts_of
from chipwise.deploy.runtimes.web.packages import ORT, files_of
from chipwise.deploy.runtimes.web.server import HERE
from chipwise.deploy.serving.engine import CHAT_PAGE, Promise
from chipwise.errors import Unsupported

CLASSIFY_PAGE, PROCESSOR = CHAT_PAGE.with_name("classify.html"), "preprocessor_config.json"
SPLIT = ("gpt2", "gpt-2")  # by llama.cpp's names: byte-level BPE, and how text is split into words before it
_SCRIPT = '<script type="module">'


def write_page(folder: Path, *, threads: int, promise: Promise | None) -> None:
    """Adds ``index.html`` and ``web/`` to a folder with ``model.onnx``: of a decoder with its tokenizer, a page that
    continues texts; of an image classifier with its preprocessing, one that classifies images. Others get no page.

    Args:
        folder: The folder.
        threads: Threads of the runtime. Browsers give more than one only to pages with isolating headers.
        promise: What was predicted, shown beside what the page measures.

    Raises:
        Unsupported: The tokenizer is not a byte-level BPE that splits texts as those do that chipwise trains.
        Unreachable: ONNX Runtime Web is not in the cache and cannot be fetched.
        StorageError: The folder cannot be written.
    """
    facts = facts_of(folder / "model.onnx")
    scripts, page = ["decoder.js"], read_text(CLASSIFY_PAGE)
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
    for name, file in {**{name: HERE / name for name in scripts}, **files_of(ORT)}.items():
        write_atomic(web / name, file.read_bytes())
    told = {
        "model": facts["name"],
        "runtime": f"{ORT.name}, {threads} thread{'s' if threads > 1 else ''}",
        "version": ORT.version,
        "threads": threads,
        "optimise": OPTIMISE,
        "cache": caches(facts, batch=1),
        "promise": promise,
        **more,
    }
    write_json(web / "about.json", plain(told))
    write_atomic(folder / "index.html", page)


def _of_text(path: Path, facts: Facts) -> Mapping[str, object]:
    """What a page needs to know to continue texts."""
    used = gguf_tokenizer(path, vocab_size=facts["vocab_size"], max_tokens=facts["max_tokens"])
    if (used.model, used.pre) != SPLIT:
        raise Unsupported(f"{path}: pages split texts as GPT-2's tokenizer does, not as {used.model} and {used.pre}")
    about = read_tokenizer(path, max_tokens=facts["max_tokens"])
    start, ends = about.roles.get("bos", about.roles.get("eos")), sorted(ends_of(path, about))
    return {"context": facts["max_tokens"], "chats": False, "start": start, "ends": ends}


PAGES = {"browser": write_page}
"""What a model's folder needs to run in a runtime, besides the model's file, by runtime."""
