"""How Panel's components look here: one style sheet for all of them, over the colours of tokens.css."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar, Final

from panel.theme.base import Design, Inherit, Theme
from panel.viewable import Viewable

ASSET_DIRECTORY: Final = Path(__file__).parent / "assets"


def _asset_version() -> str:
    """Changes with the assets, so that browsers never mix those of two versions."""
    content = b"".join(path.read_bytes() for path in sorted(ASSET_DIRECTORY.iterdir()))
    return hashlib.sha256(content).hexdigest()[:12]


ASSET_URL: Final = f"/assets/{_asset_version()}"


class DashboardTheme(Theme):
    """No colours of its own: tokens.css has those of light and dark, and the browser changes from one to the other."""

    _name = "default"


class DashboardDesign(Design):
    """Panel's own style sheets, then ours."""

    modifiers: ClassVar[dict[type[Viewable], dict[str, Any]]] = {Viewable: {"stylesheets": [Inherit, f"{ASSET_URL}/components.css"]}}
    _themes: ClassVar[dict[str, type[Theme]]] = {"default": DashboardTheme, "dark": DashboardTheme}
