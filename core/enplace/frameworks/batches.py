"""Whether a model gets batches of the shapes for which its plan was made."""

from __future__ import annotations

from collections.abc import Sequence

from enplace.text import listed

Shapes = Sequence[Sequence[int]]


def about_other_batches(planned: Shapes, given: Shapes) -> str:
    """Name the shapes that differ and what to do about it; empty if none do, or none are known."""
    pairs = list(zip(planned, given, strict=False))
    differing = [pair for pair in pairs if list(pair[0]) != list(pair[1])]
    if not differing:
        return ""
    profiled, found = (shapes_text([pair[i] for pair in differing]) for i in (0, 1))
    return (
        f"The plan was made for other batches: their shapes are {found}, and those of the profile "
        f"{profiled}. The prediction is for the latter, and another plan may be faster: profile "
        f"the model with these batches and make a new plan, or go back to the profiled size "
        f"(--batch-size, or in the script)."
    )


def may_be_the_rest(planned: Shapes, given: Shapes) -> bool:
    """Whether a batch may be what is left of the data after whole ones: it is only shorter."""
    return all(
        len(p) == len(g) and list(p[1:]) == list(g[1:]) and list(g[:1]) <= list(p[:1])
        for p, g in zip(planned, given, strict=False)
    )


def shapes_text(shapes: Shapes) -> str:
    """Show shapes: ``8 × 12 and 8``."""
    return listed([" × ".join(map(str, shape)) or "a single number" for shape in shapes])
