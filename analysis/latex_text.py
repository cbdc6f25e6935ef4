r"""Texts as LaTeX shows them: escaped after they were formatted, so that nothing in a name is read as a command.

No package and no encoding of fonts is asked for: what the kernel's own fonts lack is written as its number (U+4E2D).
"""

import re
import unicodedata

from scalerlt.analysis.formatting import one_line

_COMMANDS = r"""
    \textbackslash{} \textasciitilde{} \textasciicircum{} \textless{} \textgreater{} \textbar{}
    {\ttfamily\char34} {\ttfamily\char96}"""
_LETTERS = "ss ae AE oe OE o O l L copyright"
_SYMBOLS = r"""
    - \times \pm \mp \cdot \div ^{\circ} \surd \leq \geq \neq \approx \equiv \propto \sim \infty \partial \nabla
    \sum \prod \int \in \rightarrow \leftarrow \leftrightarrow \uparrow \downarrow \Rightarrow \wedge \vee \neg
    \cap \cup \subset \mu \epsilon \varsigma \ell {}^{\prime} \odot \otimes \oplus"""
_LATIN_LIKE = "ALPHA BETA EPSILON ZETA ETA IOTA KAPPA MU NU OMICRON RHO TAU CHI"

_PLAIN = {
    **{character: f"\\{character}" for character in "{}$&#_%"},
    **{character: f"{{{character}}}" for character in "[]*"},  # else an argument of the end of the row before
    **dict(zip('\\~^<>|"`', _COMMANDS.split(), strict=True)),
    **dict(zip("–—‘’“”…§", ("--{}", "---{}", "`{}", "'{}", "``{}", "''{}", r"\ldots{}", r"\S{}"), strict=True)),
    **dict(zip("ßæÆœŒøØłŁ©", (rf"\{name}{{}}" for name in _LETTERS.split()), strict=True)),
}
_JOINING = "-,'"
"""Two of these one after the other would become another character: a dash, a quotation mark."""
_MATHEMATICAL = dict(zip("−×±∓·÷°√≤≥≠≈≡∝∼∞∂∇∑∏∫∈→←↔↑↓⇒∧∨¬∩∪⊂µϵςℓ′⊙⊗⊕", _SYMBOLS.split(), strict=True))
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)")
_LIKE_LATIN = dict(zip(_LATIN_LIKE.split(), "ABEZHIKMNOPTX", strict=True))


def escape_latex(text: str) -> str:
    """The text on one line, as LaTeX that shows it."""
    line = one_line(text)
    return "".join(
        ("{}" if character == before and character in _JOINING else "") + _escaped(character)
        for before, character in zip(f" {line}", line, strict=False)
    )


def _escaped(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    if " " <= character <= "~":
        return character
    if character in _MATHEMATICAL:
        return f"${_MATHEMATICAL[character]}$"
    if (greek := _GREEK.fullmatch(unicodedata.name(character, ""))) is not None:
        return _greek(greek[1], greek[2])
    letters = unicodedata.normalize("NFKD", character)
    if len(letters) == 2 and letters[0].isascii() and letters[1] in _ACCENTS:
        letter = rf"\{letters[0]}" if letters[0] in "ij" and letters[1] != "\u0327" else letters[0]
        return rf"{{\{_ACCENTS[letters[1]]}{{{letter}}}}}"
    if letters.isascii() and letters.isalnum():  # a ligature, or a raised or lowered letter
        place = {"<super>": "^", "<sub>": "_"}.get(unicodedata.decomposition(character).partition(" ")[0])
        return f"${place}{{{letters}}}$" if place else letters
    return rf"\texttt{{U+{ord(character):04X}}}"


def _greek(case: str, name: str) -> str:
    name = {"LAMDA": "LAMBDA"}.get(name, name)
    if case == "CAPITAL":
        return rf"$\mathrm{{{_LIKE_LATIN[name]}}}$" if name in _LIKE_LATIN else rf"$\{name.capitalize()}$"
    return "$o$" if name == "OMICRON" else rf"$\{name.lower()}$"
