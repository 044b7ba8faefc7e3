"""The logo: a tall factor times a wide one."""

from shapes import BLUE, ORANGE, Drawing


def drawing() -> Drawing:
    d = Drawing(64, 64, "torchdion", background="none")
    d.parts.append(f'<rect x="8" y="8" width="14" height="48" rx="3" fill="{BLUE}"/>')
    d.parts.append(f'<rect x="27" y="8" width="29" height="14" rx="3" fill="{ORANGE}"/>')
    d.parts.append(f'<rect x="27" y="27" width="29" height="29" rx="3" fill="{BLUE}" fill-opacity="0.4"/>')
    return d
