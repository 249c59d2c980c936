"""Colours for data and text, light and dark; no other module defines a colour."""

from enplace.values.cluster import Cluster

LIGHT = {
    "bg": "#F6F7F9",
    "panel": "#FFFFFF",
    "line": "#E1E5EA",
    "text": "#1B1F24",
    "dim": "#5B6672",
    "faint": "#8A94A0",
    "accent": "#1B66DC",
    "on_accent": "#FFFFFF",
    "lane": "#F1F3F6",
    "good": "#197A48",
    "bad": "#B42318",
    "hover": "#EEF2F7",
}
DARK = {
    "bg": "#14171B",
    "panel": "#1B1F24",
    "line": "#2C333B",
    "text": "#E8ECF1",
    "dim": "#A3AEBA",
    "faint": "#76818D",
    "accent": "#5694FF",
    "on_accent": "#0B1220",
    "lane": "#22272E",
    "good": "#4CC38A",
    "bad": "#FF7B72",
    "hover": "#262C33",
}

# Okabe and Ito's colours, which colour-blind people can tell apart, then darker companions for
# clusters of more than eight devices; lightened for dark mode. Their grey is too close to the pink
# for many colour-blind people, so ours differs more in lightness.
DEVICES_LIGHT = tuple(
    "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442 #6B6B6B "  # noqa: SIM905
    "#2D3748 #8C2D5A #1F6B3A #3B3A8F #A85C9E #7A3B12 #5C8AC4 #8A8500 #2B8C8C".split()
)
DEVICES_DARK = tuple(
    "#4BA3D9 #F0B840 #35C49A #E29AC2 #7CC7F2 #F08A4B #F5EE7A #D8D8D8 "  # noqa: SIM905
    "#64748B #C96A97 #5FB37E #8685D9 #CF93C7 #BF7F55 #9BBDE8 #C4BF4A #6CC4C4".split()
)


CPU_COLOUR = 2
"""The number of the colour that CPUs have, on every cluster, and no GPU."""


def colour_numbers(cluster: Cluster) -> list[int]:
    """Return the number of each device's colour: GPUs keep theirs on a cluster with more of them.

    A cluster without a GPU computes on its CPUs, which then have the colours of GPUs.
    """
    others = [number for number in range(len(DEVICES_LIGHT)) if number != CPU_COLOUR]
    numbers = [CPU_COLOUR] * cluster.n_devices
    for at, gpu in enumerate(cluster.gpus):
        numbers[gpu] = others[at % len(others)]
    return numbers


def device_class(colour: int) -> str:
    """Name the CSS class that fills with a device's colour; with ``-line``, it draws a line."""
    return f"d{colour}"


def picture_style() -> str:
    """Return a picture's CSS, without variables: few programs other than browsers support them."""
    dark = _rules(DARK, DEVICES_DARK)
    return f"{_rules(LIGHT, DEVICES_LIGHT)}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _rules(tokens: dict[str, str], devices: tuple[str, ...]) -> str:
    rules = [
        f".bg{{fill:{tokens['panel']}}}.lane{{fill:{tokens['lane']}}}",
        f".text{{fill:{tokens['text']}}}.dim{{fill:{tokens['dim']}}}",
        f".line{{stroke:{tokens['line']}}}",
        f".sent{{fill:{tokens['dim']}}}.sent-line{{stroke:{tokens['dim']}}}",
        f".limit{{stroke:{tokens['bad']};stroke-dasharray:4 3}}.bad-text{{fill:{tokens['bad']}}}",
        f".edge{{stroke:{tokens['faint']};fill:none}}",
        f".cut{{stroke:{tokens['bad']};stroke-dasharray:5 4;fill:none}}",
        f".path{{stroke:{tokens['text']};fill:none}}",
    ]
    rules += [f".d{i}{{fill:{c}}}.d{i}-line{{stroke:{c}}}" for i, c in enumerate(devices)]
    return "".join(rules)
