# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes two images the same."""

from __future__ import annotations

DOCUMENTATION = r"""
name: image_identity
short_description: What makes two images the same
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - The ordered layer digests of an image and how its containers start, which are the same on every host that has the same image.
  - An image's Id differs between Docker's stores, its tag moves, and its registry digest is lost by C(docker save).
options:
  _input:
    description: One of the images of M(community.docker.docker_image_info).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Look at the image
  community.docker.docker_image_info:
    name: vllm/vllm-openai:v0.33.0
  register: found

- name: Show its identity
  ansible.builtin.debug:
    msg: "{{ (found.images[0] | tandem.serving.image_identity).digest }}"
"""

RETURN = r"""
_value:
  description: C(digest) over C(layers), the diff ids from the bottom up, and C(config).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils import _image_identity


def image_identity(inspected: Mapping[str, Any]) -> _image_identity.Identity:
    """The identity of one inspected image."""
    from ansible_collections.tandem.serving.plugins.module_utils import _image_identity

    try:
        return _image_identity.identity(inspected)
    except ValueError as error:
        raise AnsibleFilterError(f"image_identity: {error}") from error


class FilterModule:
    """Filters of the role image."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Their names."""
        return {"image_identity": image_identity}
