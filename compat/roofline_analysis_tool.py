"""The roofline of the commands.json in the working directory, in a browser: `python -m roofline_analysis_tool`.

It runs `kernalyse follow`: commands.json, roofline_config.json and op_registry.py of the directory are watched, and what is set on the
page is stored in roofline_config.json. Starting it in a directory runs that directory's op_registry.py.

Installed, this file is also a top-level module. It only re-exports names; docs/operation_lists.md says more.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["main"]

PORT = 8050
"""Where the page always was."""


def main() -> None:
    """Run `kernalyse follow` with the command line's arguments; without any on commands.json, in a browser, on port 8050."""
    from kernalyse.services.cli.imports import follow
    from kernalyse.services.cli.main import run_single_command

    registry = {"op_registry": "."} if Path("op_registry.py").is_file() else {}
    run_single_command(follow, "roofline_analysis_tool", {"open_browser": True, "port": PORT, **registry})


if __name__ == "__main__":
    main()
