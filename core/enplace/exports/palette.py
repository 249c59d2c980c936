"""Colours for data and text, light and dark; devices keep the same colour in every picture."""

LIGHT = {
    "bg": "#F6F7F9",
    "panel": "#FFFFFF",
    "line": "#E1E5EA",
    "text": "#1B1F24",
    "dim": "#5B6672",
    "lane": "#F1F3F6",
    "good": "#1A7F4B",
    "bad": "#B42318",
}
DARK = {
    "bg": "#14171B",
    "panel": "#1B1F24",
    "line": "#2C333B",
    "text": "#E8ECF1",
    "dim": "#A3AEBA",
    "lane": "#22272E",
    "good": "#4CC38A",
    "bad": "#FF7B72",
}

# Okabe and Ito's order, which colour-blind people can tell apart; lightened for dark.
DEVICES_LIGHT = (
    "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442 #999999".split()  # noqa: SIM905
)
DEVICES_DARK = (
    "#4BA3D9 #F0B840 #35C49A #E29AC2 #7CC7F2 #F08A4B #F5EE7A #B8B8B8".split()  # noqa: SIM905
)


def device_class(device: int) -> str:
    """CSS class that fills with a device's colour; with ``-line`` behind it, draws a line in it."""
    return f"d{device % len(DEVICES_LIGHT)}"


def picture_style() -> str:
    """CSS of a picture: no variables, which few programs outside a browser understand."""
    dark = _rules(DARK, DEVICES_DARK)
    return f"{_rules(LIGHT, DEVICES_LIGHT)}@media (prefers-color-scheme:dark){{{dark}}}"


def _rules(tokens: dict[str, str], devices: list[str]) -> str:
    rules = [
        f".bg{{fill:{tokens['panel']}}}.lane{{fill:{tokens['lane']}}}",
        f".text{{fill:{tokens['text']}}}.dim{{fill:{tokens['dim']}}}",
        f".line{{stroke:{tokens['line']}}}",
        f".sent{{fill:{tokens['dim']}}}.sent-line{{stroke:{tokens['dim']}}}",
        f".limit{{stroke:{tokens['bad']};stroke-dasharray:4 3}}",
    ]
    rules += [f".d{i}{{fill:{c}}}.d{i}-line{{stroke:{c}}}" for i, c in enumerate(devices)]
    return "".join(rules)
