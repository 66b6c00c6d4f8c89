"""Engines that run models in a page: ONNX Runtime Web for ONNX files, wllama for GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.extras import optional_imports
from chipwise.deploy.runtimes import Facts
from chipwise.deploy.runtimes.web.packages import ORT, WLLAMA, Package, files_of
from chipwise.errors import MeasurementError, UnknownName, Unsupported

OPTIMISE = "basic"  # as ``onnx_session.session_options`` does
CACHES = ("f32", "f16", "q8_0", "q4_0")
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine: its npm package, the page's module that calls it, and the settings for loading a model."""

    name: str  # name of the runtime
    package: Package
    module: str
    facts: Callable[[Path], Facts]
    # returns those settings, given facts, capacity, batch and options
    load: Callable[[Facts, int, int, Mapping[str, object]], Mapping[str, object]]
    worker: bool = False  # whether models run in a worker instead of the page's main thread

    def scripts(self) -> Mapping[str, Path]:
        """Maps names to files; the page requests the files under these names.

        Raises:
            Unreachable: The package is not in the cache and cannot be fetched.
        """
        return {"decoder.js": HERE / self.module, **files_of(self.package)}


def facts_of(path: Path) -> Facts:
    """The metadata of a file that chipwise wrote.

    Raises:
        MeasurementError: chipwise did not write the file, or its weights are in a second file.
        MissingExtra: onnx is not installed.
    """
    with optional_imports():
        import onnx
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise MeasurementError(f"{path}: not an ONNX file that can be read: {error}") from None
    text = next((item.value for item in model.metadata_props if item.key == "chipwise"), None)
    if text is None:
        raise MeasurementError(
            f"{path}: this ONNX file has no chipwise metadata; the browser only runs files that chipwise exported"
        )
    if path.with_name(f"{path.name}.data").exists():
        raise MeasurementError(
            f"{path}: a model above 2 GiB, which is stored in two files, does not fit in a page's memory"
        )
    found: Facts = json.loads(text)
    return found


def caches(facts: Facts, batch: int) -> dict[str, list[int]]:
    """Shapes of a decoder's caches before the first token. Keys and values grow; states of convolutions do not."""
    kv = {f"{i}.{part}": [batch, heads, 0, size] for i, heads, size in facts.get("kv", ()) for part in ("key", "value")}
    return kv | {name: [batch, channels, inputs] for name, channels, inputs in facts.get("conv", ())}


def _load_onnx(facts: Facts, capacity: int, batch: int, options: Mapping[str, object]) -> Mapping[str, object]:
    if options:
        raise MeasurementError(f"the browser takes no options, but {sorted(options)} were given")
    return {"optimise": OPTIMISE, "cache": caches(facts, batch)}


def gguf_facts(path: Path) -> Facts:
    """Names and sizes of a GGUF file, whichever program wrote it.

    Raises:
        MeasurementError: The file is not GGUF.
        MissingExtra: gguf is not installed.
    """
    with optional_imports():
        from gguf import GGUFReader
    try:
        reader = GGUFReader(path)
        told = {name: reader.fields[name].contents() for name in ("chipwise", "general.name") if name in reader.fields}
        own: Facts = json.loads(told.get("chipwise", "{}"))
        family = reader.fields["general.architecture"].contents()
        positions = int(reader.fields[f"{family}.context_length"].contents())
        vocab_size = next(int(each.shape[1]) for each in reader.tensors if each.name == "token_embd.weight")
    except (ValueError, LookupError, OverflowError, OSError, StopIteration) as error:
        raise MeasurementError(f"{path}: not a GGUF file that can be read: {error}") from None
    name = str(own.get("name", told.get("general.name", "")))
    return {"design": own.get("design", ""), "name": name, "vocab_size": vocab_size, "max_tokens": positions}


def _load_gguf(facts: Facts, capacity: int, batch: int, options: Mapping[str, object]) -> Mapping[str, object]:
    if set(options) - {"cache"}:
        raise MeasurementError(f"wllama takes only the option `cache`, but {sorted(options)} were given")
    if (cache := options.get("cache", "f32")) not in CACHES:
        raise UnknownName("cache format", str(cache), CACHES)
    if batch != 1:
        raise Unsupported(f"wllama runs one sequence, not {batch}; use --batch 1")
    return {"capacity": capacity, "cache": cache}


ORT_WEB = Engine(name="browser", package=ORT, module="decoder.js", facts=facts_of, load=_load_onnx)
LLAMA_WEB = Engine(name="wllama", package=WLLAMA, module="wllama.js", facts=gguf_facts, load=_load_gguf, worker=True)
ENGINES = {engine.name: engine for engine in (ORT_WEB, LLAMA_WEB)}
