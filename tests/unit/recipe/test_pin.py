"""Pins: the digest of a tag, the commit of a branch."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._pin import (
    Answer,
    PinError,
    Reference,
    commit,
    image_digest,
    parse_reference,
)
from ansible_collections.tandem.serving.plugins.modules.pin_info import fetch

DIGEST, COMMIT = "sha256:" + "a" * 64, "b" * 40


class Web:
    """Answers by method and URL, and a record of what was asked."""

    def __init__(self, answers: dict[str, list[Answer]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def get(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        self.asked.append((method, url, headers))
        return self.answers[url].pop(0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vllm/vllm-openai:v0.30.0-aarch64", ("registry-1.docker.io", "vllm/vllm-openai", "v0.30.0-aarch64")),
        ("debian", ("registry-1.docker.io", "library/debian", "latest")),
        ("ghcr.io/org/a-b:x", ("ghcr.io", "org/a-b", "x")),
        ("10.98.0.1:15000/tandem/vllm", ("10.98.0.1:15000", "tandem/vllm", "latest")),
        ("localhost/tandem/x:1", ("localhost", "tandem/x", "1")),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, parts: tuple[str, str, str]) -> None:
    assert parse_reference(text) == Reference(*parts)


def test_a_name_with_a_digest_has_nothing_to_pin() -> None:
    with pytest.raises(PinError, match="without a digest"):
        parse_reference(f"a/b@{DIGEST}")


MANIFEST = "https://registry-1.docker.io/v2/vllm/vllm-openai/manifests/v1"
TOKEN = "https://auth.docker.io/token?service=registry.docker.io&scope=repository%3Avllm%2Fvllm-openai%3Apull"
CHALLENGE = {
    "www-authenticate": 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:vllm/vllm-openai:pull"'
}


def test_a_registry_that_wants_a_token_gets_one() -> None:
    web = Web(
        {
            MANIFEST: [Answer(401, CHALLENGE, ""), Answer(200, {"docker-content-digest": DIGEST}, "")],
            TOKEN: [Answer(200, {}, json.dumps({"token": "t"}))],
        }
    )
    assert image_digest("vllm/vllm-openai:v1", web.get) == DIGEST
    assert web.asked[-1][2]["Authorization"] == "Bearer t"
    assert "image.index" in web.asked[0][2]["Accept"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(404, {}, ""), "no such image or tag"),
        (Answer(429, {}, ""), "too many requests"),
        (Answer(200, {}, ""), "without a digest"),
        (Answer(0, {}, "no route to host"), "no route to host"),
        (Answer(401, {"www-authenticate": 'Basic realm="x"'}, ""), "asks for a login"),
    ],
)
def test_a_registry_that_has_no_digest_is_named(answer: Answer, words: str) -> None:
    with pytest.raises(PinError, match=words):
        image_digest("vllm/vllm-openai:v1", Web({MANIFEST: [answer]}).get)


def test_a_registry_on_the_own_host_needs_no_tls() -> None:
    web = Web({"http://127.0.0.1:5000/v2/a/b/manifests/1": [Answer(200, {"docker-content-digest": DIGEST}, "")]})
    assert image_digest("127.0.0.1:5000/a/b:1", web.get) == DIGEST


BRANCH = "http://hub/api/models/org/model/revision/refs%2Fpr%2F1"


def test_a_branch_becomes_its_commit() -> None:
    web = Web({BRANCH: [Answer(200, {}, json.dumps({"sha": COMMIT}))]})
    assert commit("org/model", "refs/pr/1", "http://hub/", "secret", web.get) == COMMIT
    assert web.asked[0][2] == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "token is missing"), (403, "accept the terms"), (404, "no such repository"), (500, "500")],
)
def test_a_hub_that_refuses_says_why(status: int, words: str) -> None:
    with pytest.raises(PinError, match=words):
        commit("org/model", "refs/pr/1", "http://hub", "", Web({BRANCH: [Answer(status, {}, "")]}).get)


class Registry(BaseHTTPRequestHandler):
    """A registry that has one image."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/v2/a/b/manifests/1" else 404)
        self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_real_request_gives_an_answer_whatever_comes() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v2/a/b/manifests"
        found, missing = (fetch("HEAD", f"{url}/{tag}", {}, 10) for tag in (1, 2))
    finally:
        server.shutdown()
        server.server_close()
    assert (found.status, found.headers["docker-content-digest"]) == (200, DIGEST)
    assert missing.status == 404
    nobody = fetch("HEAD", f"{url}/1", {}, 10)
    assert nobody.status == 0 and "refused" in nobody.body
