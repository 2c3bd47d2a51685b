"""Read command lines as JSON lists from standard input, give each to vLLM's own parser, and print what it says of each.

Runs with the Python of an engine, inside its image or virtual environment. Starts nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from typing import Any

import vllm
from vllm.config import SpeculativeConfig
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser


def unknown(kind: Any, given: Any) -> list[str]:
    """Keys of a JSON argument that the engine's configuration class does not have."""
    known = {field.name for field in dataclasses.fields(kind)}
    return sorted(set(given or {}) - known) if isinstance(given, dict) else []


def complaint(words: list[str]) -> str:
    """What is wrong with a command line, or nothing."""
    parser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = parser.parse_args(words)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except ValueError as error:
        return str(error)
    wrong = unknown(SpeculativeConfig, found.speculative_config)
    return f"speculative-config does not know {', '.join(wrong)}" if wrong else ""


def main() -> None:
    """Entry point."""
    lines = json.load(sys.stdin)
    print(json.dumps({"version": vllm.__version__, "complaints": [complaint(line) for line in lines]}))


if __name__ == "__main__":
    main()
