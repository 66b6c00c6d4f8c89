"""``chipwise serve``: what clients get is what the model computes, and one client does not disturb another."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime", reason="onnxruntime comes with chipwise[search]")
pytest.importorskip("tokenizers", reason="tokenizers comes with chipwise[search]")

from tokenizers import Tokenizer

import chipwise
from chipwise.core.files import write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.sources import Source, write_gguf, write_onnx
from chipwise.deploy.runtimes import llama_server
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession
from chipwise.deploy.serving.engine import Message, Piece, Sampling
from chipwise.deploy.serving.onnx_engine import OnnxEngine
from chipwise.deploy.serving.server import Server
from chipwise.deploy.serving.texts import ChatTemplate, Written, chosen
from chipwise.errors import InputError, OutputError, SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.training.data.tokenizer import train_tokenizer

ARCH = uniform(vocab_size=280, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=96, name="small")
TEXTS = ["a fever is a fever", "pain in the chest, 3 days", "naïve café"] * 4
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}{{ '>' if add_generation_prompt }}"
PROMPT = "a fever in the chest"
needs_llama = pytest.mark.skipif(not llama_server.available(), reason="xllamacpp comes with chipwise[all]")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A Hugging Face folder with a tokenizer, a chat template, and random weights."""
    folder = tmp_path_factory.mktemp("model") / "small"
    tokens = folder.parent / "tokens.json"
    train_tokenizer(TEXTS, ARCH.vocab_size).save(str(tokens))
    weights = {name: 4 * value for name, value in random_weights(ARCH, seed=1).items()}
    save_pretrained(ARCH, weights, tokens, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def exported(model) -> Path:
    folder = model.parent / "onnx"
    folder.mkdir()
    write_onnx(Source.read(model), Design(arch=ARCH), folder)
    return folder


@pytest.fixture(scope="module")
def server(exported):
    with chipwise.serve(exported, port=0, slots=2) as found:
        yield found


def post(server: Server, path: str, body: object, **headers: str) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, text, {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    found = json.loads(reply.read())
    connection.close()
    return reply.status, found


def complete(server: Server, prompt: object = PROMPT, **fields: object) -> dict:
    status, found = post(server, "/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24, **fields})
    assert status == 200, found
    return found


def streamed(server: Server, path: str, body: dict) -> list[dict]:
    """The events of a stream, which must end as OpenAI's do."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.getheader("Content-Type", "").startswith("text/event-stream")
    *events, end, nothing = reply.read().decode().split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    connection.close()
    return [json.loads(event.removeprefix("data: ")) for event in events]


def greedy(folder: Path, ids: Sequence[int], count: int) -> list[int]:
    """Tokens by the session itself, one after another."""
    session = OnnxRuntimeSession(folder / "model.onnx", capacity=ARCH.max_tokens)
    logits, found = session.prefill(np.array([ids])), []
    for _ in range(count):
        found.append(int(logits[0].argmax()))
        logits = session.decode(np.array([[found[-1]]]))
    assert 0 not in found, "the random model ends its text; choose another seed"
    return found


def test_a_stream_is_the_greedy_decoding_of_the_session_itself(server, exported) -> None:
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    wanted = tokenizer.decode(greedy(exported, tokenizer.encode(PROMPT).ids, 24))
    events = streamed(server, "/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 24})
    assert "".join(event["choices"][0]["text"] for event in events) == wanted
    assert complete(server)["choices"][0]["text"] == wanted
    assert [event["choices"][0]["finish_reason"] for event in events][-2:] == [None, "length"]


def test_the_tokens_of_a_prompt_give_what_its_text_gives(server, exported) -> None:
    ids = Tokenizer.from_file(str(exported / "tokenizer.json")).encode(PROMPT).ids
    found = complete(server, ids)
    assert found["choices"] == complete(server)["choices"]
    assert found["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 24, "total_tokens": len(ids) + 24}


def test_many_clients_get_what_one_gets(server) -> None:
    prompts = [f"{PROMPT}, {number} days" for number in range(12)]  # six times as many as there are slots
    alone = [complete(server, prompt)["choices"] for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as clients:
        assert list(clients.map(lambda prompt: complete(server, prompt)["choices"], prompts)) == alone


def test_a_chat_is_its_template_completed(server) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ]
    body = {"messages": messages, "temperature": 0, "max_tokens": 8}
    events = streamed(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    *parts, end = events
    wanted = complete(server, "[system] Be brief.\n[user] a\n>", max_tokens=8)
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == wanted["choices"][0]["text"]
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert (end["choices"], end["usage"]) == ([], wanted["usage"])
    whole = post(server, "/v1/chat/completions", body)[1]["choices"][0]["message"]
    assert whole == {"role": "assistant", "content": wanted["choices"][0]["text"]}


def test_an_answer_ends_before_a_stop_text(server) -> None:
    whole = complete(server)["choices"][0]["text"]
    stop = whole[5:9]
    found = complete(server, stop=["never written", stop])["choices"][0]
    assert found["text"] == whole.partition(stop)[0]
    assert found["finish_reason"] == "stop"


def test_an_answer_ends_where_the_context_is_full(server) -> None:
    found = complete(server, max_tokens=10_000)
    assert found["usage"]["total_tokens"] == ARCH.max_tokens
    assert found["choices"][0]["finish_reason"] == "length"


def test_the_same_seed_gives_the_same_text(server) -> None:
    texts = [complete(server, temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[1]", 400, None),
        ({}, 400, "prompt"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": [280]}, 400, "prompt"),
        ({"prompt": "a " * 300}, 400, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
        ({"prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature"),
        ({"prompt": "a", "top_p": 2}, 400, "top_p"),
        ({"prompt": "a", "stop": [""]}, 400, "stop"),
        ({"prompt": "a", "stop": 5}, 400, "stop"),
        ({"prompt": "a", "seed": 1.5}, 400, "seed"),
        ({"prompt": "a", "stream": "yes"}, 400, "stream"),
        ({"prompt": "a", "stream_options": [1]}, 400, "stream_options"),
        ({"prompt": "a", "n": 2}, 400, "n"),
        ({"prompt": "a", "logprobs": 5}, 400, "logprobs"),
        ({"prompt": "a", "model": "gpt-5"}, 404, None),
    ],
)
def test_bad_requests_get_openais_shape(server, body, status, param) -> None:
    got, reply = post(server, "/v1/completions", body)
    assert (got, reply["error"]["param"]) == (status, param)
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["message"]
    assert "\n" not in reply["error"]["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([1], "messages[0]"),
        ([{"role": "boss", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    ],
)
def test_bad_messages_are_named(server, messages, param) -> None:
    status, reply = post(server, "/v1/chat/completions", {"messages": messages})
    assert (status, reply["error"]["param"]) == (400, param)


def test_the_models_and_the_paths_are_listed(server) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

    def get(path: str) -> tuple[int, dict]:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    assert [model["id"] for model in get("/v1/models")[1]["data"]] == ["small"]
    assert get("/v1/models/small")[1]["id"] == "small"
    assert get("/v2")[0] == 404
    assert get("/v1/completions")[0] == 405
    connection.request("GET", "/")
    page = connection.getresponse().read().decode()
    assert "<textarea" in page
    assert "http://" not in page.replace(server.url, "")  # it loads nothing from elsewhere


def test_other_sites_and_forms_are_refused(server) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert post(server, "/v1/completions", body, Origin="http://evil.example")[0] == 403
    assert post(server, "/v1/completions", body, Host="evil.example:80")[0] == 403
    assert post(server, "/v1/completions", body, **{"Content-Type": "text/plain"})[0] == 415
    assert post(server, "/v1/completions", body, **{"Content-Length": str(1 << 30)})[0] == 413
    assert post(server, "/v1/completions", body, Origin=server.url)[0] == 200


class Slow:
    """An engine that writes until its client is gone."""

    name, runtime, version, context, slots, chats = "slow", "fake", "1", 64, 1, False

    def __init__(self) -> None:
        self.ended, self.closed = threading.Event(), False

    def prompt_of(self, messages: Sequence[Message]) -> str:
        return messages[-1]["content"]

    def generate(self, prompt: object, sampling: Sampling, *, gone: Callable[[], bool]) -> Generator[Piece, None, None]:
        try:
            count = 0
            while not gone():
                count += 1
                yield Piece(text="x", tokens=count, prompt_tokens=1, prompt_s=0.1, decode_s=0.1)
        finally:
            self.ended.set()

    def close(self) -> None:
        self.closed = True


def opened(server: Server, body: dict) -> socket.socket:
    """A raw connection that has sent a request."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(stream) -> None:
    engine = Slow()
    with Server(engine, name="slow", port=0) as server:
        connection = opened(server, {"prompt": "a", "stream": stream})
        if stream:
            assert b"200 OK" in connection.recv(200)
        connection.close()
        assert engine.ended.wait(30)
    assert engine.closed


def test_closing_the_server_ends_a_stream_with_an_error() -> None:
    engine = Slow()
    server = Server(engine, name="slow", port=0)
    connection = opened(server, {"prompt": "a", "stream": True})
    connection.recv(200)
    server.close()
    assert engine.ended.wait(30)
    rest = b""
    while part := connection.recv(1 << 16):
        rest += part
    last = rest.rpartition(b"data: ")[2]
    assert b"the server was stopped" in last
    assert b"[DONE]" not in rest


def test_an_abandoned_answer_frees_its_slot(exported) -> None:
    engine = OnnxEngine(exported / "model.onnx", slots=1, context=64, threads=1)
    sampling = Sampling(max_tokens=8, temperature=0)
    wanted = [piece.text for piece in engine.generate(PROMPT, sampling, gone=lambda: False)]
    abandoned = engine.generate(PROMPT, sampling, gone=lambda: False)
    next(abandoned)
    assert list(engine.generate(PROMPT, sampling, gone=lambda: True)) == []  # it left while it waited
    abandoned.close()
    assert [piece.text for piece in engine.generate(PROMPT, sampling, gone=lambda: False)] == wanted


def test_other_machines_need_the_token() -> None:
    with Server(Slow(), name="slow", host="0.0.0.0", port=0) as server:
        assert len(server.token) >= 16
        place = server.url.replace("0.0.0.0", "127.0.0.1")
        assert server.page.endswith(f"/#{server.token}")
        for given, status in (({}, 401), ({"Authorization": "Bearer no"}, 401), (None, 200)):
            connection = http.client.HTTPConnection(place.removeprefix("http://"))
            headers = {"Authorization": f"Bearer {server.token}"} if given is None else given
            connection.request("GET", "/v1/models", headers=headers)
            assert connection.getresponse().status == status
            connection.close()


def test_a_port_in_use_is_refused_in_one_line() -> None:
    with Server(Slow(), name="slow", port=0) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OutputError, match=f"port {port}.*choose others"):
            Server(Slow(), name="slow", port=port)


TOKENIZER = train_tokenizer(TEXTS, ARCH.vocab_size)


@given(st.lists(st.integers(1, 279), max_size=40))
def test_pieces_of_text_add_up_to_the_text(tokens) -> None:
    written = Written(TOKENIZER, ())
    assert "".join(map(written.add, tokens)) + written.rest() == TOKENIZER.decode(tokens)


@given(st.text(min_size=1, max_size=20), st.lists(st.text("fever ", min_size=1, max_size=3), min_size=1, max_size=3))
def test_nothing_is_written_from_a_stop_text_on(text, stops) -> None:
    written, found = Written(TOKENIZER, stops), ""
    for token in TOKENIZER.encode(text).ids:
        if not written.stopped:
            found += written.add(token)
    found += "" if written.stopped else written.rest()
    whole = TOKENIZER.decode(TOKENIZER.encode(text).ids)
    assert whole.startswith(found)
    assert not any(stop in found for stop in stops)
    assert found == whole or written.stopped


def test_tokens_are_chosen_by_their_probability() -> None:
    logits = np.log(np.array([0.2, 0.5, 0.3], np.float32))
    generator = np.random.default_rng(0)
    assert chosen(logits, Sampling(temperature=0), generator) == 1
    assert {chosen(logits, Sampling(top_p=0.5), generator) for _ in range(50)} == {1}
    drawn = np.bincount([chosen(logits, Sampling(top_p=0.7), generator) for _ in range(4000)], minlength=3)
    assert drawn[0] == 0  # .5 and .3 have .8 together, without the third
    assert drawn[1] / 4000 == pytest.approx(0.5 / 0.8, abs=0.03)


def test_a_chat_template_runs_no_code() -> None:
    for text in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os }}"):
        with pytest.raises(SpecError, match="chat template refuses these messages"):
            ChatTemplate(text, {}).render([{"role": "user", "content": "a"}])
    with pytest.raises(SpecError, match="no system messages"):
        ChatTemplate("{{ raise_exception('no system messages') }}", {}).render([])


