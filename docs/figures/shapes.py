"""Boxes, arrows and words of a drawing, as SVG."""

from dataclasses import dataclass, field
from html import escape

BLUE, ORANGE, GREEN, PURPLE, RED = "#0b5fa5", "#d9731a", "#2b8a57", "#7b4fa3", "#b3352f"
INK, GREY, PALE = "#222222", "#6b7280", "#f2f4f7"
FONT = "'DejaVu Sans', Verdana, sans-serif"


@dataclass
class Drawing:
    """Of a width and height in pixels; `title` is what it says to those who do not see it."""

    width: float
    height: float
    title: str
    background: str = "white"  # readable on pages of any color
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, color: str, label: str = "", **how: str) -> None:
        """A rectangle with its label in the middle. how: `fill` instead of a tint of the color, `dash`."""
        fill = how.get("fill", color)
        opacity = "1" if "fill" in how else "0.16"
        dash = f' stroke-dasharray="{how["dash"]}"' if "dash" in how else ""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"'
        self.parts.append(f'<rect {place} fill="{fill}" fill-opacity="{opacity}" stroke="{color}"{dash}/>')
        if label:
            lines = label.split("\n")
            for number, line in enumerate(lines):
                middle = y + height / 2 + 5 + 17 * (number - (len(lines) - 1) / 2)
                self.text(x + width / 2, middle, line, color=color, anchor="middle", weight="bold")

    def text(self, x: float, y: float, words: str, color: str = INK, size: float = 14, **how: str) -> None:
        """how: `anchor` ("start", "middle", "end"), `weight`, `style`."""
        look = f'font-size="{size:g}" fill="{color}" text-anchor="{how.get("anchor", "start")}"'
        look += f' font-weight="{how.get("weight", "normal")}" font-style="{how.get("style", "normal")}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {look}>{escape(words)}</text>')

    def arrow(self, points: list[tuple[float, float]], color: str = GREY, both: bool = False, dash: str = "") -> None:
        """Through the points, with a head at the last one, or at both ends."""
        path = "M" + " L".join(f"{x:g},{y:g}" for x, y in points)
        heads = f'marker-end="url(#head{color[1:]})"' + (f' marker-start="url(#head{color[1:]})"' if both else "")
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" {heads}{dashes}/>')

    def line(self, points: list[tuple[float, float]], color: str = GREY, width: float = 1, dash: str = "") -> None:
        path = "M" + " L".join(f"{x:g},{y:g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashes}/>')

    def svg(self) -> str:
        colors = sorted({BLUE, ORANGE, GREEN, PURPLE, RED, GREY, INK})
        heads = "".join(
            f'<marker id="head{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
            for color in colors
            if f"head{color[1:]})" in "".join(self.parts)
        )
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        parts = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="100%" height="100%" fill="{self.background}"/>\n{parts}\n</svg>\n'
        )
