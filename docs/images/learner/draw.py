"""Draws what each checkpoint schedule keeps and computes again: `python docs/images/learner/draw.py` writes the SVGs.

Time runs along the numbers. Upwards are the K loops, each of L layers; to the right the prompt and its responses.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

K, L = 4, 2
LAYER = 14  # height of a layer's band
STACK = K * L * LAYER
TOP, LEFT, WIDTH, HEIGHT = 80, 62, 760, 330
PROMPT, RESPONSE, GAP, HANDED = 116, 60, 8, 18

INK, MUTED, KEPT, AGAIN = "#1f2933", "#5b6773", "#3b7dd8", "#e39a2d"
HEADER = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"
  role="img" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">
<title>TITLE</title>
<defs>
  <pattern id="again" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="7" height="7" fill="#fff7e8"/><rect width="2.6" height="7" fill="{AGAIN}"/>
  </pattern>
  <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
    <path d="M0 0 L8 4 L0 8 z" fill="{MUTED}"/>
  </marker>
</defs>
<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" fill="#ffffff" stroke="#c5ccd3"/>
"""
FILLS = {"kept": KEPT, "again": "url(#again)", "run": "#ffffff"}


@dataclass
class Drawing:
    """One schedule's picture, from left to right."""

    name: str
    title: str
    parts: list[str] = field(default_factory=list)
    x: float = LEFT

    def text(self, x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle", fill: str = INK) -> None:
        """Words at a place."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'
        )

    def rect(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = INK) -> None:
        """A rectangle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, more: str = "", width: float = 1.3) -> None:
        """A thin line."""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{MUTED}" stroke-width="{width:g}" {more}/>'
        )

    def number(self, x: float, y: float, step: int) -> None:
        """A step of the order, in a circle."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="#ffffff" stroke="{INK}"/>')
        self.text(x, y + 4.5, str(step))

    def block(self, width: float, fill: str, label: str, steps: tuple[int, ...] = (), inputs: int = 0) -> float:
        """Loops over some tokens; every `inputs`-th layer's input is kept. Returns its middle."""
        x = self.x
        self.rect(x, TOP, width, STACK, FILLS[fill])
        for layer in range(1, K * L):
            y = TOP + STACK - layer * LAYER
            heavy = "" if layer % L == 0 else 'stroke-dasharray="2 3" opacity="0.6"'
            self.line(x, y, x + width, y, more=heavy)
        for layer in range(0, K * L, inputs) if inputs else ():
            self.rect(x, TOP + STACK - layer * LAYER - 5, width, 5, KEPT, stroke="none")
        self.text(x + width / 2, TOP + STACK + 17, label)
        for number, step in enumerate(steps):
            self.number(x + width / 2 + 21 * (number - (len(steps) - 1) / 2), TOP - 14, step)
        self.x += width
        return x + width / 2

    def whole(self, fill: str, inputs: int = 0) -> None:
        """Three responses, each with its own copy of the prompt."""
        for number in range(1, 4):
            self.block(PROMPT, fill, "prompt", (), inputs)
            middle = self.block(RESPONSE, fill, f"resp. {number}", (), inputs)
            if number == 2:
                for place, step in enumerate((1, 2)):
                    self.number(middle - RESPONSE / 2 - PROMPT / 2 + 24 * place, TOP - 14, step)
            self.x += 3 * GAP

    def handed(self) -> None:
        """The boundary: K and V of every loop and layer, and the last states."""
        self.rect(self.x + GAP / 2, TOP, HANDED, STACK, KEPT)
        self.text(self.x + GAP / 2 + HANDED / 2, TOP + STACK + 17, "K, V", size=12)
        self.x += HANDED + GAP

    def loops(self) -> None:
        """The names of the loops."""
        for loop in range(K):
            y = TOP + STACK - (loop * L + L / 2) * LAYER + 4
            self.text(LEFT - 8, y, f"loop {loop + 1}", size=12, anchor="end", fill=MUTED)

    def lines(self, *said: str) -> None:
        """What the numbers are."""
        for row, words in enumerate(said):
            self.text(LEFT - 44, TOP + STACK + 46 + 18 * row, words, anchor="start")

    def legend(self) -> None:
        """What the fills mean."""
        x = LEFT - 44
        for fill, words in (
            ("kept", "kept for the backward pass"),
            ("again", "computed again"),
            ("run", "run, not kept"),
        ):
            self.rect(x, HEIGHT - 26, 22, 13, FILLS[fill])
            self.text(x + 29, HEIGHT - 15, words, size=12, anchor="start", fill=MUTED)
            x += 60 + 7 * len(words)

    def svg(self) -> str:
        """The whole picture."""
        self.legend()
        head = HEADER.replace("TITLE", escape(self.title))
        title = f'<text x="{LEFT - 44}" y="27" font-size="15" font-weight="bold">{escape(self.title)}</text>\n'
        return head + title + "\n".join(self.parts) + "\n</svg>\n"


