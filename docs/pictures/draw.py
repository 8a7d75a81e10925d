"""Draw the pictures of the documentation: ``python docs/pictures/draw.py`` writes ``docs/images/*.svg``."""

from __future__ import annotations

from pathlib import Path

import concepts
import courses

IMAGES = Path(__file__).parents[1] / "images"
PICTURES = {**concepts.PICTURES, **courses.PICTURES}


def drawn() -> dict[str, str]:
    """The content of each file, by its name."""
    return {f"{name}.svg": picture().svg() for name, picture in PICTURES.items()}


if __name__ == "__main__":
    for name, content in drawn().items():
        (IMAGES / name).write_text(content)
