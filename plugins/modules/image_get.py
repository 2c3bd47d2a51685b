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
"""

EXAMPLES = r"""
- name: Pull the engine
  tandem.serving.image_get:
    name: vllm/vllm-openai@sha256:905c02933be6021301db2dc284e24e3727467aa3a0f63b41d609885778a07bce
    source: pull
  become: true
"""

RETURN = r"""# """

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils._image_output import follow
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress


def words(docker: str, name: str, source: str, path: str | None, build_args: dict[str, str]) -> list[str]:
    """The command that gets the image."""
    if source == "pull":
        return [docker, "pull", name]
    if source == "load":
        return [docker, "load", "--input", str(path)]
    given = [word for key, value in sorted(build_args.items()) for word in ("--build-arg", f"{key}={value}")]
    return [docker, "buildx", "build", "--progress=plain", "--load", "--tag", name, *given, str(path)]


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "source": {"type": "str", "required": True, "choices": ["pull", "build", "load"]},
            "path": {"type": "path"},
            "build_args": {"type": "dict", "default": {}},
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
    command = words(docker, name, source, params["path"], params["build_args"])
    code, last = follow(command, progress)
    if code:
        module.fail_json(msg=f"{name}: {source} failed with {code}. The last it said:\n" + "\n".join(last))
    if not held():
        said = "; ".join(last)
        module.fail_json(msg=f"{name}: expected an image of this name after {source}, found none. Docker said: {said}")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