def drawing(name: str, words: str) -> Drawing:
    """An empty picture with the loops named at its left."""
    made = Drawing(name, f"{name}: {words}")
    made.loops()
    return made


def none() -> Drawing:
    """Whole sequences, all kept."""
    made = drawing("none", "everything is kept")
    made.whole("kept")
    made.lines("1 forward, 2 backward. G copies of the prompt run through all loops, packed without padding.")
    return made


def layer() -> Drawing:
    """Whole sequences, the layers' inputs kept."""
    made = drawing("layer", "the input of every layer call is kept")
    made.whole("again", inputs=1)
    made.lines(
        "1 forward, 2 backward: layer by layer from the top, each computed again from its input.",
        "K × L inputs stay; the inside of one layer is alive at a time.",
    )
    return made


def loop() -> Drawing:
    """Whole sequences, the loops' inputs kept."""
    made = drawing("loop", "the input of every loop is kept")
    made.whole("again", inputs=L)
    made.lines(
        "1 forward, 2 backward: loop by loop from the top, each computed again from its input.",
        "K inputs stay; the inside of one loop is alive at a time.",
    )
    return made


def segments() -> Drawing:
    """Whole sequences, in segments of loops and chunks of queries."""
    made = drawing("segments", "here loop_interval=2, and query_chunk half a sequence")
    width = 2 * PROMPT + RESPONSE
    for place in (0, 1):
        start = made.x
        made.block(width, "again", f"prompt and resp. {place + 1}", (1, 2), inputs=2 * L)
        middle = start + width / 2
        made.line(middle, TOP, middle, TOP + STACK, more='stroke-dasharray="7 4"', width=2.5)
        for high in (0, 1):
            y = TOP + STACK - (1 + 4 * high) * LAYER - LAYER / 2 - 9
            made.line(middle + 46, y, start + 60, y, more='marker-end="url(#tip)"')
        made.x += 3 * GAP
    made.lines(
        "1 forward, 2 backward: two loops at a time, each computed again from its input, and in them a chunk",
        "of positions at a time. The queries of a chunk attend to their full causal prefix (arrows), whose K",
        "and V stay while its layer runs.",
    )
    return made


def prefix() -> Drawing:
    """A shared prompt, all kept."""
    made = drawing("prefix", "the prompt once, its responses in waves")
    made.block(PROMPT * 1.4, "kept", "prompt", (1, 6))
    made.handed()
    waves(made, "kept")
    made.lines(
        "1 prompt forward. 2 and 3: a wave, forward and backward, on detached K and V. 4 and 5: the next,",
        "when the first is gone. What the waves leave as gradient of K and V adds up, and 6, one backward",
        "pass of the prompt, takes the sum.",
    )
    return made


def joint() -> Drawing:
    """A shared prompt, all computed again."""
    made = drawing("joint", "as prefix, and of a graph only its inputs are kept")
    made.block(PROMPT * 1.4, "again", "prompt", (1, 6))
    made.handed()
    waves(made, "again")
    made.lines(
        "1 prompt forward. 2 and 4: a wave forward. 3 and 5: the wave again, its readout too, and backward.",
        "6: the prompt again, and its backward pass from the sum. K and V, tokens and labels are all that",
        "stays; everything runs twice.",
    )
    return made


def streamed() -> Drawing:
    """A shared prompt that runs twice."""
    made = drawing("streamed", "the prompt twice, no wave twice")
    made.block(PROMPT * 0.9, "run", "prompt, first", (1,))
    made.handed()
    waves(made, "kept")
    made.x += GAP
    made.block(PROMPT * 0.9, "again", "prompt, again", (6, 7))
    made.lines(
        "1 prompt forward, without a graph. 2 to 5: each wave forward and backward at once. Then K and V go.",
        "6: the prompt again, now with its graph, and 7: its backward pass from the sum. No graph of the",
        "prompt is alive beside one of a wave.",
    )
    return made


