"""The list of plans, and two of them side by side."""

from enplace_studio.plans.view import PlansView

__all__ = ["PlansView"]
