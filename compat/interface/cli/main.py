"""The command `kernalyse` under its former name: `python -m interface.cli.main`."""

from __future__ import annotations

from kernalyse.services.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
