"""Work that advances step by step, each as soon as a file of the step's number is in a folder."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path"},
            "steps": {"type": "int"},
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    folder, steps = Path(module.params["folder"]), module.params["steps"]
    with (folder / "begun").open("a") as begun:
        begun.write("x")
    progress = Progress(module.params["progress_file"], "work", steps, unit="steps")
    for step in range(1, steps + 1):
        while not (folder / str(step)).exists():
            time.sleep(0.05)
        progress.set(phase=f"step {step}", done=step)
    module.exit_json(changed=True, steps=steps)


if __name__ == "__main__":
    main()
