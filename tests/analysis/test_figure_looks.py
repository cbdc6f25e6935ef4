import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from scalerlt.analysis.drawing import (
    COLORS,
    HATCHES,
    area_of,
    color_of,
    fixed_style,
    lightness,
    line_of,
    marker_of,
    new_figure,
    release,
    sample,
)

SERIES = 20
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
TRITANOPIA = [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
"""Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, at severity 1; they act on linear RGB."""
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(color: str, seen_by: Any = None) -> NDArray[np.float64]:
    """CIE L*a*b* of a colour, as somebody sees it."""
    encoded = np.array(to_rgb(color))
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    if seen_by is not None:
        linear = np.clip(np.array(seen_by) @ linear, 0, 1)
    ratios = np.array(TO_XYZ) @ linear / np.array([0.9505, 1.0, 1.089])
    roots = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * roots[1] - 16, 500 * (roots[0] - roots[1]), 200 * (roots[1] - roots[2])])


@pytest.mark.parametrize("seen_by", [None, PROTANOPIA, DEUTERANOPIA, TRITANOPIA])
def test_colours_are_told_apart_by_the_colour_blind(seen_by: Any) -> None:
    for one, other in itertools.combinations(COLORS, 2):
        assert np.linalg.norm(lab(one, seen_by) - lab(other, seen_by)) > 25, (one, other)


def test_neighbours_differ_in_lightness() -> None:
    for color in COLORS:
        assert lightness(color) == pytest.approx(lab(color)[0], abs=0.1)
    for one, other in itertools.pairwise(COLORS):
        assert abs(lightness(one) - lightness(other)) > 12, (one, other)


def grey(figure: Figure) -> NDArray[np.float64]:
    """A painted figure in grey, 0 to 255."""
    canvas: Any = figure.canvas
    canvas.draw()
    colours = np.asarray(canvas.buffer_rgba(), dtype=float)[..., :3]
    release(figure)
    return colours @ np.array([0.299, 0.587, 0.114])


def coarse(image: NDArray[np.float64], pixels: int = 4) -> NDArray[np.float64]:
    """As seen from a reading distance: small squares are averaged."""
    rows, columns = (length - length % pixels for length in image.shape)
    return image[:rows, :columns].reshape(rows // pixels, pixels, columns // pixels, pixels).mean(axis=(1, 3))


def painted_area(series: int) -> NDArray[np.float64]:
    with fixed_style():
        figure = new_figure(0.5)
        figure.add_artist(Rectangle((0, 0), 1, 1, **area_of(series), linewidth=0))
        return coarse(grey(figure))


def painted_line(series: int) -> NDArray[np.float64]:
    with fixed_style():
        figure = new_figure(0.7)
        line = sample(series)
        line.set_data([0.1, 0.5, 0.9], [0.3, 0.6, 0.3])
        figure.add_artist(line)
        return coarse(grey(figure))


@pytest.mark.parametrize("paint", [painted_area, painted_line])
def test_twenty_series_are_told_apart_in_grey(paint: Any) -> None:
    """Either the mean grey differs, or the pattern does: hatch, line style or marker."""
    images = [paint(series) for series in range(SERIES)]
    for one, other in itertools.combinations(range(SERIES), 2):
        difference = np.sqrt(np.mean((images[one] - images[other]) ** 2))
        assert difference > 5, (one, other, difference)


def test_no_two_of_twenty_series_look_the_same() -> None:
    areas = [(area_of(series)["facecolor"], area_of(series)["hatch"]) for series in range(SERIES)]
    lines = [(color_of(s), str(line_of(s)), tuple(marker_of(s).values())) for s in range(SERIES)]
    assert len(set(areas)) == len(set(lines)) == SERIES
    assert len({look[:2] for look in lines}) == SERIES  # a curve of many points has no markers
    assert len({area_of(series)["hatch"] for series in range(len(HATCHES))}) == len(HATCHES)


def test_a_hatch_is_seen_on_its_colour() -> None:
    for series in range(SERIES):
        look = area_of(series)
        if look["hatch"]:
            assert abs(lightness(look["facecolor"]) - lightness(look["edgecolor"])) > 40


def test_samples_look_like_what_they_stand_for() -> None:
    for series in range(SERIES):
        line = sample(series)
        assert isinstance(line, Line2D)
        assert line.get_color() == color_of(series)
        assert line.get_marker() == marker_of(series)["marker"]
        assert sample(series, marker=False).get_marker() == "None"
