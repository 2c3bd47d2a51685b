"""Write docs/checks.md from the table of causes.

PYTHONPATH=collections python docs/checks.py
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.tandem.serving.plugins.module_utils import _causes, _fabric_causes

PAGE = Path(__file__).with_suffix(".md")
TOPICS = {**_causes.TOPICS, "Fabric (`rdma_info`, role `fabric`)": _fabric_causes.FABRIC}

HEAD = """<!-- Made by docs/checks.py. Change plugins/module_utils/_causes.py instead. -->

# Checks

Every module, planner and role reports in checks. A check has a name, a verdict, a cause, what was expected, what was found,
the evidence (`file:line: text` where a file was read), and what to do.

| verdict | meaning |
| --- | --- |
| `pass` | proven right |
| `warn` | works, and less well than it should, or something happened that may come back |
| `fail` | wrong |
| `inconclusive` | nothing was proven: the log says too little, or the test does not reach what it is asked about |

`playbooks/diagnose.yml` puts all checks that need no running server into one table, `report/diagnose.json` and the page
`report/diagnose.html`. It changes nothing.

```sh
ansible-playbook playbooks/diagnose.yml -e diagnose_logs=PATH [-e diagnose_platform=gb10]   # a saved log, or a folder with logs
ansible-playbook playbooks/diagnose.yml -i inventories/two_spark                            # hosts; those down are in the report
```

In a folder it reads logs of NCCL and of engines and the results of nccl-tests and perftest, whatever their names, and leaves out
`*.md`.

The codes below are the causes, by what finds them.
"""


def page() -> str:
    """The page."""
    parts = [HEAD]
    for topic, causes in TOPICS.items():
        parts.append(f"\n## {topic}\n")
        for code, cause in causes.items():
            parts.append(f"\n### `{code}`\n\n{cause.meaning}\n")
            parts.append(f"\n- Looks like: {cause.looks}\n")
            if cause.remedy:
                # What a check fills in stands in braces.
                what = re.sub(r"{(\w+)}", r"*\1*", cause.remedy)
                parts.append(f"- What to do: {what}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
