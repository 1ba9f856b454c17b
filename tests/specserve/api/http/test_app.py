"""Paths that generate nothing, and what is said where there is no path."""

import gc
import gzip
import json
import shutil
import socket
import struct
from urllib.parse import urlsplit

import pytest
from openai import NotFoundError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from specserve import __version__
from specserve.api.http.limited_protocol import LimitedProtocol
from specserve.api.http.server import HttpServer
from specserve.errors import Unsupported
from specserve.types import Load
from tests.specserve.api.conftest import rigs_in
from tests.specserve.api.http.conftest import send


def test_the_model_is_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("scripted", "specserve")
    assert (model.root, model.parent) == ("scripted", None)  # `vllm bench serve` reads the root
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(NotFoundError, match="is not served here"):
        client.models.retrieve("org/other")


def test_text_becomes_ids_and_text_again(ask, rig):
    found = ask("POST", "/tokenize", {"prompt": "fox é 🦊", "return_token_strs": True}).body
    assert found["tokens"] == rig.encode("fox é 🦊")
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512
    back = ask("POST", "/detokenize", {"tokens": found["tokens"]}).body
    assert back == {"prompt": "fox é 🦊"}


def test_special_tokens_of_a_text_can_be_left_out(model_folder, tmp_path):
    """`vllm bench serve` asks so before it sends random prompts."""
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with rigs_in(folder, tmp_path) as make:
        url = make().url
        for fields, adds in [({}, True), ({"add_special_tokens": False}, False)]:
            found = send(url, "POST", "/tokenize", {"prompt": "fox", **fields}).body["tokens"]
            assert ([0] if adds else []) == [each for each in found if each == 0]


def test_a_conversation_becomes_what_the_template_writes(ask, rig):
    body = {"messages": [{"role": "user", "content": "fox"}], "add_special_tokens": False}
    found = ask("POST", "/tokenize", body).body
    assert found["tokens"] == rig.encode("user: fox\nassistant:")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": [], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [400]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(ask, path, body, param):
    answer = ask("POST", path, body)
    assert (answer.status, answer.body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("path", "field"), [("/tokenize", "prompt"), ("/detokenize", "tokens")])
def test_another_models_tokens_are_not_known_here(ask, path, field):
    body = {field: "a" if field == "prompt" else [1]}
    assert ask("POST", path, body | {"model": "scripted"}).status == 200
    answer = ask("POST", path, body | {"model": "gpt-4"})
    assert (answer.status, answer.body["error"]["param"]) == (404, "model")


def test_probes_say_how_it_is(ask):
    assert ask("GET", "/livez").body == {"status": "live"}
    for path in ("/health", "/readyz"):
        assert (ask("GET", path).status, ask("GET", path).body) == (200, {"status": "ready"})
    assert ask("GET", "/version").body == {"version": __version__}
    info = ask("GET", "/server_info").body
    assert info["model"]["model"] == "scripted"
    assert info["load"]["num_running"] == 0
    assert info["load"]["mode_now"] == "off"
    assert info["load"]["num_broken_draft_probs"] == 0
    assert {"api_uptime_s"} == {name for name in info if "uptime" in name}
    assert {"target_uptime_s"} == {name for name in info["load"] if "uptime" in name}
    json.dumps(info)


def test_a_draft_process_that_is_away_costs_no_requests(make_rig):
    rig = make_rig()
    rig.target.load = Load(num_draft_processes=2, num_drafts_attached=1)
    rig.until(lambda: rig.service.hub.load.num_draft_processes == 2)
    for path in ("/health", "/readyz"):
        answer = send(rig.url, "GET", path)
        assert (answer.status, answer.body) == (200, {"status": "degraded"})