def waves(made: Drawing, fill: str) -> None:
    """Two waves of two responses."""
    first = made.x
    for number in (1, 2):
        made.block(RESPONSE, fill, f"resp. {number}")
    for place, step in enumerate((2, 3)):
        made.number(first + RESPONSE + 22 * (place - 0.5), TOP - 14, step)
    made.x += 2 * GAP
    second = made.x
    for number in (3, 4):
        made.block(RESPONSE, fill, f"resp. {number}")
    for place, step in enumerate((4, 5)):
        made.number(second + RESPONSE + 22 * (place - 0.5), TOP - 14, step)
    for start, number in ((first, 1), (second, 2)):
        made.text(start + RESPONSE, TOP - 29, f"wave {number}", size=12, fill=MUTED)


def packed_shared() -> Drawing:
    """A shared prompt in one pass with its responses."""
    made = drawing("packed_shared", "the prompt and all responses in one masked pass")
    made.block(PROMPT * 1.4, "kept", "prompt")
    start = made.x
    for number in range(1, 5):
        made.block(RESPONSE, "kept", f"resp. {number}")
    for place, step in enumerate((1, 2)):
        made.number(start + 22 * (place - 0.5), TOP - 14, step)
    mask(made, made.x + 70)
    made.lines(
        "1 forward, 2 backward, of all rows at once: half as many products as prefix, each larger.",
        "Right: which keys (across) a row (down) sees: the prompt, and its own response so far.",
    )
    return made


def mask(made: Drawing, x: float) -> None:
    """Which keys each row sees."""
    sizes = [30, 16, 16, 16, 16]
    y, starts = float(TOP), [sum(sizes[:n]) for n in range(5)]
    total = sum(sizes)
    made.rect(x, y, total, total, "#ffffff")
    for number, size in enumerate(sizes):
        top = y + starts[number]
        if number:
            made.rect(x, top, sizes[0], size, KEPT, stroke="none")
        left = x + starts[number]
        corners = f"M{left:g} {top:g} V{top + size:g} H{left + size:g} z"
        made.parts.append(f'<path d="{corners}" fill="{KEPT}" stroke="{INK}" stroke-width="0.6"/>')
        made.line(x, top, x + total, top, more='opacity="0.5"')
    made.line(x + sizes[0], y, x + sizes[0], y + total, more='opacity="0.5"')


def auto() -> Drawing:
    """The choice among the others."""
    made = Drawing("auto", "auto: chosen by measurement, under a memory budget")
    boxes = (
        (LEFT - 44, 176, ("lengths, G, K, L", "of this step")),
        (LEFT + 176, 196, ("cost model", "fitted to measurements of", "this learner on this machine")),
        (
            LEFT + 416,
            266,
            ("the fastest whose predicted", "peak is within the budget;", "none where sharing cannot pay"),
        ),
    )
    for number, (x, width, words) in enumerate(boxes, 1):
        made.rect(x, 62, width, 70, "#eef3fa")
        for row, line in enumerate(words):
            made.text(x + width / 2, 62 + 39 + 18 * (row - (len(words) - 1) / 2), line)
        made.number(x + 2, 62, number)
        if number < 3:
            made.line(x + width + 4, 97, boxes[number][0] - 6, 97, more='marker-end="url(#tip)"')
    names = ("none", "packed_shared", "prefix", "streamed", "joint", "layer", "loop")
    looks = ("kept", "kept", "kept", "kept", "again", "again", "again")
    x = float(LEFT - 44)
    for name, look in zip(names, looks, strict=True):
        shared = name in ("packed_shared", "prefix", "streamed", "joint")
        here = x
        for width in (26, 9, 9, 9) if shared else (20, 9, 20, 9):
            made.rect(here, 162, width, 48, FILLS["run" if name == "streamed" and width == 26 else look])
            here += width + (3 if shared and width == 26 and name != "packed_shared" else 0)
        made.text(x + 30, 228, name, size=12)
        x += 100
    made.line(LEFT + 250, 134, LEFT + 250, 156, more='marker-end="url(#tip)"')
    made.text(
        LEFT - 44, 262, "Without a budget: none, packed_shared or prefix. With one, the others too.", anchor="start"
    )
    made.text(LEFT - 44, 280, "What was chosen, and the coefficients of the model, are in the record.", anchor="start")
    return made


def main() -> None:
    """Write all of them beside this file."""
    folder = Path(__file__).parent
    for make in (none, layer, loop, segments, prefix, joint, streamed, packed_shared, auto):
        made = make()
        (folder / f"{made.name}.svg").write_text(made.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
