"""QR codes as one SVG path, drawn by the styles that are there."""

from functools import lru_cache

import segno
from django.utils.html import format_html
from django.utils.safestring import SafeString

QUIET = 2


def qr(text: str, *, label: str) -> SafeString:
    """``text`` as a QR code of middling error correction; ``label`` says what it is to those who can't see it."""
    size, path = _drawn(text)
    return format_html(
        '<svg viewBox="0 0 {0} {0}" role="img" aria-label="{1}" shape-rendering="crispEdges"><path d="{2}"/></svg>',
        size,
        label,
        path,
    )


@lru_cache(maxsize=256)
def _drawn(text: str) -> tuple[int, str]:
    """Width in modules with the quiet zone, and the dark modules as a path. A page asks for the same code again and again."""
    rows = [bytes(row) for row in segno.make(text, error="m", micro=False).matrix]
    path = "".join(
        f"M{x + QUIET} {y + QUIET}h1v1h-1z" for y, row in enumerate(rows) for x, dark in enumerate(row) if dark
    )
    return len(rows) + 2 * QUIET, path
