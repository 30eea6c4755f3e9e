"""Topics in a broker's tiered storage, in the layout of Aiven's plug-in, shown as readable partition directories.

    <prefix>/orders-<topic id>/0/00000000000000000012-<segment id>.log, .indexes, .rsm-manifest

docs/formats/tiered_segments.md. A segment exists once its manifest does, which is put last.
"""
from collections.abc import Iterator

from seglog.errors import CorruptManifestError, StorageError
from seglog.format import names
from seglog.format.tiered_manifest import (
    INDEXES_SUFFIX,
    MANIFEST_SUFFIX,
    TieredManifest,
    base_offset_of,
    topic_of,
)
from seglog.named_tuple import NamedTuple
from seglog.stores.store import ReadableStore, StoredFile

_BESIDE_LOG = (names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TRANSACTION_INDEX_SUFFIX)


class _Segment(NamedTuple):
    """A segment that is in use. `key`: of its objects, without their suffix."""

    key: str
    manifest: TieredManifest


class TieredStore(ReadableStore):
    """`store`: where the plug-in puts its objects. A partition's directory shows Kafka's file names."""

    def __init__(self, store: ReadableStore) -> None:
        self._store = store
        self._segments: dict[str, dict[str, _Segment]] = {}
        # The last chunk that was read: a piece may end within it, and the next one continues there.
        self._last_chunk: tuple[str, int, bytes] = ("", 0, b"")

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_segments": {}, "_last_chunk": ("", 0, b"")}

    def directories(self, path: str) -> list[str]:
        return self._store.directories(path)

    def files(self, path: str) -> list[StoredFile]:
        self._segments[path] = self._listed(path)
        found = []
        for name, (key, manifest) in self._segments[path].items():
            stamp, end = key.rpartition("/")[2], manifest.last_offset + 1
            found.append(StoredFile(name, manifest.log_bytes, stamp, end))
            for suffix in _BESIDE_LOG:
                if manifest.indexes.get(suffix, (0, 0))[1]:
                    found.append(StoredFile(_beside(name, suffix), manifest.indexes[suffix][1], stamp))
            if manifest.indexes.get(names.SNAPSHOT_SUFFIX, (0, 0))[1]:      # taken when the segment was rolled
                size_bytes = manifest.indexes[names.SNAPSHOT_SUFFIX][1]
                found.append(StoredFile(names.file_name(end, names.SNAPSHOT_SUFFIX), size_bytes, stamp))
        return sorted(found, key=lambda file: file.name)

    def read(self, path: str) -> bytes | None:
        directory, _, name = path.rpartition("/")
        file = names.parse_file_name(name)
        if file is None:
            return None         # a log dir's checkpoint: a tier has none
        segment = None
        if file.suffix == names.SNAPSHOT_SUFFIX:
            ends = (one for one in self._of(directory).values() if one.manifest.last_offset + 1 == file.offset)
            segment = next(ends, None)
        elif file.suffix in _BESIDE_LOG:
            segment = self._of(directory).get(_beside(name, names.LOG_SUFFIX))
        place = None if segment is None else segment.manifest.indexes.get(file.suffix)
        if segment is None or place is None:
            return None
        raw = self._store.part(segment.key + INDEXES_SUFFIX, *place)
        if len(raw) != place[1]:
            raise StorageError(
                f"received {len(raw)} of {place[1]} bytes at {place[0]}", file=segment.key + INDEXES_SUFFIX,
                hint="run again when it is at rest",
            )
        return raw

    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        directory, _, name = path.rpartition("/")
        segment = self._of(directory).get(name)
        if segment is None:
            raise StorageError("the tier no longer has this segment", file=path, hint="run again")
        key, manifest = segment
        end = min(position + size_bytes, manifest.log_bytes)
        if position >= end:
            return b""
        if not manifest.is_compressed:
            return self._store.part(key + names.LOG_SUFFIX, position, end - position)
        found = b"".join(self._opened(key, manifest, position, end))
        begin = position - position % manifest.chunk_bytes
        return found[position - begin : end - begin]

    def _opened(self, key: str, manifest: TieredManifest, position: int, end: int) -> Iterator[bytes]:
        """The chunks with the bytes [position, end). One request fetches them, except a chunk that was read last."""
        log, chunks = key + names.LOG_SUFFIX, manifest.chunks(position, end)
        last_key, last_position, last = self._last_chunk
        if (last_key, last_position) == (key, chunks[0].position):
            yield last
            chunks = chunks[1:]
            if not chunks:
                return
        begin = chunks[0].stored_position
        raw = self._store.part(log, begin, chunks[-1].stored_end - begin)
        for chunk in chunks:
            stored = raw[chunk.stored_position - begin : chunk.stored_end - begin]
            opened = manifest.opened(chunk, stored, file=log)
            self._last_chunk = (key, chunk.position, opened)
            yield opened

    def _of(self, directory: str) -> dict[str, _Segment]:
        if directory not in self._segments:
            self._segments[directory] = self._listed(directory)
        return self._segments[directory]

    def _listed(self, directory: str) -> dict[str, _Segment]:
        """The segments in use, by the name of their .log: of two copies, the one that ends later."""
        manifests = [file.name for file in self._store.files(directory) if base_offset_of(file.name) is not None]
        found = []
        for name, manifest in zip(manifests, self._store.each(
            lambda name: self._manifest(f"{directory}/{name}"), manifests
        ), strict=True):
            if manifest is not None:        # else the tier's retention has deleted it meanwhile
                found.append(_Segment(f"{directory}/{name.removesuffix(MANIFEST_SUFFIX)}", manifest))
        found.sort(key=lambda segment: (segment.manifest.base_offset, -segment.manifest.last_offset, segment.key))
        segments: dict[str, _Segment] = {}
        last_offset = -1
        for segment in found:
            if segment.manifest.last_offset > last_offset:
                last_offset = segment.manifest.last_offset
                segments[names.file_name(segment.manifest.base_offset, names.LOG_SUFFIX)] = segment
        return segments

    def _manifest(self, path: str) -> TieredManifest | None:
        raw = self._store.read(path)
        if raw is None:
            return None
        manifest = TieredManifest.parse(raw, file=path)
        if manifest.base_offset != base_offset_of(path.rpartition("/")[2]):
            raise CorruptManifestError(f"the manifest is of a segment that begins at {manifest.base_offset}", file=path)
        return manifest


def tiered_partitions(store: ReadableStore, path: str) -> Iterator[tuple[str, int, str]]:
    """Topic, number and directory of the partitions in `path`; none if it is not `is_tiered`."""
    above, _, last = path.rpartition("/")
    topic = topic_of(last)
    if topic is not None:
        for name in store.directories(path):
            if _is_number(name):
                yield topic, int(name), f"{path}/{name}"
    elif is_tiered(path):
        yield str(topic_of(above.rpartition("/")[2])), int(last), path


def is_tiered(path: str) -> bool:
    """Whether `path` is a topic's directory `<topic>-<topic id>`, or a partition's directory (a number) in one."""
    above, _, last = path.rpartition("/")
    return topic_of(last) is not None or (_is_number(last) and topic_of(above.rpartition("/")[2]) is not None)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < 1 << 31


def _beside(name: str, suffix: str) -> str:
    return name.rpartition(".")[0] + suffix
