"""The C++ that Warp generated for a module, taken apart: structs, functions, statements.

Warp writes one simple statement per line (``var_5 = wp::address(var_x, var_0);``), every variable
is declared first, and every local is called ``var_*``. This file knows that form and nothing of
what a statement means. A statement that does not fit it is kept as `None`, for the caller to treat
as one that may do anything with the variables named in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

__all__ = ["Function", "Node", "Statement", "Types", "parse_module"]

# ("var", name) | ("call", name, args) | ("member", node, field) | ("pointer", node) |
# ("cast", node) | ("value", nodes); literals are ("value", ()).
Node: TypeAlias = tuple

_PLAIN = frozenset(
    re.findall(
        r"\w+",
        """wp const void bool char int float double half size_t int8 int16 int32 int64 uint8 uint16
        uint32 uint64 float16 float32 float64 bfloat16 vec_t mat_t quat_t transform_t range_t
        slice_t shape_t tuple_t launch_bounds_t tile_register_t tile_shared_t tile_stack_t
        tile_shape_t tile_stride_t tile_layout_register_t tile_layout_strided_t
        mesh_query_point_t mesh_query_ray_t true false""",
    )
)

_HEADER = re.compile(
    r'^(?:static|extern "C") (?:[^\n;{}()]|\([^\n()]*\))*?\b(\w+)\(\n([^{};]*?)\)\n\{\n', re.M
)
_STRUCT = re.compile(r"^struct (\w+) *\n?\{\n(.*?)^(?:\n|\};)", re.M | re.S)
_FLAT_CALL = re.compile(
    r"(?:((?:var|ret)_\w+) = )?([A-Za-z_][\w:]*)(?:<[^()]*>)?\(((?:var_\w+(?:, )?)*)\);"
)
_TEMPLATE = re.compile(r"\btypename (\w+)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"\b(?:var|ret)_\w+")
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:\\.|[^"\\])*")|(?P<number>\d[\w.]*(?:(?<=e)[-+]\d+)?)'
    r"|(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)"
    r"|(?P<mark>->|&&|\|\||[=!<>]=|<<|>>|[-+*/%&|^~!<>=?:.,(){}\[\]]))"
)
_LAMBDA = re.compile(r"\[&\]\(auto& _e\) -> auto& \{ return _e[\w.]*(?:\([\w, ]*\))?; \}")
_MESSAGE = re.compile(r'\(void\)"(?:\\.|[^"\\])*",')
_CAST = re.compile(r"\(wp::\w+ ?\**\)(?=[(&\w])")


class Types:
    """Which C++ types can hold an address, directly or in a field."""

    def __init__(self, text: str) -> None:
        self.structs: dict[str, tuple[str, ...]] = {}
        for match in _STRUCT.finditer(text):
            self.structs[match[1]] = tuple(ctype for _, ctype in _declarations(match[2]))
        self._words: dict[str, frozenset[str]] = {}

    def words(self, ctype: str) -> frozenset[str]:
        """Every type name in a type, with those of the fields of its structs."""
        found = self._words.get(ctype)
        if found is None:
            pending, seen = _WORD.findall(ctype), set()
            while pending:
                word = pending.pop()
                if word not in seen:
                    seen.add(word)
                    pending += _WORD.findall(" ".join(self.structs.get(word, ())))
            found = self._words[ctype] = frozenset(seen - self.structs.keys())
        return found

    def is_pointer(self, ctype: str) -> bool:
        """Whether a variable of this type is itself a pointer."""
        return ctype.endswith("*")

    def is_carrier(self, ctype: str) -> bool:
        """Whether a value of this type may hold an address that C++ can follow."""
        return "*" in ctype or not self.words(ctype) <= _PLAIN

    def is_plain_array(self, ctype: str) -> bool:
        """Whether this is a regular array whose elements hold no address."""
        element = ctype.removeprefix("wp::array_t<")
        return element != ctype and not self.is_carrier(element)

    def is_listed(self, ctype: str) -> bool:
        """Whether a value describes all that it leads to: it is, or consists of, plain arrays."""
        return (
            not self.is_carrier(ctype)
            or self.is_plain_array(ctype)
            or (ctype in self.structs and all(map(self.is_listed, self.structs[ctype])))
        )

    def holds_handle(self, ctype: str) -> bool:
        """Whether a value of this type, or an element of it, may be an id or a raw address."""
        return "uint64" in self.words(ctype)


class Statement(NamedTuple):
    """One line of a function.

    Args:
        text: The line.
        names: Its variables.
        target: What is assigned to, "return", or None.
        value: The right-hand side or the whole expression; None when the line was not understood.
    """

    text: str
    names: frozenset[str]
    target: Node | str | None
    value: Node | None


class Function(NamedTuple):
    """One forward function, kernel or native snippet.

    Args:
        name: Name in C++; of a kernel, its mangled name.
        is_kernel: Whether it is a launchable kernel.
        parameters: (name, type) in order; of a kernel, its arguments.
        locals: Type of every other declared variable.
        body: The statements as text; for a snippet all of its text.
        kind: "forward", or "native" for a snippet, or "reverse" for a function in reverse mode.
    """

    name: str
    is_kernel: bool
    parameters: tuple[tuple[str, str], ...]
    locals: dict[str, str]
    body: str
    kind: str

    def statements(self, wanted: frozenset[str]) -> Iterator[Statement]:
        """The statements that name one of the wanted variables, or that return."""
        for line in self.body.splitlines():
            line = line.strip()
            if line.startswith(("//", "#line")):
                continue
            names = frozenset(_VARIABLE.findall(line))
            if names & wanted:
                yield _parse_statement(line, names)


def parse_module(text: str) -> tuple[Types, list[Function]]:
    """Take the source of a module apart.

    Args:
        text: C++ or CUDA source as Warp generated it.

    Returns:
        The types of the module and its functions, callees before callers.
    """
    types = Types(text)
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    functions = []
    for header, end in zip(headers, ends, strict=False):
        segment = text[header.end() : end]
        template = text[max(0, header.start() - 400) : header.start()].rpartition("\n}")[2]
        functions.append(_parse_function(header, segment, set(_TEMPLATE.findall(template))))
    return types, functions


def _parse_function(header: re.Match[str], segment: str, templates: set[str]) -> Function:
    name, is_kernel = header[1], False
    for suffix in ("_cpu_kernel_forward", "_cuda_kernel_forward"):
        if name.endswith(suffix) and (
            "wp_linear_contiguous>" in segment or "_wp_args" in header[2] or "cuda" in suffix
        ):
            name, is_kernel = name[: -len(suffix)], True
    parameters = [
        (label, "int" if ctype in templates else ctype)
        for label, ctype in _declarations(header[2])
        if not ctype.startswith(("size_t", "wp::launch_bounds_t"))
    ]
    declared, forward, body = segment.partition("// forward\n")
    if "// dual vars\n" in declared:
        return Function(name, False, tuple(parameters), {}, "", "reverse")
    if not forward or "// primal vars\n" not in declared:
        kind = "reverse" if name.startswith("adj_") else "native"
        return Function(name, is_kernel, tuple(parameters), {}, segment, kind)
    arguments, _, variables = declared.partition("// primal vars\n")
    if "// argument vars\n" in arguments:
        parameters = list(_declarations(arguments.partition("// argument vars\n")[2]))
    if not all(label.startswith(("var_", "ret_")) for label, _ in parameters):
        return Function(name, False, tuple(parameters), {}, "", "reverse")
    end = body.find("\n}")
    body = "" if body.startswith("}") else body[: end + 1]
    return Function(
        name, is_kernel, tuple(parameters), dict(_declarations(variables)), body, "forward"
    )


def _declarations(text: str) -> Iterator[tuple[str, str]]:
    """(name, type) of every variable, parameter or field declared on a line of its own."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("//", "#line")):
            ctype, _, name = line.partition(" = ")[0].rstrip(";,").rpartition(" ")
            if ctype:
                yield name, ctype.removeprefix("const ").rstrip(" &")


