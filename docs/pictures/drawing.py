"""A few shapes, as SVG. Pictures are made by code so that they can be read, changed and compared like the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

INK, PALE = "#263238", "#78909c"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Paint:
    """The colours of a box: what is in it and around it."""

    fill: str
    edge: str


PLAIN = Paint("#ffffff", "#90a4ae")
GROUND = Paint("#f3f6f7", "#cfd8dc")
GOOD = Paint("#d3ece8", "#00796b")
SECOND = Paint("#fff1d1", "#b26a00")
DEAD = Paint("#fbdcda", "#b3261e")
DOUBT = Paint("#e8dff7", "#5e35b1")
SOURCE = Paint("#dbe8fb", "#1e5aa8")


@dataclass
class Picture:
    """What is drawn comes in front of what was drawn before. Lengths are pixels, y grows downwards."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, text: str = "", paint: Paint = PLAIN, *, dashed: bool = False
    ) -> None:
        """A box with lines of text in its middle."""
        style = " stroke-dasharray='5 4'" if dashed else ""
        self.parts.append(
            f"<rect x='{x:g}' y='{y:g}' width='{w:g}' height='{h:g}' rx='4' fill='{paint.fill}' "
            f"stroke='{paint.edge}'{style}/>"
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4.5 + (number - (len(lines) - 1) / 2) * 16, line)

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "middle", bold: bool = False, colour: str = INK
    ) -> None:
        weight = " font-weight='600'" if bold else ""
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' fill='{colour}'{weight}>{escape(text)}</text>"
        )

    def line(self, *points: tuple[float, float], colour: str = PALE, dashed: bool = False, wide: float = 1.2) -> None:
        self._path(points, colour, dashed, wide, "")

    def arrow(self, *points: tuple[float, float], colour: str = INK, dashed: bool = False, wide: float = 1.4) -> None:
        """A line with a head at its end."""
        self._path(points, colour, dashed, wide, f" marker-end='url(#head-{colour.strip('#')})'")

    def dots(self, x: float, y: float, w: float, count: int, paint: Paint = SOURCE) -> None:
        """Rows, spread over a width."""
        for number in range(count):
            across = x + w * (number + 0.5) / count
            self.parts.append(f"<circle cx='{across:.1f}' cy='{y:g}' r='3.2' fill='{paint.edge}'/>")

    def cross(self, x: float, y: float, size: float = 9) -> None:
        """What is dead."""
        for sign in (1, -1):
            ends = (x - size, y - sign * size), (x + size, y + sign * size)
            self.line(*ends, colour=DEAD.edge, wide=3)

    def svg(self) -> str:
        heads = sorted({part.split("#head-")[1].split(")")[0] for part in self.parts if "#head-" in part})
        markers = "".join(
            f"<marker id='head-{head}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
            f"orient='auto'><path d='M0,0.6 L8,4 L0,7.4 Z' fill='#{head}'/></marker>"
            for head in heads
        )
        body = "\n".join(self.parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
            f"width='{self.width}' height='{self.height}' {FONT} font-size='13' role='img'>\n"
            f"<title>{escape(self.title)}</title>\n<defs>{markers}</defs>\n"
            f"<rect width='{self.width}' height='{self.height}' fill='#ffffff'/>\n{body}\n</svg>\n"
        )

    def _path(self, points: tuple[tuple[float, float], ...], colour: str, dashed: bool, wide: float, head: str) -> None:
        path = " ".join(f"{'M' if not n else 'L'}{x:g},{y:g}" for n, (x, y) in enumerate(points))
        style = " stroke-dasharray='5 4'" if dashed else ""
        self.parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='{wide:g}'{style}{head}/>")
