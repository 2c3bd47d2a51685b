#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull, build or load an image, with progress."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_get
short_description: Pull, build or load an image, with progress
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Does what M(community.docker.docker_image_pull), M(community.docker.docker_image_build) and M(community.docker.docker_image_load) do,
    and shows how far it is, which for an image of 20 GB matters.
  - Does nothing where Docker has an image of this name. So give it a name that says what is in it, a digest or a hash of the inputs.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: The image is there or not.
requirements:
  - docker
  - docker buildx, to build
options:
  name:
    description: Name that the image has afterwards, with a tag or a digest.
    type: str
    required: true
  source:
    description: Where to get it.
    type: str
    required: true
    choices:
      pull: From the registry in O(name).
      build: From the Dockerfile in the folder O(path).
      load: From the archive O(path).
  path:
    description: Folder or archive on this host. Needed to build and to load.
    type: path
  build_args:
    description: Build arguments.
    type: dict
    default: {}
  username:
    description: User of the registry, where it limits those who are not known. Nothing is kept on the host.
    type: str
    default: ""
  password:
    description: Password or token of that user.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Pull the engine
  tandem.serving.image_get:
    name: vllm/vllm-openai@sha256:905c02933be6021301db2dc284e24e3727467aa3a0f63b41d609885778a07bce
    source: pull
  become: true
"""

RETURN = r"""# """

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _docker_api
from ansible_collections.tandem.serving.plugins.module_utils._image_output import follow, watch
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress


def build(docker: str, params: dict[str, Any], progress: Progress) -> list[str]:
    """Build, and tell what went wrong."""
    given = [word for key, value in sorted(params["build_args"].items()) for word in ("--build-arg", f"{key}={value}")]
    command = [docker, "buildx", "build", "--progress=plain", "--load", "--tag", params["name"], *given, params["path"]]
    code, last = follow(command, progress)
    return [f"docker buildx build ended with {code}. The last it said:", *last] if code else []


def load(path: Path, progress: Progress) -> list[str]:
    """Load an archive, and tell what Docker found in it."""
    progress.set(phase="read", total=path.stat().st_size)

    def write(body: _docker_api.Body) -> None:
        with path.open("rb") as archive:
            while data := archive.read(1 << 20):
                body.write(data)
                progress.add(len(data))

    return watch(_docker_api.load(write), progress)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "source": {"type": "str", "required": True, "choices": ["pull", "build", "load"]},
            "path": {"type": "path"},
            "build_args": {"type": "dict", "default": {}},
            "username": {"type": "str", "default": ""},
            "password": {"type": "str", "default": "", "no_log": True},
            **ARGUMENTS,
        },
        required_if=[("source", "build", ["path"]), ("source", "load", ["path"])],
        supports_check_mode=True,
    )
    params = module.params
    docker, name, source = module.get_bin_path("docker", required=True), params["name"], params["source"]

    def held() -> bool:
        return bool(module.run_command([docker, "image", "inspect", name])[0] == 0)

    if held():
        module.exit_json(changed=False)
    if module.check_mode:
        module.exit_json(changed=True)
    progress = Progress(params["progress_file"], source)
    said: list[str] = []
    try:
        if source == "pull":
            watch(_docker_api.pull(name, params["username"], params["password"]), progress)
        elif source == "load":
            said = load(Path(params["path"]), progress)
        else:
            said = build(docker, params, progress)
    except (_docker_api.DockerError, OSError) as error:
        module.fail_json(msg=f"{name}: {source} failed. {error}")
    if not held():
        module.fail_json(msg="\n".join([f"{name}: expected an image of this name after {source}, found none.", *said]))
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