def test_a_draining_service_lives_and_is_not_ready(make_rig):
    rig = make_rig()
    rig.call(rig.service.drain(8.0))
    assert send(rig.url, "GET", "/livez").status == 200
    answer = send(rig.url, "GET", "/readyz")
    assert (answer.status, answer.body) == (503, {"status": "draining"})
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox"})
    assert (answer.status, answer.body["error"]["type"]) == (503, "service_unavailable_error")
    assert 1 <= int(answer.headers["retry-after"]) <= 8  # by then it is gone at the latest


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/completions", 405, 'this path takes POST, with a JSON body such as {"prompt"'),
        ("GET", "/v1/chat/completions", 405, '{"messages": [{"role": "user", "content": "Hello"}'),
        ("POST", "/v1/models", 405, "this path takes GET"),
        ("DELETE", "/v1/models/scripted", 405, "this path takes GET"),
        ("POST", "/v1/chat/completion", 404, "did you mean POST /v1/chat/completions?"),
        ("POST", "/chat/completions", 404, "did you mean POST /v1/chat/completions?"),
        ("POST", "/v1/v1/completions", 404, "did you mean POST /v1/completions?"),
        ("GET", "/v1/tokenize", 404, "did you mean POST /tokenize?"),
        ("GET", "/statuss", 404, "did you mean GET /status?"),
        ("POST", "/v1/embeddings", 404, "there are POST /v1/completions, POST /v1/chat/compl"),
        ("GET", "/nothing/here", 404, "GET /metrics, GET /status, GET /"),
    ],
)
def test_where_there_is_no_path_paths_are_named(ask, method, path, status, says):
    answer = ask(method, path)
    assert answer.status == status
    error = answer.body["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, status)
    assert error["message"].startswith(f"{method} {path}: ")
    assert says in error["message"]
    takes = {"/v1/models": "GET", "/v1/models/scripted": "GET"}.get(path, "POST")
    allowed = set(answer.headers.get("allow", "").split(", ")) - {"HEAD"}
    assert allowed == ({takes} if status == 405 else {""})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_compressed_body_is_refused_by_its_header(ask, path):
    """Nothing is decompressed: a few bytes could become gigabytes."""
    packed = gzip.compress(json.dumps({"prompt": "fox", "max_tokens": 2}).encode())
    answer = ask("POST", path, packed, headers={"Content-Encoding": "gzip"})
    error = answer.body["error"]
    assert (answer.status, error["code"], error["param"]) == (415, 415, "content-encoding")
    assert error["message"].startswith("content-encoding: 'gzip' is not read here; send the body")
    assert answer.headers["accept-encoding"] == "identity"


def test_a_body_that_says_that_it_is_as_it_is_is_read(ask):
    body, headers = {"prompt": "fox", "max_tokens": 2}, {"Content-Encoding": "identity"}
    assert ask("POST", "/v1/completions", body, headers=headers).status == 200


def test_a_defect_is_told_by_number_alone(make_rig, monkeypatch, caplog):
    rig = make_rig()

    def broken(*_: object) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr(rig.tokenizer, "encode_prompt", broken)
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox"})
    assert answer.status == 500
    assert "1234" not in str(answer.body)
    incident = answer.body["error"]["message"].split()[-1]
    assert incident in caplog.text
    assert "1234" in caplog.text


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/completions"])
def test_who_leaves_within_a_body_leaves_nothing_in_the_log(rig, ask, caplog, path):
    place = urlsplit(rig.url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{"
        connection.sendall(head.encode())
    assert ask("GET", "/livez").status == 200
    assert caplog.records == []


@pytest.mark.parametrize("resets", [True, False])
def test_a_connection_that_has_ended_is_let_go_of(rig, ask, resets):
    place = urlsplit(rig.url)
    for _ in range(5):
        with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            if resets:  # SO_LINGER
                at_once = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)

    def num_open() -> int:
        gc.collect()
        return sum(type(each) is LimitedProtocol for each in gc.get_objects())

    # Long before the time that an idle connection may stay open.
    rig.until(lambda: num_open() == 0)


def test_a_port_in_use_is_named(rig):
    async def another() -> None:
        with pytest.raises(Unsupported, match=r"server\.http_port: cannot listen on"):
            HttpServer(rig.service, rig.http.port)

    rig.call(another())
