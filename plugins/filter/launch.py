# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a rank's command line, environment and container."""

from __future__ import annotations

DOCUMENTATION = r"""
name: launch
short_description: Make a rank's command line, environment and container
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - From the facts of the roles C(recipe), C(fabric) and C(image) to what one rank runs.
positional: fabric, image, host
options:
  _input:
    description: The fact C(tandem_recipe).
    type: dict
    required: true
  fabric:
    description: The fact C(tandem_fabric) of the rank.
    type: dict
    required: true
  image:
    description: The fact C(tandem_image), of which C(ref) and C(identity) are used.
    type: dict
    required: true
  host:
    description:
      - Where things are on the host, as C(name) of the container, C(hf_home), C(etc), C(cache).
      - C(env) is what this host alone adds, C(api_key) says whether the API has a key, C(gpu) is the UUID of the GPU where the recipe
        names one.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the engine's command line
  ansible.builtin.debug:
    msg: "{{ (tandem_recipe | tandem.serving.launch(tandem_fabric, tandem_image, host)).engine | join(' ') }}"
"""

RETURN = r"""
_value:
  description: C(engine), C(docker), C(env), C(cache_key), C(shared_hash) over what all ranks share, and C(rank_hash).
  type: dict
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils import _launch


def launch(
    recipe: Mapping[str, Any], fabric: Mapping[str, Any], image: Mapping[str, str], host: _launch.Host
) -> _launch.Launch:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _launch

    try:
        return _launch.launch(recipe, fabric, image, host)
    except (KeyError, ValueError) as error:
        raise AnsibleFilterError(f"Cannot make the rank's command line: {error!r}") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"launch": launch}
