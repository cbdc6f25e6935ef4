"""How wide a figure is in the papers of common venues, so that it is printed at its own size, text and all."""

from typing import Literal

Venue = Literal["neurips", "icml", "acl", "ieee", "acm"]
Width = Literal["column", "page"]

_CM = 1 / 2.54
_POINT = 1 / 72.27  # TeX's

INCHES: dict[Venue, dict[Width, float]] = {
    "neurips": {"column": 5.5, "page": 5.5},
    "icml": {"column": 3.25, "page": 6.75},
    "acl": {"column": 7.7 * _CM, "page": 16.0 * _CM},
    "ieee": {"column": 252 * _POINT, "page": 516 * _POINT},
    "acm": {"column": 241.14749 * _POINT, "page": 506.295 * _POINT},
}
"""Inches of one column and of the page's text, as the venues' LaTeX classes set them.

NeurIPS: neurips_2025.sty, one column of 5.5 in. ICML: icml2025.sty, text 6.75 in with a gap of 0.25 in. ACL: acl.sty,
text 16 cm with a gap of 0.6 cm. IEEE: IEEEtran.cls (journal and conference), columns of 21 pc with a gap of 1 pc.
ACM: acmart.cls (sigconf), columns of 241.14749 pt with a gap of 24 pt.
"""
