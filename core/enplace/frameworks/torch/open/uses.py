"""What a script does with a value that it reads: found in its text, without running it.

A value is followed through expressions, variables, attributes, calls and results of the script's
own functions. A variable counts as one at all times, so what is found may be too much.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from itertools import islice, zip_longest
from types import FrameType

CONDITION, SIZE, END = "condition", "size", "end of a slice"
_NEGATIVE = "negative"

_PRINTS = frozenset(
    [
        *("print", "log", "format", "str", "repr", "write", "info", "debug", "warning", "dumps"),
        *("set_postfix", "set_description", "add_scalar", "report", "len", "isinstance", "type"),
    ]
)
_KEEPS = ("append", "appendleft", "extend", "add", "update", "insert", "put", "setdefault")
_SIZED = frozenset(
    [
        *("arange", "empty", "eye", "full", "ones", "rand", "randint", "randn", "randperm"),
        *("zeros", "new_empty", "new_full", "new_ones", "new_zeros", "linspace", "one_hot"),
        *("expand", "narrow", "pad", "repeat", "repeat_interleave", "reshape", "resize_"),
        *("split", "split_with_sizes", "tile", "topk", "unflatten", "unfold", "view"),
        *("range", "islice", "set", "unique", "Counter", "nonzero", "flatnonzero", "interpolate"),
    ]
)
"""Functions to which a value tells a size, or how often something is done."""
_SHAPES = frozenset(("shape", "size", "dim", "ndim", "numel", "dtype", "device", "keys"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Uses:
    """Finds uses of values in the files of a script.

    Parameters
    ----------
    texts : mapping of str to str
        The text of each file, by its path.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._trees = {file: ast.parse(text) for file, text in texts.items()}
        self._parents: dict[ast.AST, ast.AST] = {}
        self._functions: defaultdict[str, list[ast.FunctionDef]] = defaultdict(list)
        self._classes: set[str] = set()
        self._binds: defaultdict[ast.AST, set[str]] = defaultdict(set)  # names by function
        for tree in self._trees.values():
            self._index(tree)
        self._loads: defaultdict[Hashable, list[ast.AST]] = defaultdict(list)
        for tree in self._trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    self._loads["call", _name_of(node.func)].append(node)
                elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    self._loads[self._key(node)].append(node)

    def _index(self, tree: ast.AST) -> None:
        for parent in ast.walk(tree):
            for child in ast.iter_child_nodes(parent):
                self._parents[child] = parent
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._classes.add(node.name)
            elif isinstance(node, ast.FunctionDef):
                self._functions[self._called(node)].append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._binds[self._function(node)].add(node.id)
            elif isinstance(node, ast.arg):
                self._binds[self._function(node)].add(node.arg)
            elif isinstance(node, ast.Global | ast.Nonlocal):
                self._binds[self._function(node)] -= {*node.names}

    def knows(self, file: str) -> bool:
        """Return whether a file was given."""
        return file in self._trees

    def find(self, file: str, place: tuple[int | None, ...]) -> set[str]:
        """Return what is decided by a value that is read at some place: line, its end, columns.

        What only prints, keeps or adds up a value, and checks that raise, decide nothing.
        """
        if file not in self._trees or None in place:
            return {CONDITION}
        found: set[str] = set()
        seen: set[Hashable] = set()
        reader = self._innermost(self._trees[file], place)
        reader = getattr(reader, "test", reader)  # Python 3.11 may give a whole ``if``
        if not isinstance(reader, ast.expr):
            return {CONDITION}
        todo = _read_by(reader)
        while todo:
            for key in self._follow(todo.pop(), found):
                if key is not None and key not in seen:
                    seen.add(key)
                    todo += self._loads.get(key, ())
        if END in found and found & {SIZE, _NEGATIVE}:
            found = found - {END} | {SIZE}
        return found - {_NEGATIVE}

    def _innermost(self, tree: ast.AST, place: tuple[int | None, ...]) -> ast.AST:
        """Return the smallest expression or statement around a place."""
        found = tree
        for node in ast.walk(tree):  # from the outside to the inside
            line, column = getattr(node, "lineno", None), getattr(node, "col_offset", 0)
            if line is not None and isinstance(node, ast.expr | ast.stmt):
                end = node.end_lineno, node.end_col_offset
                if (line, column) <= (place[0], place[2]) and end >= (place[1], place[3]):
                    found = node
        return found

    def _follow(self, node: ast.AST, found: set[str]) -> Iterator[Hashable]:
        """Follow a value outwards to the end of its statement; yield what has it from then on."""
        while (parent := self._parents.get(node)) is not None:
            match parent:
                case ast.Call() if node is not parent.func:
                    name = _name_of(parent.func)
                    if self._functions[name]:
                        yield from self._parameters(parent, name, node)
                        return
                    if isinstance(parent.func, ast.Attribute) and name in _KEEPS:
                        yield self._key(_base(parent.func.value))
                    if name in _SIZED or (name[:1].isupper() and name not in self._classes):
                        found.add(SIZE)
                        return
                    if name in _PRINTS and not _is_math(parent.func):
                        return
                case ast.Call() if not isinstance(node, ast.Attribute):
                    found.add(CONDITION)  # chooses what is called
                case ast.Attribute() if parent.attr in _SHAPES:
                    return
                case ast.Slice():
                    found.add(END if node is parent.upper else SIZE)
                    return
                case ast.Subscript() if isinstance(node, ast.Compare | ast.BoolOp):
                    found.add(SIZE)  # takes those that fulfil it
                case ast.UnaryOp(op=ast.USub()):
                    found.add(_NEGATIVE)
                case ast.BinOp(op=ast.Sub()) if node is parent.right:
                    found.add(_NEGATIVE)
                case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())) | ast.JoinedStr():
                    return
                case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                    return
                case ast.BoolOp() if _calls(parent.values[_at(parent.values, node) + 1 :]):
                    found.add(CONDITION)
                case ast.IfExp() if node is parent.test and _calls([parent.body, parent.orelse]):
                    found.add(CONDITION)
                case ast.Assert() | ast.If() if self._only_raises(parent):
                    return
                case ast.Assert() | ast.If() | ast.While() | ast.Match():
                    found.add(CONDITION)
                    return
                case ast.comprehension() if node is not parent.iter:
                    found.add(SIZE)
                    return
                case ast.For() | ast.AsyncFor() | ast.comprehension():
                    yield from self._keys(parent.target)
                    return
                case ast.Assign():
                    for target in parent.targets:
                        yield from self._keys(target)
                    return
                case ast.NamedExpr():
                    yield from self._keys(parent.target)
                case ast.AugAssign() | ast.AnnAssign():
                    yield from self._keys(parent.target)
                    return
                case ast.Tuple() if self._pairs(parent):
                    yield from self._keys(self._pairs(parent)[_at(parent.elts, node)])
                    return
                case ast.Return() | ast.Yield():
                    yield "call", self._called(self._function(parent))
                    return
                case ast.stmt():
                    return
            node = parent

    def _only_raises(self, check: ast.Assert | ast.If) -> bool:
        """Return whether a check ends the script, or does nothing."""
        around = self._parents[check]
        while not isinstance(around, ast.Try) and around in self._parents:
            around = self._parents[around]
        raises = all(isinstance(each, ast.Raise) for each in getattr(check, "body", ()))
        return raises and not isinstance(around, ast.Try)

    def _pairs(self, values: ast.Tuple) -> list[ast.expr]:
        """Return what the elements of a tuple are assigned to, one by one."""
        match self._parents[values]:
            case ast.Assign(targets=[ast.Tuple() as target]) if len(target.elts) == len(
                values.elts
            ):
                return target.elts
        return []

    def _keys(self, target: ast.AST) -> Iterator[Hashable]:
        """Iterate over what an assignment gives a value to."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                yield from self._keys(each)
        else:
            yield self._key(_base(target))

    def _key(self, node: ast.AST) -> Hashable:
        """Return what tells a variable or an attribute from others."""
        if isinstance(node, ast.Attribute):
            called = self._parents[node]
            is_method = isinstance(called, ast.Call) and called.func is node
            return None if is_method else ("attribute", node.attr)
        if not isinstance(node, ast.Name):
            return None
        function = self._function(node)
        while node.id not in self._binds[function] and function in self._parents:
            function = self._function(function)
        return "name", function, node.id

    def _parameters(self, call: ast.Call, name: str, given: ast.AST) -> Iterator[Hashable]:
        """Iterate over the parameters of the script's own functions that get a value."""
        for function in self._functions[name]:
            names = [*function.args.posonlyargs, *function.args.args]
            skip = bool(names) and names[0].arg in ("self", "cls")
            for argument, parameter in zip_longest(call.args, names[skip:]):
                if argument is given or isinstance(argument, ast.Starred):
                    found = parameter or function.args.vararg
                    yield "name", function, found.arg if found else ""
            if isinstance(given, ast.keyword):
                more = function.args.kwarg
                all_names = {each.arg for each in (*names, *function.args.kwonlyargs)}
                is_named = given.arg in all_names or more is None
                yield "name", function, given.arg if is_named else more and more.arg

    def _function(self, node: ast.AST) -> ast.AST:
        """Return the function or module around a node."""
        node = self._parents[node]
        while not isinstance(node, _FUNCTIONS) and node in self._parents:
            node = self._parents[node]
        return node

    def _called(self, function: ast.AST) -> str:
        """Return the name by which a function is called."""
        name = getattr(function, "name", "")
        around = self._parents.get(function)
        return around.name if name == "__init__" and isinstance(around, ast.ClassDef) else name


