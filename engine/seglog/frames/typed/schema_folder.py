"""Schemas in a folder: `<subject>.<id>.avsc`, or `.proto`, or `.json`; without a number for a schema of no known id."""
import os
import re
from pathlib import Path

from seglog.errors import NotALogError, SchemaNotFoundError
from seglog.frames.typed.schema_source import DEFAULT_CONTEXT, SchemaSource, SchemaType, StoredSchema
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals

TYPES: dict[str, SchemaType] = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_NAME = re.compile(r"(?P<subject>.+?)(?:\.(?P<id>\d{1,10}))?(?P<suffix>\.avsc|\.proto|\.json)", re.DOTALL)


class SchemaFolder(SchemaSource):
    """The schemas of a folder, as its files are at the first use. A later version has a larger id."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._found: dict[str, list[StoredSchema]] | None = None

    def __repr__(self) -> str:
        return f"SchemaFolder({str(self.path)!r})"

    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> StoredSchema:
        for schemas in self._listed().values():
            for schema in schemas:
                if schema.id == schema_id:
                    return schema
        raise SchemaNotFoundError(
            f"no file has the schema id {schema_id}", file=self.path,
            hint=f"name the file of that schema <subject>.{schema_id}.avsc",
        )

    def versions(self, subject: str) -> list[StoredSchema]:
        return self._listed().get(subject, [])

    def version(self, subject: str, version: int) -> StoredSchema:
        schemas = self.versions(subject)
        if not 1 <= version <= len(schemas):
            raise SchemaNotFoundError(f"no file has version {version} of {subject}", file=self.path)
        return schemas[version - 1]

    def _listed(self) -> dict[str, list[StoredSchema]]:
        if self._found is None:
            found: dict[str, list[StoredSchema]] = {}
            with refusals("list", self.path):
                paths = sorted(self.path.iterdir())
            for path in paths:
                parsed = _NAME.fullmatch(path.name)
                if parsed is None or path.name.startswith("."):
                    continue
                try:
                    text = read_file(path).decode()
                except UnicodeDecodeError as error:
                    raise NotALogError(f"not the text of a schema: {error}", file=path) from error
                schema_id = int(parsed["id"] or -1)
                found.setdefault(parsed["subject"], []).append(
                    StoredSchema(schema_id, TYPES[parsed["suffix"]], text, file=str(path))
                )
            for schemas in found.values():
                schemas.sort(key=lambda schema: schema.id)
            self._found = found
        return self._found
