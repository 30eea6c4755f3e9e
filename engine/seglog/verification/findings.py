"""What `verify` can find: the codes, what each means, how grave it is, what to do, and which file finds it.

docs/findings.md is made from here, by tests/docs/test_findings_doc.py; tests/verification/test_every_finding.py
holds one damaged directory for each code.

A finding is data. `error`: records are damaged or would be read wrongly. `warning`: no record is touched,
but a broker would repair the file at its next unclean start, or trust it wrongly at a clean one. `note`:
unusual and as some Kafka version writes it; a directory with notes alone is clean.
"""
import os
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from seglog.segment.recovery import Damage

SCHEMA = 1


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Kind:
    """`level`: the lowest level of `verify` that finds it. `found_in`: the file beside this one that does."""

    severity: Severity
    meaning: str
    fix: str
    level: str = "headers"
    found_in: str = ""


def _found_in(file: str, kinds: dict[str, Kind]) -> dict[str, Kind]:
    return {code: replace(kind, found_in=file) for code, kind in kinds.items()}


_RECOVER = "a broker's recovery cuts the log here; keep a copy first"
_REBUILD = "seglog index rebuild"
_STATS = "seglog index stats"
_COPY = "put the ledger back from a copy; what is whole can be read"
_OPEN = "nothing: who opens it to write puts it right"
_LEDGER_RECOVER = "seglog ledger recover"
_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

