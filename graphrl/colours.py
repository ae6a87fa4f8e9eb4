"""Colours of all pictures, distinguishable with colour blindness, and markers for print."""

# Paul Tol's "muted" scheme, its faint ones darker: lines, devices, methods
COLOURS = (
    "#332288", "#CC6677", "#117733", "#DDAA33", "#33A5D4", "#882255", "#44AA99", "#999933", "#AA4499", "#555555",
)  # fmt: skip
MARKERS = "osD^vP*X<>dph8"
BRIGHT = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#DDAA77")  # areas: types of ops
BETTER, WORSE, LIMIT = "#2E8B57", "#C1121F", "#D55E00"
TEXT, FAINT, GREY, PALE, GRID, LANE = "#222222", "#666666", "#555555", "#B5B5B5", "#DDDDDD", "#F1F1F1"


def colour(number: int) -> str:
    """Returns the colour of the line with this number, from 0; colours repeat."""
    return COLOURS[number % len(COLOURS)]
