"""`python -m interface.cli.main` is the command `kernalyse`, under the name that it had first."""

from __future__ import annotations

from kernalyse.services.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