def test_what_cannot_be_served_is_refused(tmp_path, exported) -> None:
    with pytest.raises(SpecError, match="no such file"):
        chipwise.serve(tmp_path / "model.gguf", port=0)
    (tmp_path / "model.onnx").write_bytes((exported / "model.onnx").read_bytes())
    with pytest.raises(SpecError, match=r"no tokenizer\.json"):
        chipwise.serve(tmp_path, port=0)
    with pytest.raises(InputError, match="slots"):
        chipwise.serve(exported, port=0, slots=0)
    stem = ImageStem(image_size=16, patch=4)
    heads = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)
    layers = (Layer(attention=heads, ffn=FeedForward(width=24)),)
    shape = {"d_model": 16, "layers": layers, "max_tokens": stem.tokens, "positions": "learned"}
    classifier = ArchSpec(stem=stem, head=Classes(count=5), **shape)
    save_pretrained(classifier, random_weights(classifier, seed=0), None, tmp_path / "classifier")
    with pytest.raises(Unsupported, match="generates no text"):
        chipwise.serve(tmp_path / "classifier", port=0)


def test_a_winner_is_served_beside_its_promise(exported, tmp_path) -> None:
    stored = Path(__file__).parents[3] / "pins/stored/run/winner/chipwise.json"
    data = json.loads(stored.read_text(encoding="utf-8"))
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_json(tmp_path / "chipwise.json", data)
    with chipwise.serve(tmp_path, port=0) as server:
        promise = server.status()["promise"]
    assert [promise["tpot_s"], promise["low_s"], promise["high_s"]] == data["promised"]["tpot_p50"]
    assert promise["of"] == "onnxruntime, 1 thread, 16 prompt and 16 new tokens, 1 at a time"


