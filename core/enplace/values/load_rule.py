"""How the time per sample of a pipeline follows from the loads of its devices."""

from __future__ import annotations

from dataclasses import dataclass

from enplace.text import count

TRANSFERS = ("sum", "overlap", "duplex")
"""How transfers count (Tarnawski et al. 2020, appendix C.1): added to the compute time; overlapping
with it, so that the larger of the two counts; or with incoming and outgoing transfers overlapping
as well, so that the largest of the three counts."""

PIPELINES = ("1f1b", "interleaved", "zb-h1", "zbv", "gpipe")
"""Which training schedule counts (section 5.3): PipeDream's, where a device's load covers both
passes; the same where devices have several stages each, where gradients of weights wait, or both;
or GPipe's, where all samples go forward first and each pass has its busiest device."""

_RESOURCES = {"sum": (0, 0, 0), "overlap": (0, 1, 1), "duplex": (0, 1, 2)}

_IN_WORDS = {
    "sum": "transfers add to computing",
    "overlap": "transfers overlap with computing",
    "duplex": "transfers overlap with computing and, in and out, with each other",
}


@dataclass(frozen=True)
class LoadRule:
    """How loads of devices count.

    Attributes
    ----------
    transfers : str
        One of :data:`TRANSFERS`.
    pipeline : str
        One of :data:`PIPELINES`.
    microbatches : int
        Samples of a step, which share what runs once per step. With GPipe all are in flight, and
        count towards memory.
    replicate : bool
        Whether a stage may have replicas on several devices (appendix C.2).
    recompute : bool
        Whether a stage may keep only what its forward ops receive, and run them again before its
        backward ops.
    in_flight : bool
        Whether the activations of all samples in flight count towards memory, or, as in the paper,
        those of one sample.
    two_level : bool
        Whether tensors between machines also occupy each machine's network (appendix C.3).
    """

    transfers: str = "sum"
    pipeline: str = "1f1b"
    microbatches: int = 8
    replicate: bool = False
    two_level: bool = False
    recompute: bool = False
    in_flight: bool = True

    @property
    def words(self) -> str:
        """The rule in words."""
        parts = [self.pipeline, count(self.microbatches, "sample"), _IN_WORDS[self.transfers]]
        parts += ["networks between machines count"] * self.two_level
        parts += ["stages may have replicas"] * self.replicate
        parts += ["stages may compute again"] * self.recompute
        parts += ["memory counts one sample"] * (not self.in_flight)
        return ", ".join(parts)

    @property
    def n_passes(self) -> int:
        """Number of passes whose loads count separately."""
        return 2 if self.pipeline == "gpipe" else 1

    @property
    def n_resources(self) -> int:
        """Number of parts of a device that work at the same time."""
        return max(_RESOURCES[self.transfers]) + 1

    def resource(self, part: int) -> int:
        """Return the resource that does a part of the load; the first one computes."""
        return _RESOURCES[self.transfers][part]

    def pass_number(self, of: int) -> int:
        """Return which of the :attr:`n_passes` a pass counts towards."""
        return min(of, self.n_passes - 1)


USUAL = LoadRule()
"""The rule of a plan that names none."""

PAPER = LoadRule(in_flight=False)
"""The rule of the tables of 2020, which counts the memory of one sample."""