_OF_PARTITIONS = {
    **_found_in("verify.py", {
        "unreadable": Kind(_E, "a file that cannot be read: nothing in it was checked",
                           "look at the file, its permissions and its disk, then run again"),
        "epochs_corrupt": Kind(_W, "a leader-epoch-checkpoint that does not parse or goes back",
                               "remove it: a broker rebuilds it from the batches"),
        "timeindex_none": Kind(_N, "messages with timestamps and no .timeindex at all, as Kafka 0.10.0 leaves them",
                               "nothing: 0.10.1 and later make them when they load the log"),
    }),
    **_found_in("log_check.py", {
        "crc_mismatch": Kind(_E, "a batch fails its checksum", _RECOVER, "crc"),
        "bad_batch": Kind(_E, "a batch header, size, magic or count that cannot be", _RECOVER),
        "bad_records": Kind(
            _E, "the checksum fits and the records inside contradict the header or themselves",
            "nothing cuts it: a broker and `seglog recover` keep the batch, and whoever reads it fails there;"
            " compare with another replica", "deep"),
        "garbage_tail": Kind(_E, "bytes behind the last batch that are no batch", _RECOVER),
        "offset_back": Kind(_E, "a batch begins at or below the last offset before it; no checksum covers that field",
                            "a broker refuses or cuts the log here; keep a copy first"),
        "offset_below_base": Kind(_E, "a batch begins below its segment's base offset", _RECOVER),
        "offset_span": Kind(_E, "an offset further than 2^31-1 from the segment's base: no index can name it",
                            "a broker splits the segment when it loads it"),
        "segment_overlap": Kind(_E, "a segment begins below the end of the one before it", _RECOVER),
        "epoch_back": Kind(
            _N, "a leader epoch below an earlier one, or one that other batches and the leader-epoch-checkpoint deny;"
            " no checksum covers that field",
            "nothing: brokers keep and serve such a batch, and recovery leaves it; another replica may tell which epoch"
            " is right"),
        "epochs_differ": Kind(_W, "a batch of an epoch that the leader-epoch-checkpoint does not have there",
                              "remove leader-epoch-checkpoint: a broker's unclean start, and `seglog recover`, make it"
                              " from the batches"),
        "torn_tail": Kind(_W, "the last batch is cut short: a write that did not finish",
                          "nothing is lost but that write; a broker cuts it at the next start"),
        "zero_tail": Kind(_W, "zeros behind the last batch: the file was preallocated and its broker crashed",
                          "nothing is lost; a broker cuts them at the next start"),
        "tags_missing": Kind(_N, "messages of a .tlog without tags that are needed: their defaults count",
                             "nothing: docs/formats/tagged_message.md says which"),
        "large_batch": Kind(_N, "a batch larger than max.message.bytes",
                            "nothing, unless it has to be appended again"),
    }),
    **_found_in("witness_check.py", {
        "witness_differs": Kind(
            _E, "read by plain Python (--witness) a batch is another than read by the kernels: one of the two is wrong",
            "report this, with the batch: `seglog` is at fault, not the log"),
    }),
    **_found_in("wrapper_check.py", {
        "wrapper_time": Kind(
            _N, "a v1 wrapper whose time is below that of a message in it, as brokers before 0.10.1 stored it",
            "nothing: seglog opens wrappers to search by time; Kafka passes over them; a conversion mends it", "deep"),
        "wrapper_format": Kind(
            _N, "messages of another format than their wrapper's, as by kafka-node, or by the cleaner of 0.10.0",
            "nothing: they are read as Kafka reads them; a conversion mends it", "deep"),
    }),
    **_found_in("index_check.py", {
        "index_missing": Kind(_W, "a segment without its .index", _REBUILD),
        "index_corrupt": Kind(_W, "an .index whose size or order cannot be", _REBUILD),
        "index_misleads": Kind(
            _W, "an index entry that does not lead to a batch which begins at or before its offset", _REBUILD),
        "index_zero_tail": Kind(
            _W, "preallocated zeros behind the entries: a clean start would take them for entries", _REBUILD),
        "index_too_large": Kind(
            _W, "an index file larger than segment.index.bytes: a clean start fails on it", _REBUILD),
        "timeindex_missing": Kind(_W, "a segment with timestamps without its .timeindex", _REBUILD),
        "timeindex_corrupt": Kind(_W, "a .timeindex whose size or order cannot be", _REBUILD),
        "timeindex_empty": Kind(_W, "a .timeindex without an entry beside records with timestamps", _REBUILD),
        "timeindex_misleads": Kind(
            _W, "a time entry that hides a later timestamp, or names an offset past the end", _REBUILD),
        "timeindex_behind": Kind(
            _W, "the last time entry of a closed segment is below its largest timestamp", _REBUILD),
        "timeindex_loose": Kind(_N, "a time entry above every timestamp up to its offset, as after compaction",
                                "nothing: searches read a little more"),
    }),
    **_found_in("minute_index_check.py", {
        "minuteindex_corrupt": Kind(_W, "a .time.index (ours, a broker leaves it alone) whose size or order cannot be",
                                    _REBUILD),
        "minuteindex_misleads": Kind(
            _W, "an entry of a .time.index that does not name the largest timestamp so far and its batch: searches pass"
            " over it and read more", _REBUILD),
    }),
    **_found_in("time_ranges_check.py", {
        "timeranges_corrupt": Kind(
            _W, "a .ranges.index (ours, a broker leaves it alone) that fails its checksum or cannot be: searches by"
            " time do without it and read more", _REBUILD),
        "timeranges_stale": Kind(
            _W, "a .ranges.index of another log than the one beside it, which was cut or replaced: searches by time do"
            " without it", _REBUILD),
        "timeranges_mislead": Kind(
            _E, "a .ranges.index with another smallest or largest timestamp than the records of its run: a search by"
            " time can miss records", _REBUILD, "deep"),
        "timeranges_newer": Kind(_N, "a .ranges.index that a newer seglog wrote: it was not looked at",
                                 "nothing: searches by time do without it"),
    }),
    **_found_in("column_stats_check.py", {
        "stats_corrupt": Kind(
            _W, "a .stats.index (ours, a broker leaves it alone) that fails its checksum or cannot be: queries over"
            " tables do without it and read more", _STATS),
        "stats_stale": Kind(
            _W, "a .stats.index of another log than the one beside it, which was cut or replaced: queries over tables"
            " do without it", _STATS),
        "stats_mislead": Kind(
            _E, "a .stats.index with other times, keys or counts than the records of its run: a query over a table can"
            " miss rows", _STATS, "deep"),
        "stats_newer": Kind(_N, "a .stats.index that a newer seglog wrote: it was not looked at",
                            "nothing: queries over tables do without it"),
    }),
    **_found_in("empty_index.py", {
        "index_empty": Kind(_W, "an .index without an entry beside a log that wants some", _REBUILD),
        "index_undecided": Kind(
            _N, "an .index without an entry: emptied, or never given one; the directory does not tell",
            "give the topic's setting, --config index.interval.bytes=..., or rebuild it, which does no harm"),
    }),
    **_found_in("transaction_check.py", {
        "txnindex_corrupt": Kind(_W, "a .txnindex whose size or order cannot be", _REBUILD),
        "txnindex_misleads": Kind(_W, "an aborted transaction whose marker is not in the segment",
                                  "a broker rebuilds the file at an unclean start"),
        "txnindex_incomplete": Kind(
            _E, "an abort marker that the .txnindex does not list: aborted data reads as committed", _REBUILD),
    }),
    **_found_in("other_files.py", {
        "snapshot_corrupt": Kind(_W, "a producer snapshot that fails its checksum",
                                 "remove it: a broker rebuilds producer state from the log"),
        "epochs_missing": Kind(_W, "batches carry leader epochs and there is no leader-epoch-checkpoint",
                               "a broker rebuilds it at an unclean start"),
        "metadata_corrupt": Kind(_W, "a partition.metadata that does not parse: a broker refuses the directory",
                                 "write it again, with the topic's id"),
        "settings_corrupt": Kind(
            _W, "a .seglog.config (ours, a broker leaves it alone) that fails its checksum, or keeps a setting that is"
            " none: the log does not open to be written",
            "remove it, open the log and give it its settings again by Log.configure"),
        "foreign_log": Kind(
            _N, "an empty .log beside .tlog files, as a broker puts it there: it is no part of the log",
            "nothing, or remove it with its indexes while no broker runs"),
        "leftover": Kind(_W, "a .cleaned, .swap or .deleted file: compaction or deletion was under way",
                         "a broker completes or removes it at the next start"),
        "orphan_index": Kind(_W, "an index file without its .log", "a broker removes it at the next start"),
    }),
}

