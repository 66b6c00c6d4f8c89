"""``chipwise serve``: a model behind OpenAI's API, with a page to talk to it."""

from __future__ import annotations

from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import show
from chipwise.cli.output import put, say
from chipwise.core import units


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A run's or a winner's folder, an export's, a Hugging Face folder with weights, a .gguf or .onnx file."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. With 0.0.0.0 other machines can connect; they need the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option(help="API key that clients must send. Default: random if other machines can connect, else none."),
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests answered at the same time; others wait.", min=1)] = 4,
    context: Annotated[int, typer.Option(help="Maximum tokens of a prompt and its answer together.", min=2)] = 4096,
    threads: Annotated[
        int | None, typer.Option(help="Threads for each request. Default: the run's own for a winner, else 1.")
    ] = None,
) -> None:
    """Talk to a model: OpenAI's API with streaming, and a chat page that shows measured and predicted tokens/s.

    GGUF files run in llama.cpp, everything else in ONNX Runtime. Any OpenAI client can use it:

    client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")

    Ctrl-C stops the server.
    """
    with show.waiting("loading"):
        server = api.serve(model, host=host, port=port, token=token, slots=slots, context=context, threads=threads)
    with server:
        try:
            _tell(server)
            server.wait()
        except KeyboardInterrupt:
            say(f"stopped; {server.summary()}")


def _tell(server: answers.Server) -> None:
    """Prints the address at which the model is served, and its predicted speed."""
    say(server.headline())
    if (promise := server.promise) is not None:
        low, high = promise.low_s, promise.high_s
        span = "" if low is None or high is None else f", {units.show(low, 'time')} to {units.show(high, 'time')}"
        say(f"predicted: {units.show(promise.tpot_s, 'time')} a token{span} ({promise.of})")
    if not server.engine.chats:
        say(
            "note: the model has no chat template, so it continues texts; the messages of a chat are joined to one text"
        )
    put(f"OpenAI's API: {server.url}/v1")
    if server.token is not None:
        put(f"token: {server.token}")
    put(f"talk to it: {server.page}")
