"""Everything that browsers send to one dashboard."""

from __future__ import annotations

from typing import Any

from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.uploads.given_files import GivenFiles
from kernalyse.services.ui.uploads.handlers import UPLOAD_ID, GivenFileHandler, ImportHandler, ImportsHandler
from kernalyse.services.ui.uploads.imports import Imports


class Uploads:
    """On the server's loop."""

    def __init__(self, client: AnalyzerClient) -> None:
        self.imports = Imports(client)
        self.files = GivenFiles()

    def patterns(self) -> list[tuple[str, Any, dict[str, Any]]]:
        """Paths, handlers and their arguments, for the server."""
        return [
            (r"/imports", ImportsHandler, {"imports": self.imports}),
            (rf"/imports/({UPLOAD_ID})", ImportHandler, {"imports": self.imports}),
            (r"/files", GivenFileHandler, {"files": self.files}),
        ]

    def close(self) -> None:
        self.files.close()
