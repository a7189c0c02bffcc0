"""What labels of configurations say beside the problem: words that name the process and the cache, which columns tell too."""

from __future__ import annotations

from typing import Final

REPEATED_WORDS: Final = r" (process=\d+|cold|hot)\b"
"""Runs agree on labels without these, as histories have them."""