def place_of(frame: FrameType) -> tuple[int | None, ...]:
    """Return which part of its file a frame runs: line, last line, column, last column."""
    return next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))


def _read_by(node: ast.AST) -> list[ast.AST]:
    """Return what an expression reads when it runs, such as the arguments of ``int``; or itself."""
    match node:
        case ast.Call(args=[_, *_]):
            return [*node.args]
        case ast.Subscript(slice=ast.Tuple() as parts):
            return [bound for each in parts.elts for bound in _bounds(each)]
        case ast.Subscript():
            return _bounds(node.slice)
        case ast.BoolOp():
            return [*node.values[:-1]]
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
            return []
        case ast.JoinedStr() | ast.FormattedValue():
            return []
    return [node]


def _bounds(index: ast.expr) -> list[ast.AST]:
    if not isinstance(index, ast.Slice):
        return [index]
    return [each for each in (index.lower, index.upper) if each and not _is_constant(each)]


def _is_constant(node: ast.AST) -> bool:
    return not any(isinstance(each, ast.Name | ast.Call) for each in ast.walk(node))


def _base(target: ast.AST) -> ast.AST:
    """Return the variable or attribute that an assignment changes, or a part of it."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    return target


def _calls(nodes: list[ast.expr]) -> bool:
    return any(isinstance(each, ast.Call) for node in nodes for each in ast.walk(node))


def _is_math(function: ast.expr) -> bool:
    """Return whether a function called ``log`` is a logarithm."""
    of = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id in ("math", "np", "numpy", "torch")


def _at(nodes: list[ast.expr], node: ast.AST) -> int:
    return next(n for n, each in enumerate(nodes) if each is node)


def _name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