_OF_MANAGED_LEDGERS = _found_in("ledger_check.py", {
    "manifest_corrupt": Kind(
        _E, "a manifest that is missing or fails its checksum, or names a ledger that is not there", _LEDGER_RECOVER),
    "ledger_corrupt": Kind(_E, "a ledger.json that fails its checksum, or is that of another ledger",
                           "put the file back from a copy"),
    "ledger_length": Kind(_E, "a sealed ledger whose .log has another length than it was sealed with",
                          "put the ledger back from a copy, or let seglog ledger recover keep what is left"),
    "ledger_damaged": Kind(_E, "bytes in the middle of a ledger that are no whole batches, or entries out of order",
                           _COPY),
    "ledger_differs": Kind(_E, "the manifest and ledger.json disagree about a sealed ledger", _LEDGER_RECOVER),
    "ledger_tail": Kind(_W, "the last write to a ledger that was not sealed did not finish", _OPEN),
    "ledger_open": Kind(_N, "a ledger that was not sealed: somebody writes it, or died", _OPEN),
    "ledger_stray": Kind(_N, "a ledger's directory that the manifest does not name: being made, or removed", _OPEN),
    "entry_corrupt": Kind(_E, "an entry that contradicts itself or fails its checksum", _COPY),
    "entry_index": Kind(_E, "an entry whose index does not follow the one before it", "compare with a copy"),
    "entry_time": Kind(_E, "an entry whose broker time lies before the one before it", "compare with a copy"),
    "cursor_corrupt": Kind(_E, "a cursor's file that fails its checksum",
                           "put it back from a copy, or delete it and make the cursor again"),
})

_OF_MANAGED_LEDGERS |= _found_in("compacted_check.py", {
    "compacted_lost": Kind(
        _E, "a compacted ledger that nothing points to any more, or that is not there: keys are missing",
        "put the cursor's file, or the ledger, back from a copy"),
    "compacted_damaged": Kind(
        _E, "a compacted ledger that is damaged or out of order, or says its last message wrongly", _COPY),
    "compacted_stray": Kind(_N, "a compacted ledger that is not read: being made, or removed", _OPEN),
})

_OF_MANAGED_LEDGERS |= _found_in("relocated_check.py", {
    "relocated_lost": Kind(
        _E, "an entry that a cursor has set aside, of which there is no whole copy: a delayed message is missing",
        "put the ledger of copies back from a copy"),
    "relocated_damaged": Kind(
        _E, "a ledger of relocated entries that is damaged or of another version", _COPY),
    "relocated_stray": Kind(
        _N, "a ledger of relocated entries that no cursor has set aside: being made, or removed",
        "nothing: the next opening for delayed messages removes it"),
})

KINDS = _OF_PARTITIONS | _OF_MANAGED_LEDGERS


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. position: byte in the file; offset: of the record; size_bytes: of the damage, where known."""

    code: str
    file: str
    position: int | None = None
    offset: int | None = None
    size_bytes: int | None = None
    found: str = ""
    expected: str = ""
    last_offset: int | None = None

    @classmethod
    def of_damage(cls, code: str, log: Path, damage: Damage) -> Self:
        """Bytes of a ledger's .log that are no whole batches."""
        return cls(
            code, os.fspath(log), damage.start, damage.first_offset, damage.stop - damage.start, found=damage.reason
        )

    @property
    def severity(self) -> Severity:
        return KINDS[self.code].severity

    @property
    def meaning(self) -> str:
        return KINDS[self.code].meaning

    @property
    def fix(self) -> str:
        return KINDS[self.code].fix

    def to_dict(self) -> dict[str, Any]:
        """The JSON line of `seglog verify --json`; fields that are not known are left out."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return {"type": "finding", "schema": SCHEMA, "severity": str(self.severity), **known, "fix": self.fix}


@dataclass(slots=True)
class Report:
    """What `verify` looked at and what it found. `records` counts legacy records only at level "deep".

    `witnessed`: of so many segments every batch was read a second time, by plain Python.
    """

    path: str
    level: str
    segments: int = 0
    witnessed: int = 0
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def count(self, severity: Severity) -> int:
        return sum(f.severity == severity for f in self.findings)

    @property
    def ok(self) -> bool:
        """No error and no warning."""
        return all(f.severity == Severity.NOTE for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The `summary` line of `seglog verify --json`."""
        return {
            "type": "summary", "schema": SCHEMA, "path": self.path, "level": self.level, "ok": self.ok,
            "segments": self.segments, "witnessed": self.witnessed, "size_bytes": self.size_bytes,
            "batches": self.batches, "records": self.records, "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "errors": self.count(_E), "warnings": self.count(_W), "notes": self.count(_N),
        }
