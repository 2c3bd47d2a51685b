# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a report of checks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: report
short_description: Make a report of checks
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Renders the checks that the modules of this collection return.
positional: form
options:
  _input:
    description: A host's name to its list of checks. Anything may stand for a host, for example a file.
    type: dict
    required: true
  form:
    description:
      - V(table) is text for a terminal, V(json) is JSON text, V(html) is a page that needs no other file.
      - V(data) is what V(json) writes, as a dictionary.
    type: str
    choices: [table, json, html, data]
    default: table
  title:
    description: Heading.
    type: str
    default: Report
  about:
    description: Names and values to show under the heading.
    type: dict
    default: {}
  width:
    description: Columns of V(table).
    type: int
    default: 110
  picture:
    description: SVG to show above the checks in V(html), as P(tandem.serving.fabric_svg#filter) draws it.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the report
  ansible.builtin.debug:
    msg: "{{ found | tandem.serving.report(title='Verify', about={'recipe': tandem_recipe.name}) }}"

- name: Write the page
  ansible.builtin.copy:
    content: "{{ found | tandem.serving.report('html') }}"
    dest: report.html
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The report; with O(form=data) a dictionary of C(title), C(about), C(verdict), C(counts) and C(hosts).
  type: raw
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def report(
    hosts: Mapping[str, Sequence[Check]],
    form: str = "table",
    title: str = "Report",
    about: Mapping[str, Any] | None = None,
    width: int = 110,
    picture: str = "",
) -> str | dict[str, Any]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _report

    facts = about or {}
    if form == "table":
        return _report.table(hosts, title, facts, width)
    if form == "json":
        return _report.to_json(hosts, title, facts)
    if form == "html":
        return _report.to_html(hosts, title, facts, picture)
    if form == "data":
        return _report.document(hosts, title, facts)
    raise AnsibleFilterError(f"report: form '{form}' is none of table, json, html and data.")


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"report": report}
