"""How many examples a property is tested with: few at every change, many in ``make test-long``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FEW, MANY = 20, 200
"""What a property is tested with, unless it says otherwise."""


def load_profile(long: bool) -> None:
    """Choose between few and many examples; modules with properties are imported later."""
    settings.register_profile(
        "enplace",
        deadline=None,  # compiling a kernel takes seconds
        derandomize="CI" in os.environ and not long,  # always the same for each change
        max_examples=MANY if long else FEW,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("enplace")


def examples(few: int) -> settings:
    """Test a slow property with this many examples, and with ten times as many in a long run."""
    return settings(max_examples=few * settings().max_examples // FEW)
