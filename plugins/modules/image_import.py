#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load an image from a folder that holds the layers this host lacks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_import
short_description: Load an image from a folder that holds the layers this host lacks
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Gives C(docker load) an OCI layout as M(tandem.serving.image_export) writes it, without the layers that Docker has.
  - The image gets its name after it was loaded, since Docker's containerd store shows an image whose load failed as if it were whole.
  - It loads each time it runs. Compare the identity of the image before.
extends_documentation_fragment:
  - tandem.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: The result names the image.
requirements:
  - docker
options:
  path:
    description: The folder with the layout.
    type: path
    required: true
  name:
    description: Name that the image gets, with its tag.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Load the image
  tandem.serving.image_import:
    path: /var/lib/tandem/image
    name: localhost/tandem/engine:0123456789ab
"""

RETURN = r"""# """

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _image_layout


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "name": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=True)
    path, name = module.params["path"], module.params["name"]
    docker = module.get_bin_path("docker", required=True)
    try:
        _image_layout.load(Path(path), docker)
        module.run_command([docker, "image", "tag", _image_layout.LOADING, name], check_rc=True)
    except (_image_layout.LoadError, OSError) as error:
        module.fail_json(msg=f"Loading {name} from {path} failed: {error}")
    finally:
        module.run_command([docker, "image", "rm", _image_layout.LOADING])
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
