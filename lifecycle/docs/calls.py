"""Who calls whom in some packages, as their source says: read from annotations, constructors and attribute accesses.

Reads source text alone; nothing is imported and nothing is run. Knows what is written down: where a callable is passed on, its
call is that of whoever makes it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.resources import files

Values = Mapping[str, str]
"""Names of values in a scope, each with the name of its class."""


class Sources:
    """The modules of some packages: their trees, the classes and functions that they declare, and what is called of them."""

    def __init__(self, *packages: str) -> None:
        self.trees: dict[str, ast.Module] = {}
        for package in packages:
            for path in sorted(files(package).iterdir(), key=lambda path: path.name):
                if path.name.endswith(".py") and not path.name.startswith("__"):
                    self.trees[path.name.removesuffix(".py")] = ast.parse(path.read_text(encoding="utf-8"))
        classes = [(name, node) for name, tree in self.trees.items() for node in tree.body if isinstance(node, ast.ClassDef)]
        self.home = {node.name: name for name, node in classes}
        self.functions = {node.name: {item.name for item in _methods(node)} for _, node in classes}
        self.functions |= {name: {item.name for item in _plain(tree)} for name, tree in self.trees.items()}
        self._queues = {(node.name, name) for _, node in classes for name in _queues_of(node)}
        self._attributes: dict[str, dict[str, str]] = {node.name: {} for _, node in classes}
        for _ in range(2):  # an attribute may be what another class's attribute is
            for _, node in classes:
                self._attributes[node.name] |= self._attributes_of(node)

    def calls(self) -> dict[tuple[str, str], set[str]]:
        """Return, for each module and each class, or module of functions, the names that the module calls of it."""
        found = {pair: names & self.functions[pair[1]] for pair, names in self._uses().items()}
        for module, tree in self.trees.items():
            imported = dict(_imported(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    home = imported.get(node.func.id, "")
                    if node.func.id in self.functions.get(home, ()):
                        found.setdefault((module, home), set()).add(node.func.id)
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    home = imported.get(node.value.id, "")
                    if home == node.value.id and node.attr in self.functions.get(home, ()):
                        found.setdefault((module, home), set()).add(node.attr)
        return {pair: names for pair, names in found.items() if names and self.home.get(pair[1], pair[1]) != pair[0]}

    def handed(self) -> dict[tuple[str, str], set[str]]:
        """Return, for each module with a queue and each other module that takes from it, the names of the queues."""
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for (module, owner), names in self._uses().items():
            queues = {name for name in names if (owner, name) in self._queues}
            if queues and self.home[owner] != module:
                found[self.home[owner], module] |= queues
        return dict(found)

    def made(self, names: frozenset[str]) -> dict[str, list[str]]:
        """Return, for each module that makes one of some classes, which, in the order of their names."""
        found = {module: sorted(set(_makers(tree)) & names) for module, tree in self.trees.items()}
        return {module: made for module, made in found.items() if made}

    def _uses(self) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for module, tree in self.trees.items():
            for owner, function in _all_functions(tree):
                values = self._scope(function, owner)
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and (name := self._class_of(node.value, values)):
                        found[module, name].add(node.attr)
        return found

    def _scope(self, function: ast.FunctionDef, owner: str | None) -> Values:
        values = self._parameters(function, owner)
        for target, value in _assignments(function):
            if isinstance(target, ast.Name) and (name := self._class_of(value, values)):
                values[target.id] = name
        return values

    def _attributes_of(self, node: ast.ClassDef) -> dict[str, str]:
        found = {name: of for name, annotation in _fields(node) if (of := self._named(annotation))}
        for function in _methods(node):
            values = self._parameters(function, node.name)
            for target, value in _assignments(function):
                if (name := _own(target)) and (of := self._class_of(value, values)):
                    found.setdefault(name, of)
        return found

    def _parameters(self, function: ast.FunctionDef, owner: str | None) -> dict[str, str]:
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        found = {item.arg: of for item in given if (of := self._named(item.annotation))}
        return found | ({"self": owner} if owner else {})

    def _named(self, annotation: ast.expr | None) -> str | None:
        """Return the class that an annotation names, alone or beside None."""
        match annotation:
            case ast.Name(id=name) if name in self.home:
                return name
            case ast.BinOp(left=one, right=other):
                return self._named(one) or self._named(other)
        return None

    def _class_of(self, value: ast.expr, values: Values) -> str | None:
        """Return the class of an expression, where that is written down."""
        match value:
            case ast.Name(id=name):
                return values.get(name)
            case ast.Attribute(value=base, attr=name):
                owner = self._class_of(base, values)
                return self._attributes[owner].get(name) if owner else None
            case ast.Call(func=ast.Name(id=name)) if name in self.home:
                return name
            case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
                return self._class_of(one, values) or self._class_of(other, values)
        return None


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign):
            name = item.target.id if isinstance(item.target, ast.Name) else _own(item.target)
            if name:
                yield name, item.annotation


def _queues_of(node: ast.ClassDef) -> Iterator[str]:
    for name, annotation in _fields(node):
        match annotation:
            case ast.Subscript(value=ast.Name(id="deque")) if not name.startswith("_"):
                yield name


def _own(target: ast.expr) -> str | None:
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (item for item in node.body if isinstance(item, ast.FunctionDef) and not _is_property(item))


def _is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "property" for item in function.decorator_list)


def _plain(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    yield from (item for item in tree.body if isinstance(item, ast.FunctionDef))


def _all_functions(tree: ast.Module) -> Iterator[tuple[str | None, ast.FunctionDef]]:
    yield from ((None, function) for function in _plain(tree))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, item) for item in node.body if isinstance(item, ast.FunctionDef))


def _makers(tree: ast.Module) -> Iterator[str]:
    """Give the names that are called, or chosen between to be called."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield name
            case ast.IfExp(body=ast.Name(id=name), orelse=ast.Name(id=other)):
                yield from (name, other)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give each imported name with the module that it is, or is of."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                home = node.module.rpartition(".")[2]
                yield alias.asname or alias.name, alias.name if node.module.count(".") == 0 or home == "runtime" else home


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Give each assignment as (target, value), those of several at once one by one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
