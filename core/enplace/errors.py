"""Errors a person can act on: each message names the place, the op or device, and the mend."""


class EnplaceError(Exception):
    """Base of every error that is the input's fault, never the program's."""


class ProfileError(EnplaceError):
    """The graph or its costs are not usable."""


class EmptyProfileError(ProfileError):
    """The graph has no ops."""


class NameTooLongError(ProfileError):
    """An op name, or another text of the profile, is longer than anything TensorFlow would make."""


class DuplicateOpError(ProfileError):
    """Two ops carry the same name."""


class DanglingEdgeError(ProfileError):
    """An edge leads from or to an op that does not exist."""


class TensorMismatchError(ProfileError):
    """Edges of one tensor disagree about its bytes."""


class CycleError(ProfileError):
    """The ops wait for each other in a circle."""


class CostError(ProfileError):
    """A time or a byte count is NaN, negative or absurd."""


class ClusterError(EnplaceError):
    """The description of the machine is not usable."""


class ProblemError(EnplaceError):
    """Profile, cluster and constraints do not go together."""


class UnplaceableOpError(ProblemError):
    """An op cannot run on any device of the cluster."""


class PinConflictError(ProblemError):
    """Pins contradict each other, a colocation group or a forbidden device."""


class DoesNotFitError(ProblemError):
    """Memory cannot be enough whatever the placement."""


class PlanError(EnplaceError):
    """A plan does not belong to the problem or breaks one of its constraints."""


class SplitError(PlanError):
    """An op cannot be split as a plan says."""


class DeadlockError(PlanError):
    """The order given by a plan makes ops wait for each other."""


class FileError(EnplaceError):
    """A file cannot be read or written."""


class CancelledError(EnplaceError):
    """The person stopped the work before there was any result."""


class EnplaceWarning(UserWarning):
    """Something a person should know about a file that is readable all the same."""
