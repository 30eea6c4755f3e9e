"""Parses the text of a .proto file, proto2 or proto3, as a registry keeps it, into protobuf's description of a file.

https://protobuf.dev/reference/protobuf/proto3-spec/. protobuf for Python has no such parser. Only what decides how
bytes are decoded is kept: options, services and extensions are passed over.
"""
import re
from typing import Any

from seglog.frames.libraries import library

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][\w.]*|\.[A-Za-z_][\w.]*
    |0[xX][\da-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[{}\[\]()<>;=,:+\-/])""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_NUMBER_MAX = (1 << 29) - 1


def parse_proto(text: str, name: str) -> Any:
    """The google.protobuf.FileDescriptorProto of a file. Raises ValueError."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._pb = library("google.protobuf.descriptor_pb2")
        self._tokens = _tokens(text)
        self._at = 0
        self._file = self._pb.FileDescriptorProto(name=name, syntax="proto2")

    def file(self) -> Any:
        file = self._file
        while self._at < len(self._tokens):
            match self._next():
                case "syntax":
                    self._expect("=")
                    file.syntax = self._string()
                    if file.syntax not in ("proto2", "proto3"):
                        raise ValueError(f"unknown syntax {file.syntax!r}")
                    self._expect(";")
                case "edition":
                    raise ValueError("editions are not supported: proto2 and proto3 are")
                case "package":
                    file.package = self._next()
                    self._expect(";")
                case "import":
                    kind = self._next() if self._peek() in ("public", "weak") else ""
                    if kind == "public":
                        file.public_dependency.append(len(file.dependency))
                    file.dependency.append(self._string())
                    self._expect(";")
                case "message":
                    self._message(file.message_type.add())
                case "enum":
                    self._enum(file.enum_type.add())
                case "option":
                    self._pass_over()
                case "service" | "extend":
                    self._pass_over()
                case ";":
                    pass
                case token:
                    raise ValueError(f"{token!r} is not expected in a file")
        # What proto2 calls syntax "proto2" is no syntax in a description.
        if file.syntax == "proto2":
            file.ClearField("syntax")
        return file

    @property
    def _is_proto3(self) -> bool:
        return bool(self._file.syntax == "proto3")

    # --- messages -------------------------------------------------------------------------------

    def _message(self, message: Any) -> None:
        message.name = self._name()
        self._expect("{")
        optional: list[Any] = []
        while (token := self._next()) != "}":
            match token:
                case "message" if self._peek(1) == "{":
                    self._message(message.nested_type.add())
                case "enum" if self._peek(1) == "{":
                    self._enum(message.enum_type.add())
                case "option" | "reserved" | "extensions" | "extend":
                    self._pass_over()
                case "oneof" if self._peek(1) == "{":
                    self._oneof(message)
                case ";":
                    pass
                case "optional" | "required" | "repeated":
                    field = self._field(message, self._next())
                    field.label = self._pb.FieldDescriptorProto.Label.Value(f"LABEL_{token.upper()}")
                    if token == "optional" and self._is_proto3:
                        optional.append(field)
                case "map" if self._peek() == "<":
                    self._map(message)
                case _:
                    self._field(message, token)
        for field in optional:      # behind the real ones
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._name())
        self._expect("{")
        while (token := self._next()) != "}":
            if token == "option":
                self._pass_over()
            elif token != ";":
                self._field(message, token).oneof_index = index

    def _field(self, message: Any, kind: str) -> Any:
        if kind == "group":
            raise ValueError("groups are not supported")
        field = message.field.add(label=self._pb.FieldDescriptorProto.LABEL_OPTIONAL)
        self._set_type(field, kind)
        field.name = self._name()
        self._number_of(field)
        return field

    def _number_of(self, field: Any) -> None:
        self._expect("=")
        field.number = self._integer()
        if not 1 <= field.number <= _NUMBER_MAX:
            raise ValueError(f"field {field.name} has the number {field.number}")
        if self._peek() == "[":
            self._field_options(field)
        self._expect(";")

    def _set_type(self, field: Any, kind: str) -> None:
        if kind in _SCALARS:
            field.type = self._pb.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        elif re.fullmatch(r"\.?[A-Za-z_][\w.]*", kind, re.ASCII):
            field.type_name = kind
        else:
            raise ValueError(f"{kind!r} is not a type")

    def _map(self, message: Any) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        field = message.field.add(label=self._pb.FieldDescriptorProto.LABEL_REPEATED)
        field.name = self._name()
        entry = message.nested_type.add(name=f"{_camel(field.name)}Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), start=1):
            one = entry.field.add(name=name, number=number, label=self._pb.FieldDescriptorProto.LABEL_OPTIONAL)
            self._set_type(one, kind)
        field.type_name = entry.name
        field.type = self._pb.FieldDescriptorProto.TYPE_MESSAGE
        self._number_of(field)

    def _field_options(self, field: Any) -> None:
        """Pass over the options in brackets, but for a default."""
        begin = self._at
        self._skip_group()
        tokens = self._tokens[begin : self._at]
        for at, token in enumerate(tokens[:-2]):
            if token == "default" and tokens[at - 1] in ("[", ",") and tokens[at + 1] == "=":
                value = tokens[at + 2] if tokens[at + 2] != "-" else f"-{tokens[at + 3]}"
                field.default_value = _unquoted(value) if value[0] in "\"'" else value

    def _enum(self, enum: Any) -> None:
        enum.name = self._name()
        self._expect("{")
        while (token := self._next()) != "}":
            match token:
                case "option" if self._peek() == "allow_alias":
                    self._next()
                    self._expect("=")
                    enum.options.allow_alias = self._next() == "true"
                    self._expect(";")
                case "option" | "reserved":
                    self._pass_over()
                case ";":
                    pass
                case _:
                    self._expect("=")
                    sign = -1 if self._peek() == "-" and self._next() else 1
                    enum.value.add(name=token, number=sign * self._integer())
                    if self._peek() == "[":
                        self._skip_group()
                    self._expect(";")

    # --- tokens ---------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ValueError("the text ends in the middle")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise ValueError(f"expected {token!r}, found {found!r}")

    def _name(self) -> str:
        name = self._next()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name")
        return name

    def _string(self) -> str:
        token = self._next()
        if token[0] not in "\"'":
            raise ValueError(f"{token!r} is not text")
        return _unquoted(token)

    def _integer(self) -> int:
        token = self._next()
        try:
            return int(token, 0) if not re.fullmatch(r"0[0-7]+", token) else int(token, 8)
        except ValueError:
            raise ValueError(f"{token!r} is not a whole number") from None

    def _pass_over(self) -> None:
        """Go behind the `;`, or the group in braces, that ends a statement."""
        while True:
            token = self._peek()
            if token in _CLOSING:
                self._skip_group()
                if token == "{" and self._peek() != ";":
                    return
            elif self._next() == ";":
                return

    def _skip_group(self) -> None:
        waiting = [_CLOSING[self._next()]]
        while waiting:
            token = self._next()
            if token in _CLOSING:
                waiting.append(_CLOSING[token])
            elif token == waiting[-1]:
                waiting.pop()


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at : at + 20]!r} is not expected")
        if token["token"]:
            found.append(token["token"])
        at = token.end()
    return found


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1])


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
