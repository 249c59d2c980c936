"""What a person demands of every plan: one value, and the table of its kinds.

A constraint is a row of op numbers, device numbers and the like, for example the op and the device
of a pin. What a :class:`Kind` says of its rows is enough to read and write them in every file, to
carry them to a graph with merged or split ops and to another cluster, and to put them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from enplace.text import count
from enplace.values.arrays import BoolArray, FloatArray, IntArray
from enplace.values.cluster import Cluster
from enplace.values.pins import FREE, Pins

OP, DEVICE, PLACEMENT, NUMBER = "op", "device", "placement", "number"
"""What a part of a row may be; a placement is pairs of an op and its device."""

Row = Any
"""The parts of a constraint as a tuple; the part alone if there is but one."""

Ends = Callable[[Any], Sequence[Any]]
"""What stands for an op or a device elsewhere, by number or by name: nothing, one or several."""


class Constrained(Protocol):
    """What a kind reads of a problem."""

    @property
    def constraints(self) -> Constraints: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def unit(self) -> IntArray: ...


class Budget(NamedTuple):
    """What all ops of a plan may spend together.

    Attributes
    ----------
    spends : float array, shape (n_ops, n_devices)
        What each op spends on each device.
    most : float
    excess : str
        What is wrong with a plan that spends more; ``{}`` stands for what it spends.
    """

    spends: FloatArray
    most: float
    excess: str

    def spent(self, device: IntArray) -> float:
        """Return what the ops spend on their devices."""
        return float(self.spends[np.arange(len(device)), device].sum())

    def says(self, spent: float) -> str:
        """Say that a plan spends too much."""
        return self.excess.format(f"{spent:,.10g}")


class Kind:
    """A kind of constraint; each is a subclass, and stands in :data:`KINDS`.

    Attributes
    ----------
    key : str
        Its name in files, and on the command line with ``--`` before it.
    field : str
        Its name in :class:`Constraints` and in projects; by default that in files.
    keyword : str
        Its name in the Python interface; by default that in files.
    roles : tuple of str
        What each part of a row is.
    many : bool
        Whether a row has any number of parts, all with the one role.
    unique : bool
        Whether an op can be in one row only.
    noun : str
        What one is called; the comparison of two plans lists them under its plural.
    phrase, label, sentence : str
        What a row says: in a few words; what is said of the ops in a report; and about what. Of
        phrase and sentence, each ``{}`` stands for a part.
    example : str
        A row, as a person writes it.
    help : str
        What the option of the command line does.
    tried : str
        What the studio tries to find what one costs: it gains nothing from that.
    """

    key: str
    field: str = ""
    keyword: str = ""
    roles: tuple[str, ...] = (OP, DEVICE)
    many = False
    unique = False
    noun: str
    phrase: str
    label: str
    sentence = "{}"
    example = ""
    help = ""
    tried = "moving its ops"

    def __init_subclass__(cls) -> None:
        if len(cls.roles) > (1 if cls.many else 2):
            raise TypeError(f"'{cls.key}': a row has one part, two, or many with one role")
        plain = cls.key.replace("-", "_")
        cls.field, cls.keyword = cls.field or plain, cls.keyword or plain

    # What it demands

    def restrict(self, problem: Constrained, allowed: BoolArray) -> None:
        """Forbid devices to ops: set entries to false; shape (n_ops, n_devices)."""

    def fault(self, problem: Constrained, op: int, device: int) -> str:
        """Say why an op must not run on a device, as a clause; "" if it may.

        It says the same as :meth:`restrict`, of one op, in plain and slow Python.
        """
        return ""

    def budgets(self, problem: Constrained) -> Iterator[Budget]:
        """Yield what a whole plan may spend, if devices for single ops cannot tell."""
        yield from ()

    def check(self, problem: Constrained, device: IntArray) -> str:
        """Say which budget is exceeded with these devices of all ops; "" if none is."""
        for budget in self.budgets(problem):
            if (spent := budget.spent(device)) > budget.most:
                return budget.says(spent)
        return ""

    @property
    def is_mask(self) -> bool:
        """Whether it is about the devices that each op may use, and :meth:`restrict` says all."""
        return type(self).restrict is not Kind.restrict

    @property
    def is_checked(self) -> bool:
        """Whether only a whole plan can be checked; placers need not know of such a kind."""
        return type(self).budgets is not Kind.budgets

    # Its rows

    def collect(self, given: Iterable[Row]) -> Collection[Row]:
        """Return rows as the value keeps them."""
        return frozenset(given)

    def rows(self, kept: Collection[Row]) -> list[Row]:
        """List the rows, always in the same order."""
        return sorted(kept)

    def add(self, kept: Collection[Row], rows: Iterable[Row]) -> Collection[Row]:
        """Return what is kept with more rows; those that were there go first."""
        return self.collect([*self.rows(kept), *rows])

    def parts(self, row: Row) -> list[tuple[str, Any]]:
        """Return each part of a row with its role."""
        if len(self.roles) > 1:
            return list(zip(self.roles, row, strict=True))
        (role,) = self.roles
        return [(role, part) for part in (row if self.many else (row,))]

    def row(self, parts: Iterable[Any]) -> Row:
        """Make a row of its parts."""
        found = tuple(parts)
        return found if len(self.roles) > 1 or self.many else found[0]

    def read(self, parts: Sequence[Any], read: Callable[[str, Any], Any]) -> Row:
        """Make a row of parts that are read one at a time, with their roles."""
        return self.row(read(role, part) for role, part in self.parts(self.row(parts)))

    def mapped(self, row: Row, ops: Ends, devices: Ends) -> list[Row]:
        """Return what a row is for other numbers; nothing if a part is not there."""
        found = [_mapped(role, part, ops, devices) for role, part in self.parts(row)]
        if not all(found):
            return []
        if self.many:
            return [tuple(number for numbers in found for number in numbers)]
        return [self.row(parts) for parts in product(*found)]

    def all_mapped(self, rows: Iterable[Row], ops: Ends, devices: Ends) -> list[Row]:
        """Return what several rows are for other numbers."""
        if self.roles in ((OP, DEVICE), (OP, OP)):  # there may be thousands
            first, then = ({OP: ops, DEVICE: devices}[role] for role in self.roles)
            return [pair for one, other in rows for pair in product(first(one), then(other))]
        return [new for row in rows for new in self.mapped(row, ops, devices)]

    def ends(self, rows: Iterable[Row], role: str) -> Iterator[Any]:
        """Yield all ops, or all devices, in some rows, in their order."""
        return (
            end for row in rows for at, part in self.parts(row) for end in _ends(at, part, role)
        )

    def numbers(self, rows: Iterable[Row], role: str) -> IntArray:
        """Return the numbers of all ops, or all devices, in some rows, in their order."""
        return np.fromiter(self.ends(rows, role), dtype=np.int64)

    # In words

    @property
    def metavar(self) -> str:
        """How a person writes a row."""
        words = {OP: "REGEX", DEVICE: "DEVICE", PLACEMENT: "PLAN", NUMBER: "N"}
        return "=".join(words[role] for role in self.roles)

    def texts(
        self, row: Row, some: Callable[[Sequence[Any]], str], where: Callable[[Any], str]
    ) -> list[str]:
        """Return what to put into :attr:`phrase` or :attr:`sentence`, by what names the parts."""
        if self.many:
            return [some(row)]
        says: dict[str, Callable[[Any], str]] = {
            OP: lambda op: some([op]),
            DEVICE: where,
            PLACEMENT: lambda pairs: some(list(dict(pairs))),
            NUMBER: str,
        }
        return [says[role](part) for role, part in self.parts(row)]

    @property
    def word(self) -> str:
        """What its phrase says between the parts."""
        return " ".join(self.phrase.replace("{}", "").split())

    def tally(self, n: int) -> str:
        """Say how many there are."""
        return count(n, self.noun) if n else f"no {self.noun}s"


def _mapped(role: str, part: Any, ops: Ends, devices: Ends) -> Sequence[Any]:
    match role:
        case "op":
            return ops(part)
        case "device":
            return devices(part)
        case "placement":
            places = [devices(there) for _, there in part]
            found = zip(part, places, strict=True)
            ends = tuple(end for (op, _), there in found for end in product(ops(op), there))
            return [ends] if ends and all(places) else []  # without some ops, but on all devices
    return [part]


def _ends(role: str, part: Any, wanted: str) -> Iterable[Any]:
    if role == PLACEMENT:
        return (pair[(OP, DEVICE).index(wanted)] for pair in part)
    return [part] if role == wanted else []


class Pin(Kind):
    """An op must run on a device."""

    key, field, keyword = "pin", "pins", "pins"
    unique = True
    noun, phrase, label = "pin", "{} on {}", "pinned to"
    example = "decoder/.*=GPU:1"
    help = (
        "Keep the ops whose names match on a device (GPU:1, 1, or as shown: 'GPU 1'). The regex "
        "may match anywhere in a name; the full name of an op means only that op."
    )
    tried = "moving it alone"

    def restrict(self, problem: Constrained, allowed: BoolArray) -> None:
        pinned_to = problem.constraints[self.key].device
        for device in range(problem.cluster.n_devices):
            allowed[:, device] &= (pinned_to == FREE) | (pinned_to == device)

    def fault(self, problem: Constrained, op: int, device: int) -> str:
        there = problem.constraints[self.key].get(op, device)
        if there == device:
            return ""
        return f"it is pinned to {problem.cluster.devices[there].name}"

    def tally(self, n: int) -> str:
        return f"{count(n, 'op') if n else 'no ops'} pinned"

    def collect(self, given: Iterable[Row] | Mapping[int, int]) -> Any:
        return given if isinstance(given, Pins) else dict(given)

    def rows(self, kept: Any) -> list[Row]:
        return sorted(kept.items())

    def add(self, kept: Any, rows: Iterable[Row]) -> Any:
        return {**dict(rows), **kept}


class Forbid(Kind):
    """An op must not run on a device."""

    key, field = "forbid", "forbidden"
    noun, phrase, label = "exclusion", "{} off {}", "not on"
    example = "decoder/.*=GPU:1"
    help = "Keep the ops whose names match off a device."
    tried = "moving it there"

    def restrict(self, problem: Constrained, allowed: BoolArray) -> None:
        ops, devices = _as_arrays(problem.constraints[self.key])
        allowed[ops, devices] = False

    def fault(self, problem: Constrained, op: int, device: int) -> str:
        return "it is forbidden there" if (op, device) in problem.constraints[self.key] else ""

    def tally(self, n: int) -> str:
        return f"{count(n, 'op') if n else 'no ops'} kept off"


class Colocate(Kind):
    """Ops must share a device; the units of a problem follow from it."""

    key, field = "colocate", "together"
    roles, many = (OP,), True
    noun, phrase, label = "colocation", "{} together", "colocated"
    example = "decoder/.*"
    help = "Keep the ops whose names match together on one device."
    tried = "moving one op"

    def collect(self, given: Iterable[Row]) -> Collection[Row]:
        return tuple(map(tuple, given))

    def rows(self, kept: Collection[Row]) -> list[Row]:
        return [group for group in kept if group]

    def add(self, kept: Collection[Row], rows: Iterable[Row]) -> Collection[Row]:
        known = set(map(frozenset, kept))
        new = (tuple(sorted(set(row))) for row in rows if frozenset(row) not in known)
        return (*kept, *dict.fromkeys(new))


class Before(Kind):
    """An op must end before another starts; the graph of a problem has an edge for it."""

    key = "before"
    roles = (OP, OP)
    noun, phrase, label, sentence = "order", "{} before {}", "in this order", "{}, then {}"
    example = "layer_0=layer_1"
    help = "Run the ops whose names match the first before those that match the second."
    tried = "the other order"

    def collect(self, given: Iterable[Row]) -> Collection[Row]:
        return tuple(sorted(set(map(tuple, given))))


class Lock(Kind):
    """A device runs only what is pinned to it."""

    key, field = "lock", "locked"
    roles = (DEVICE,)
    noun, phrase, label = "lock", "{} as it is", "locked"
    sentence = "{}: runs only what is pinned to it"
    example = "GPU:0"
    help = "Run nothing on a device but what is pinned to it."
    tried = "moving one group"

    def restrict(self, problem: Constrained, allowed: BoolArray) -> None:
        pinned_to = problem.constraints[Pin.key].device
        for device in problem.constraints[self.key]:
            allowed[:, device] &= np.isin(problem.unit, problem.unit[pinned_to == device])

    def fault(self, problem: Constrained, op: int, device: int) -> str:
        unit, pins = problem.unit, problem.constraints[Pin.key]
        if device not in problem.constraints[self.key] or any(
            there == device and unit[other] == unit[op] for other, there in pins.items()
        ):
            return ""
        return "that device is locked"


class StayClose(Kind):
    """Of some ops, few may run elsewhere than in another plan."""

    key = "stay-close"
    roles = (PLACEMENT, NUMBER)
    noun, label = "change limit", "close to a plan"
    phrase = "{} as in a plan, but for {} of the ops"
    sentence = "of {}, at most {} elsewhere"
    example = "plan.json=20"
    help = "Run all ops but N where another plan has them."

    def tally(self, n: int) -> str:
        return self.label if n else ""

    def budgets(self, problem: Constrained) -> Iterator[Budget]:
        for placement, most in self.rows(problem.constraints[self.key]):
            (ops, home), n_ops = _as_arrays(placement), len(dict(placement))
            away = np.zeros((len(problem.unit), problem.cluster.n_devices))
            away[ops] = 1.0
            away[ops, home] = 0.0
            yield Budget(
                away,
                most,
                f"{{}} of {count(n_ops, 'op')} would run elsewhere than in the plan to stay close "
                f"to, where at most {most:,} may",
            )


@lru_cache(maxsize=4)  # every simulation checks its plan
def _as_arrays(pairs: Collection[tuple[int, int]]) -> IntArray:
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T


KINDS: dict[str, Kind] = {
    kind.key: kind for kind in (Pin(), Forbid(), Colocate(), Before(), Lock(), StayClose())
}
"""All kinds by their keys, in the order in which files list them."""


@dataclass(frozen=True, init=False)
class Constraints:
    """Constraints of all kinds.

    Parameters
    ----------
    **rows : iterables
        By the :attr:`Kind.field` of each kind: ``pins`` as device number by op number,
        ``forbidden`` and ``before`` as pairs, ``together`` as groups, ``locked`` as numbers.
    """

    by_kind: Mapping[str, Any]

    def __init__(self, **rows: Any) -> None:
        unknown = rows.keys() - {kind.field for kind in KINDS.values()}
        if unknown:
            raise TypeError(f"there is no kind of constraint '{min(unknown)}'")
        kept = {key: kind.collect(rows.get(kind.field, ())) for key, kind in KINDS.items()}
        object.__setattr__(self, "by_kind", kept)

    @classmethod
    def of(cls, rows: Mapping[str, Iterable[Row]]) -> Constraints:
        """Make constraints of rows by the keys of their kinds."""
        return cls(**{KINDS[key].field: each for key, each in rows.items()})

    def __repr__(self) -> str:
        return f"Constraints({', '.join(f'{kind.field}={self[kind.key]}' for kind in self)})"

    def __hash__(self) -> int:
        return hash(tuple(kept for kept in self.by_kind.values() if not isinstance(kept, Mapping)))

    def __bool__(self) -> bool:
        return any(self.by_kind.values())

    def __getitem__(self, kind: str) -> Any:
        """Return what a kind keeps, by its key."""
        return self.by_kind.get(kind, ())

    def __iter__(self) -> Iterator[Kind]:
        """Yield each kind that has any rows."""
        return (KINDS[key] for key, kept in self.by_kind.items() if kept)

    def items(self) -> Iterator[tuple[Kind, list[Row]]]:
        """Yield each kind that has any rows, with them."""
        return ((kind, kind.rows(self[kind.key])) for kind in self)

    @property
    def by_field(self) -> dict[str, Any]:
        """What each kind keeps, by its field."""
        return {kind.field: self[key] for key, kind in KINDS.items()}

    def replaced(self, **rows: Any) -> Constraints:
        """Return the constraints with other rows of some kinds, by their fields."""
        return Constraints(**{**self.by_field, **rows})

    def only(self, wanted: Callable[[Kind], bool]) -> Constraints:
        """Return the constraints of some kinds."""
        return Constraints(**{kind.field: self[key] for key, kind in KINDS.items() if wanted(kind)})

    def with_rows(self, rows: Mapping[str, Iterable[Row]]) -> Constraints:
        """Return the constraints with more rows, by the keys of their kinds."""
        more = {KINDS[key].field: KINDS[key].add(self[key], each) for key, each in rows.items()}
        return self.replaced(**more)

    def mapped(self, ops: Ends, devices: Ends) -> Constraints:
        """Return the constraints for other ops or devices; those without an end are left out."""
        return Constraints.of(
            {kind.key: kind.all_mapped(rows, ops, devices) for kind, rows in self.items()}
        )


NONE = Constraints()


def frozen(row: Any) -> Row:
    """Turn a row that was read as lists into tuples."""
    return tuple(map(frozen, row)) if isinstance(row, list | tuple) else row


def look_up(table: Mapping[Any, Any] | Sequence[Any]) -> Ends:
    """Stand for what a table has at a name or a number, in :meth:`Constraints.mapped`."""
    return lambda key: [table[key]]


def same(number: int) -> Sequence[int]:
    """Stand for itself, in :meth:`Constraints.mapped`."""
    return (number,)
