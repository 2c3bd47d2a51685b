"""The hub of the tests, asked by the real client."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.server import Fault, Hub, running
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import get_hf_file_metadata

REPO, GATED = "org/open", "org/gated"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    for name in (REPO, GATED):
        folder = tmp_path / "root" / name
        (folder / "sub").mkdir(parents=True)
        (folder / "config.json").write_text('{"a": 1}\n')
        (folder / "sub" / "model.safetensors").write_bytes(bytes(range(256)) * 400)
    with running(Hub(tmp_path / "root", gated={GATED: "hf_good"}, log=tmp_path / "log")) as server:
        yield server


def test_lists_what_it_holds_with_the_names_of_the_blobs(hub: Hub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    revision = api.model_info(REPO).sha
    assert revision == HfApi(endpoint=hub.url, token=False).model_info(GATED).sha, (
        "the revision depends on the content alone"
    )
    entries = {item.path: item for item in api.list_repo_tree(REPO, recursive=True, revision=revision)}
    assert set(entries) == {"config.json", "sub", "sub/model.safetensors"}
    assert entries["config.json"].blob_id == "cb5b2f69babc53f9145b45ad20b9a075d48717ef", "as git hash-object says"
    assert entries["sub/model.safetensors"].lfs.size == 102400
    url = hf_hub_url(REPO, "sub/model.safetensors", endpoint=hub.url)
    assert get_hf_file_metadata(url, token=False).etag == entries["sub/model.safetensors"].lfs.sha256


@pytest.mark.parametrize(
    ("repo", "file", "revision", "token", "error", "status"),
    [
        ("org/none", "config.json", "main", "hf_good", RepositoryNotFoundError, 404),
        ("org/none", "config.json", "main", False, RepositoryNotFoundError, 401),
        (REPO, "none", "main", False, RemoteEntryNotFoundError, 404),
        (REPO, "config.json", "f" * 40, False, RevisionNotFoundError, 404),
        (REPO, "config.json", "main", "wrong", HfHubHTTPError, 401),
        (GATED, "config.json", "main", False, GatedRepoError, 401),
        (GATED, "config.json", "main", "hf_other", GatedRepoError, 403),
    ],
    ids=["no repo", "no repo, stranger", "no file", "no revision", "bad token", "gated, stranger", "gated, refused"],
)
def test_refuses_as_the_real_hub(
    hub: Hub, repo: str, file: str, revision: str, token: str | bool, error: type[HfHubHTTPError], status: int
) -> None:
    with pytest.raises(error) as caught:
        get_hf_file_metadata(hf_hub_url(repo, file, revision=revision, endpoint=hub.url), token=token)
    assert caught.value.response.status_code == status


def test_opens_a_gated_repository_to_its_token(hub: Hub) -> None:
    url = hf_hub_url(GATED, "config.json", endpoint=hub.url)
    assert get_hf_file_metadata(url, token="hf_good").size == 9


def test_a_cut_and_the_rest_by_range_are_in_the_log(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault("cut", match="safetensors", after=1000)]
    url = f"{hub.url}/{REPO}/resolve/main/sub/model.safetensors"
    with urllib.request.urlopen(url) as answer, pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()
    rest = urllib.request.Request(url, headers={"Range": "bytes=1000-"})
    assert caught.value.partial + urllib.request.urlopen(rest).read() == bytes(range(256)) * 400
    assert len(hub.log) == 2
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["range"], line["status"], line["sent"]) for line in lines] == [
        (None, 200, 1000),
        ("bytes=1000-", 206, 101400),
    ]


@pytest.mark.parametrize(
    ("fault", "length", "same"),
    [
        (Fault("truncate", after=5), 102395, False),
        (Fault("corrupt", after=70000), 102400, False),
        (Fault("rate", after=2**20), 102400, True),
    ],
    ids=["truncate", "corrupt", "rate"],
)
def test_faults_change_the_body(hub: Hub, fault: Fault, length: int, same: bool) -> None:
    hub.faults = [fault]
    with urllib.request.urlopen(f"{hub.url}/{REPO}/resolve/main/sub/model.safetensors") as answer:
        body = answer.read()
    assert len(body) == length
    assert (body == bytes(range(256)) * 400) is same


def test_faults_are_set_over_the_network(hub: Hub) -> None:
    fault = json.dumps({"kind": "status", "match": "tree", "status": 429, "retry_after": 3}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{hub.url}/_faults", data=fault, method="POST"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{hub.url}/api/models/{REPO}/tree/main")
    assert (caught.value.code, caught.value.headers["Retry-After"]) == (429, "3")
    assert urllib.request.urlopen(f"{hub.url}/api/models/{REPO}/tree/main").status == 200
