"""When two images are the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._image_identity import identity

# As the graph driver's store tells it; the fields that matter and some that must not.
GRAPH: dict[str, Any] = {
    "Id": "sha256:bed02f0c",
    "RepoTags": ["engine:1"],
    "RepoDigests": [],
    "Created": "2026-11-29T16:36:28Z",
    "Size": 1850121002,
    "Architecture": "arm64",
    "Os": "linux",
    "Config": {
        "Env": ["PATH=/bin", "A=1"],
        "Entrypoint": None,
        "Cmd": ["hello"],
        "WorkingDir": "",
        "User": "",
        "Labels": {"stamp": "1"},
    },
    "RootFS": {"Type": "layers", "Layers": ["sha256:aa", "sha256:bb"]},
}

SAME = [
    ("another Id, as in the containerd store", {"Id": "sha256:6f19fa17"}),
    ("another tag", {"RepoTags": ["localhost/tandem/engine:2"]}),
    ("a digest of a registry", {"RepoDigests": ["registry/engine@sha256:6f19fa17"]}),
    ("another size, which containerd counts with the blobs", {"Size": 2480000000}),
    ("no Os told", {"Os": "linux"}),
]
SAME_CONFIG = [
    ("an empty entrypoint", {"Entrypoint": []}),
    ("the root folder by name", {"WorkingDir": "/"}),
    ("another label", {"Labels": None}),
]
OTHER = [
    ("layers in another order", {"RootFS": {"Layers": ["sha256:bb", "sha256:aa"]}}),
    ("a layer more", {"RootFS": {"Layers": ["sha256:aa", "sha256:bb", "sha256:cc"]}}),
    ("another machine", {"Architecture": "amd64"}),
]
OTHER_CONFIG = [
    ("another variable", {"Env": ["PATH=/bin", "A=2"]}),
    ("variables in another order", {"Env": ["A=1", "PATH=/bin"]}),
    ("an entrypoint", {"Entrypoint": ["/bin/sh"]}),
    ("another command", {"Cmd": []}),
    ("another folder", {"WorkingDir": "/srv"}),
    ("another user", {"User": "1000"}),
]


def changed(top: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    image = copy.deepcopy(GRAPH)
    image.update(top)
    image["Config"].update(config)
    return image


@pytest.mark.parametrize(
    ("top", "config"),
    [pytest.param(change, {}, id=name) for name, change in SAME]
    + [pytest.param({}, change, id=name) for name, change in SAME_CONFIG],
)
def test_same(top: dict[str, Any], config: dict[str, Any]) -> None:
    assert identity(changed(top, config)) == identity(GRAPH)


@pytest.mark.parametrize(
    ("top", "config"),
    [pytest.param(change, {}, id=name) for name, change in OTHER]
    + [pytest.param({}, change, id=name) for name, change in OTHER_CONFIG],
)
def test_other(top: dict[str, Any], config: dict[str, Any]) -> None:
    assert identity(changed(top, config))["digest"] != identity(GRAPH)["digest"]


def test_the_digest_stays_what_it_was() -> None:
    # It is in the name of every image that was shipped.
    assert identity(GRAPH)["digest"] == "sha256:2f47b55158a744c96b05c19be881da485b5a9c716530df249108f57641978d54"


@pytest.mark.parametrize("broken", [{}, {"RootFS": None}, {**GRAPH, "Config": None}, {**GRAPH, "RootFS": {}}])
def test_what_is_no_image(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected what docker image inspect says"):
        identity(broken)