@needs_llama
def test_a_gguf_file_is_served_by_llama_cpp(model, tmp_path) -> None:
    write_gguf(Source.read(model), Design(arch=ARCH), tmp_path)
    children = set(psutil.Process().children())
    with chipwise.serve(tmp_path / "model.gguf", port=0, slots=2) as server:
        (own,) = set(psutil.Process().children()) - children
        whole = complete(server)
        events = streamed(server, "/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 24})
        assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
        assert whole["usage"]["completion_tokens"] == 24
        assert post(server, "/v1/completions", {"prompt": "a " * 300})[0] == 400
        with ThreadPoolExecutor(6) as clients:
            texts = list(clients.map(lambda _: complete(server)["choices"][0]["text"], range(6)))
        assert set(texts) == {whole["choices"][0]["text"]}
    assert not own.is_running()
    (tmp_path / "broken.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[:-4096])
    with pytest.raises(chipwise.ChipwiseError):
        chipwise.serve(tmp_path / "broken.gguf", port=0)


def test_ctrl_c_ends_the_command_cleanly(exported) -> None:
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    command = [sys.executable, "-c", f"{hears}; from chipwise.cli import main; main()", "serve", str(exported)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "bufsize": 1}
    process = subprocess.Popen([*command, "--port", "0"], **pipes)
    lines = iter(process.stdout.readline, "")
    assert any("talk to it: http://127.0.0.1:" in line for line in lines)
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    assert "stopped; 0 answers" in rest


def test_the_openai_package_works_against_it(server) -> None:
    openai = pytest.importorskip("openai", reason="openai comes with chipwise[dev]; the same requests are sent above")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["small"]
        asked = {"model": "small", "temperature": 0, "max_tokens": 12}
        whole = client.completions.create(prompt=PROMPT, **asked).choices[0].text
        parts = client.completions.create(prompt=PROMPT, stream=True, **asked)
        assert (
            "".join(part.choices[0].text for part in parts)
            == whole
            == complete(server, max_tokens=12)["choices"][0]["text"]
        )
        messages = [{"role": "user", "content": "a"}]
        said = client.chat.completions.create(messages=messages, **asked).choices[0].message.content
        deltas = client.chat.completions.create(messages=messages, stream=True, **asked)
        assert "".join(delta.choices[0].delta.content for delta in deltas) == said
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(prompt="a " * 300, **asked)
        assert caught.value.param == "prompt"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(prompt="a", **asked | {"model": "other"})
