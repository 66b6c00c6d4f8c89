"""llama.cpp as an engine: the server in the package ``xllamacpp``, in a separate process.

llama.cpp ends its process if it does not accept a file, and it frees a slot when its connection closes.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
from collections.abc import Generator, Sequence
from importlib.metadata import version
from pathlib import Path

from chipwise.core.workers import Companion, accompany
from chipwise.core.workers import Message as Reply
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.llama_server import LlamaServer, available
from chipwise.deploy.serving.engine import Gone, Message, Piece, Prompt, Sampling, joined
from chipwise.errors import MeasurementError, MissingExtra, SpecError

LOOK_S = 0.2  # seconds after which a waiting request checks again whether its client is still there


class LlamaEngine:
    """A GGUF file with its tokenizer. See :class:`Engine`.

    Raises:
        MissingExtra: xllamacpp is not installed.
        SpecError: The file is not GGUF, or holds no tokenizer.
        MeasurementError: llama.cpp cannot load the file.
        WorkerError: llama.cpp ended its process.
    """

    runtime = "llama.cpp"

    def __init__(self, path: Path, *, slots: int, context: int, threads: int) -> None:
        if not available():
            raise MissingExtra("xllamacpp", "all")
        file = GgufFile.open(path)
        if "tokenizer.ggml.tokens" not in file.fields:
            raise SpecError("holds no tokenizer, so it cannot read text", file=str(path))
        self.name, self.version, self.slots = path.stem, version("xllamacpp"), slots
        self.context = min(context, int(file.field("context_length", context)))
        self.chats = bool(file.fields.get("tokenizer.chat_template"))
        about = {"path": str(path), "context": self.context, "slots": slots, "threads": threads}
        self._server = Companion([sys.executable, "-m", __name__], about, name="llama.cpp")
        if "error" in self._server.greeting:
            self.close()
            raise MeasurementError(str(self._server.greeting["error"]))
        self._address = str(self._server.greeting["address"]).removeprefix("http://")

    def prompt_of(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a chat; without a chat template, the contents of the messages."""
        if not self.chats:
            return joined(messages)
        connection = http.client.HTTPConnection(self._address)
        try:
            reply = self._posted(connection, "/apply-template", {"messages": list(messages)}, lambda: False, "messages")
            return str(json.load(reply)["prompt"]) if reply is not None else ""
        finally:
            connection.close()

    def generate(self, prompt: Prompt, sampling: Sampling, *, gone: Gone) -> Generator[Piece, None, None]:
        """Yields the answer in pieces as llama.cpp sends them."""
        asked = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": -1 if sampling.max_tokens is None else sampling.max_tokens,
            "temperature": sampling.temperature,
            **{"top_p": sampling.top_p, "top_k": 0, "min_p": 0.0, "stop": list(sampling.stop)},
            **({} if sampling.seed is None else {"seed": sampling.seed % 2**32}),
            **{"stream": True, "cache_prompt": True, "timings_per_token": True},
        }
        connection = http.client.HTTPConnection(self._address)
        try:
            reply = self._posted(connection, "/completion", asked, gone, "prompt")
            for line in reply or ():
                if line.startswith(b"error:"):
                    raise MeasurementError(f"llama.cpp: {line.decode(errors='replace')}")
                if line.startswith(b"data: "):
                    yield _piece(json.loads(line[6:]))
                if gone():
                    return
        finally:
            connection.close()

    def close(self) -> None:
        """Ends llama.cpp's process."""
        self._server.close()

    def _posted(
        self, connection: http.client.HTTPConnection, place: str, data: Reply, gone: Gone, field: str
    ) -> http.client.HTTPResponse | None:
        """Returns the reply once it begins; None if the client left before that.

        Raises:
            SpecError: llama.cpp refuses the request.
            MeasurementError: llama.cpp failed or has ended.
        """
        try:
            connection.request("POST", place, json.dumps(data), {"Content-Type": "application/json"})
            while not select.select([connection.sock], [], [], LOOK_S)[0]:
                if gone():
                    return None
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            state = "failed" if self._server.running else "has ended; start chipwise serve again"
            raise MeasurementError(f"llama.cpp {state}: {error}") from None
        if reply.status == http.HTTPStatus.OK:
            return reply
        text = reply.read().decode(errors="replace")
        try:
            text = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            text = text.strip()
        if reply.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise SpecError(text, field=field)
        raise MeasurementError(f"llama.cpp: {text}")


def _piece(data: Reply) -> Piece:
    times = data.get("timings", {})
    why = {"limit": "length"}.get(data.get("stop_type", ""), "stop") if data["stop"] else None
    return Piece(
        text=str(data["content"]),
        tokens=int(data["tokens_predicted"]),
        prompt_tokens=int(data["tokens_evaluated"]),
        prompt_s=times.get("prompt_ms", 0.0) / 1e3,
        decode_s=times.get("predicted_ms", 0.0) / 1e3,
        finish="length" if why == "length" else "stop" if why else None,
    )


_kept: list[LlamaServer] = []  # until the process ends


def start(request: Reply) -> Reply:
    """Starts llama.cpp's server in this process; returns its address."""
    _kept.append(
        LlamaServer(request["path"], context=request["context"], slots=request["slots"], threads=request["threads"])
    )
    return {"address": _kept[0].address}


if __name__ == "__main__":
    accompany(start)
