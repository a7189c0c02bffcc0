"""How an archive of headers says which of its folders are searched; nodes unpack it beside the source."""

from __future__ import annotations

from typing import Final

FOLDER_LIST: Final = ".kernalyse/include_folders"
"""One folder a line, in the order in which they are searched, relative to the archive's top."""