def _parse_statement(line: str, names: frozenset[str]) -> Statement:
    flat = _FLAT_CALL.fullmatch(line)
    if flat:
        operands = tuple(("var", name) for name in flat[3].split(", ") if name)
        return Statement(line, names, flat[1] and ("var", flat[1]), ("call", flat[2], operands))
    target: Node | str | None = None
    rest = line
    if line.startswith("return"):
        target, rest = "return", line[len("return") :]
    elif line.startswith("if (") and (line.endswith("{") or " goto " in line):
        rest = line[len("if ") :].rpartition(")")[0] + ")"
    try:
        # The lambda of a component update picks a place in the element: no access of its own.
        parser = _Parser(_MESSAGE.sub("", _LAMBDA.sub("0", rest.removesuffix(";"))))
        value = parser.expression()
        if parser.accept("="):
            target, value = value, parser.expression()
        parser.end()
    except SyntaxError:
        return Statement(line, names, None, None)
    return Statement(line, names, target, value)


class _Parser:
    """Expressions of generated code, without precedence: only who takes part is of interest."""

    _BINARY = frozenset(re.findall(r"\S+", "&& || == != <= >= < > + - * / % | ^ & << >>"))

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind, self._token = "", ""
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                raise SyntaxError(self._text)
            self._kind, self._token = "end", ""
            return
        self._kind = str(match.lastgroup)
        self._token = match[self._kind]
        self._start, self._at = match.start(self._kind), match.end()

    def accept(self, mark: str) -> bool:
        if self._kind == "mark" and self._token == mark:
            self._next()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise SyntaxError(self._text)

    def end(self) -> None:
        if self._kind != "end":
            raise SyntaxError(self._text)

    def expression(self) -> Node:
        operands = [self.unary()]
        while self._kind == "mark" and self._token in self._BINARY:
            self._next()
            operands.append(self.unary())
        return operands[0] if len(operands) == 1 else ("value", tuple(operands))

    def unary(self) -> Node:
        if self._kind == "mark":
            cast = _CAST.match(self._text, self._start)
            if cast:
                self._at = cast.end()
                self._next()
                return ("cast", self.unary())
            if self._token in ("&", "*"):
                self._next()
                return ("pointer", self.unary())
            if self._token in ("!", "-", "~"):
                self._next()
                return ("value", (self.unary(),))
        return self.postfix()

    def postfix(self) -> Node:
        node = self.primary()
        while self._kind == "mark" and self._token in (".", "->"):
            self._next()
            field = self._token
            if self._kind != "name":
                raise SyntaxError(self._text)
            self._next()
            node = ("member", node, field)
            if self._kind == "mark" and self._token == "(":
                # component_ref(i), row_ref(i), element_ref(i, j): still a place in the same value
                arguments = self.arguments()
                if not field.endswith("_ref") or any(arg[0] != "var" for arg in arguments):
                    raise SyntaxError(self._text)
        return node

    def primary(self) -> Node:
        kind, token = self._kind, self._token
        if kind in ("number", "text"):
            self._next()
            return ("value", ())
        if self.accept("("):
            node = self.expression()
            self.expect(")")
            return node
        if kind == "mark" and token == "{":
            return ("value", self.arguments("{", "}"))
        if kind != "name":
            raise SyntaxError(self._text)
        if self._text.startswith("<", self._at) and not token.startswith(("var_", "ret_")):
            self._skip_template()
        self._next()
        if self._kind == "mark" and self._token in ("(", "{"):
            closing = ")" if self._token == "(" else "}"
            return ("call", token, self.arguments(self._token, closing))
        return ("var", token)

    def arguments(self, opening: str = "(", closing: str = ")") -> tuple[Node, ...]:
        self.expect(opening)
        nodes: list[Node] = []
        while not self.accept(closing):
            if nodes:
                self.expect(",")
            nodes.append(self.expression())
        return tuple(nodes)

    def _skip_template(self) -> None:
        depth = 0
        for at in range(self._at, len(self._text)):
            depth += {"<": 1, ">": -1}.get(self._text[at], 0)
            if depth == 0:
                self._at = at + 1
                return
        raise SyntaxError(self._text)
