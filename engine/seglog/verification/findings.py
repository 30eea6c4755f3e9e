"""The findings of `verify`: codes, meanings, severities, what to do, and which file finds each.

docs/findings.md is generated from here by tests/docs/test_findings_doc.py; tests/verification/test_every_finding.py has
a damaged directory for each code.

A finding is data. `error`: records are damaged or would be read wrongly. `warning`: no record is affected, but a broker
would repair the file at its next unclean start, or trust it wrongly at a clean one. `note`: unusual, but written like
this by some Kafka version, or repaired by the next start (verification.next_start); a directory with only notes is
clean.
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


# The fix of damage that a recovery removes; `seglog verify` adds what it would lose.
RECOVER = (
    "`seglog recover --mode quarantine --apply` removes only the damage; a broker whose start checks this segment "
    "truncates the log here; make a copy first"
)
# The same for batches whose offsets are in the wrong order: a broker either cannot open the log, or keeps them.
REORDER = (
    "`seglog recover --mode quarantine --apply` removes only what is out of order; a broker may fail to open the log, "
    "or serve it as it is; make a copy first"
)
_RESTORE = (
    "restore the files from a copy or another replica; a broker starts on what is left and notices nothing"
)
_REBUILD = "seglog index rebuild --apply"
_STATS = "seglog index stats"
_COPY = "restore the ledger from a copy; intact entries can be read"
_OPEN = "nothing: the next opening for writing repairs it"
# What comes of it unless the next start repairs it.
_IF_TRUSTED = ": a clean start "
_NEXT_START = "nothing: the next start of a broker, or opening the log with seglog, repairs it"
_LEDGER_RECOVER = "seglog ledger recover"
_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

_OF_PARTITIONS = {
    **_found_in("verify.py", {
        "unreadable": Kind(_E, "a file cannot be read, so nothing in it was checked",
                           "check the file, its permissions and its disk, then run again"),
        "epochs_corrupt": Kind(_W, "a leader-epoch-checkpoint does not parse, or its epochs or offsets go back",
                               "remove the checkpoint: a broker rebuilds it from the batches"),
        "segment_gap_compacted": Kind(
            _N, "offsets between segments are in none of them, as compaction and `seglog erase` leave it",
            "nothing: the settings, the cleaner's checkpoint or gaps in the log say that records were removed"),
        "quarantined": Kind(
            _N, "`seglog recover` took damaged bytes out of the log: their offsets are missing, and the bytes are in "
                "quarantine/",
            "nothing; a replica or a backup may still have the records"),
        "quarantine_corrupt": Kind(
            _W, "the index of quarantine/ (from seglog; brokers ignore it) does not parse or fails its checksum",
            "move the directory quarantine/ away: the log does not need it"),
        "timeindex_none": Kind(_N, "messages have timestamps, but there is no .timeindex at all, as with Kafka 0.10.0",
                               "nothing: 0.10.1 and later create them when they load the log"),
    }),
    **_found_in("log_check.py", {
        "crc_mismatch": Kind(_E, "a batch fails its checksum", RECOVER, "crc"),
        "bad_batch": Kind(_E, "a batch header has an impossible size, magic or count", RECOVER),
        "bad_records": Kind(
            _E, "the checksum is valid, but the records inside contradict the header or each other",
            "no recovery removes it: a broker and `seglog recover` keep the batch, and readers fail there; compare "
            "with another replica", "deep"),
        "garbage_tail": Kind(_E, "bytes after the last batch are not a batch", RECOVER),
        "offset_back": Kind(_E, "a batch starts at or below the last offset before it; no checksum covers this field",
                            REORDER),
        "offset_below_base": Kind(_E, "a batch starts below its segment's base offset", RECOVER),
        "offset_span": Kind(_E, "an offset is more than 2^31-1 above the segment's base, so no index can hold it",
                            "a broker splits the segment when it loads it"),
        "segment_gap": Kind(
            _W, "no segment holds these offsets: files are missing, or were cut short. No sign says that the topic is "
                "compacted",
            f"{_RESTORE}. If the topic is compacted, pass --config cleanup.policy=compact"),
        "segment_overlap": Kind(_E, "a segment starts below the end of the one before it", RECOVER),
        "epoch_back": Kind(
            _N, "a leader epoch is below an earlier one, or contradicts other batches and the "
                "leader-epoch-checkpoint; no checksum covers this field",
            "nothing: brokers keep and serve such a batch, and recovery does not change it; another replica may show "
            "which epoch is right"),
        "epochs_differ": Kind(_W, "a batch has an epoch that the leader-epoch-checkpoint does not list at this offset",
                              "remove leader-epoch-checkpoint: a broker's unclean start, or `seglog recover`, "
                              "rebuilds it from the batches"),
        "torn_tail": Kind(_W, "the last batch is cut short: an unfinished write",
                          "only that write is lost; a broker removes it at the next start"),
        "zero_tail": Kind(_W, "zeros after the last batch: the file was preallocated and its broker crashed",
                          "nothing is lost; a broker removes them at the next start"),
        "tags_missing": Kind(_N, "messages of a .tlog lack required tags: defaults apply",
                             "nothing to do; docs/formats/tagged_message.md lists the defaults"),
        "large_batch": Kind(_N, "a batch is larger than max.message.bytes",
                            "nothing, unless you have to append it again"),
    }),
    **_found_in("missing_check.py", {
        "start_missing": Kind(
            _W, "the first segments are gone, but the leader epochs still begin with them: retention does not leave "
                "that. Those of a tiered topic may be in remote storage",
            _RESTORE),
        "end_missing": Kind(
            _W, "the log ends below an offset that it once had: its last segments are gone, or were cut short",
            _RESTORE),
    }),
    **_found_in("disk_check.py", {
        "partition_missing": Kind(
            _W, "a partition that belongs in this log dir is not there, or has no .log", _RESTORE.replace(
                "starts on what is left and notices nothing", "that starts creates an empty one")),
        "commit_beyond_end": Kind(
            _W, "a group of consumers committed an offset above the end of the log: records are gone, or the topic was "
                "deleted and created again",
            "if the log's end is right, reset the offsets of the group"),
    }),
    **_found_in("witness_check.py", {
        "witness_differs": Kind(
            _E, "plain Python (--witness) reads a batch differently from the kernels: one of the two is wrong",
            "report this, with the batch: it is a bug in seglog, not damage in the log"),
    }),
    **_found_in("wrapper_check.py", {
        "wrapper_time": Kind(
            _N, "the time of a v1 wrapper is below that of a message in it, as stored by brokers before 0.10.1",
            "nothing: seglog decompresses wrappers to search by time; Kafka skips them; a conversion corrects "
            "it", "deep"),
        "wrapper_format": Kind(
            _N, "messages have another format than their wrapper, as written by kafka-node or the cleaner of 0.10.0",
            "nothing: they are read as Kafka reads them; a conversion corrects it", "deep"),
    }),
    **_found_in("batch_time_check.py", {
        "batch_time": Kind(
            _W, "the largest timestamp in the header of a v2 batch is below that of a record in it: a search by time "
                "can pass over the record",
            "reads by offset find the record; Log.append_batch corrects the header of a batch that it appends to a new "
            "log, but no command does", "deep"),
    }),
    **_found_in("tag_check.py", {
        "tags_wrong": Kind(
            _W, "a wrapper in a .tlog holds another number of messages than its tag 32 says, or one later than its tag "
                "1 says, which a search by time can pass over",
            "reads by offset return every message; `seglog convert --to 2` corrects both; do not mirror the log "
            "to other offsets, which relies on tag 32", "deep"),
    }),
    **_found_in("index_check.py", {
        "index_missing": Kind(_W, "a segment has no .index", _REBUILD),
        "index_corrupt": Kind(_W, "an .index has an impossible size or order", _REBUILD),
        "index_misleads": Kind(
            _W, "an index entry does not point to a batch that starts at or before its offset", _REBUILD),
        "index_zero_tail": Kind(
            _W, "preallocated zeros follow the entries: a clean start would read them as entries", _REBUILD),
        "index_too_large": Kind(
            _W, "an index file is larger than segment.index.bytes: a clean start fails on it", _REBUILD),
        "timeindex_missing": Kind(_W, "a segment with timestamps has no .timeindex", _REBUILD),
        "timeindex_corrupt": Kind(_W, "a .timeindex has an impossible size or order", _REBUILD),
        "timeindex_empty": Kind(_W, "a .timeindex has no entry, although records have timestamps", _REBUILD),
        "timeindex_misleads": Kind(
            _W, "a time entry hides a later timestamp, or names an offset past the end", _REBUILD),
        "timeindex_behind": Kind(
            _W, "the last time entry of a closed segment is below its largest timestamp", _REBUILD),
        "timeindex_loose": Kind(_N, "a time entry is above every timestamp up to its offset, as after compaction",
                                "nothing: searches only read a little more"),
    }),
    **_found_in("minute_index_check.py", {
        "minuteindex_corrupt": Kind(_W, "a .time.index (from seglog; brokers ignore it) has an impossible size or "
        "order",
                                    _REBUILD),
        "minuteindex_misleads": Kind(
            _W, "an entry of a .time.index does not name the largest timestamp so far and its batch: searches skip it "
                "and read more", _REBUILD),
    }),
    **_found_in("time_ranges_check.py", {
        "timeranges_corrupt": Kind(
            _W, "a .ranges.index (from seglog; brokers ignore it) fails its checksum or is impossible: searches by "
                "time ignore it and read more", _REBUILD),
        "timeranges_stale": Kind(
            _W, "a .ranges.index does not belong to the log beside it, which was truncated or replaced: searches by "
                "time ignore it", _REBUILD),
        "timeranges_mislead": Kind(
            _E, "a .ranges.index has a wrong smallest or largest timestamp for a run of records: a search by time can "
                "miss records", _REBUILD, "deep"),
        "timeranges_newer": Kind(_N, "a .ranges.index was written by a newer seglog, and was not checked",
                                 "nothing: searches by time ignore it"),
    }),
    **_found_in("column_stats_check.py", {
        "stats_corrupt": Kind(
            _W, "a .stats.index (from seglog; brokers ignore it) fails its checksum or is impossible: table queries "
                "ignore it and read more", _STATS),
        "stats_stale": Kind(
            _W, "a .stats.index does not belong to the log beside it, which was truncated or replaced: table queries "
                "ignore it", _STATS),
        "stats_mislead": Kind(
            _E, "a .stats.index has wrong times, keys or counts for a run of records: a table query can miss "
                "rows", _STATS, "deep"),
        "stats_newer": Kind(_N, "a .stats.index was written by a newer seglog, and was not checked",
                            "nothing: table queries ignore it"),
    }),
    **_found_in("empty_index.py", {
        "index_empty": Kind(_W, "an .index has no entry, although its log needs some", _REBUILD),
        "index_undecided": Kind(
            _N, "an .index has no entry: it was emptied, or never had one; the directory does not show which",
            "pass the topic's setting, --config index.interval.bytes=..., or rebuild the index, which does no harm"),
    }),
    **_found_in("transaction_check.py", {
        "txnindex_corrupt": Kind(_W, "a .txnindex has an impossible size or order", _REBUILD),
        "txnindex_misleads": Kind(_W, "the .txnindex lists an aborted transaction whose marker is not in the segment",
                                  "a broker rebuilds the file at an unclean start"),
        "txnindex_incomplete": Kind(
            _E, "the .txnindex does not list an abort marker: aborted data is read as committed", _REBUILD),
    }),
    **_found_in("other_files.py", {
        "snapshot_corrupt": Kind(_W, "a producer snapshot fails its checksum",
                                 "remove the snapshot: a broker rebuilds producer state from the log"),
        "epochs_missing": Kind(_W, "batches have leader epochs, but there is no leader-epoch-checkpoint",
                               "a broker rebuilds it at an unclean start"),
        "metadata_corrupt": Kind(_W, "a partition.metadata does not parse: a broker refuses the directory",
                                 "rewrite it with the topic's id"),
        "settings_corrupt": Kind(
            _W, "a .seglog.config (from seglog; brokers ignore it) fails its checksum or has an invalid setting: the "
                "log does not open for writing",
            "remove it, open the log and set its settings again with Log.configure"),
        "foreign_log": Kind(
            _N, "an empty .log beside .tlog files, created by a broker: it is not part of the log",
            "nothing, or remove it with its indexes while no broker runs"),
        "leftover": Kind(_W, "a .cleaned, .swap or .deleted file: a compaction or deletion was in progress",
                         "a broker completes or removes it at the next start"),
        "orphan_index": Kind(_W, "an index file has no .log", "a broker removes it at the next start"),
    }),
}

_OF_MANAGED_LEDGERS = _found_in("ledger_check.py", {
    "manifest_corrupt": Kind(
        _E, "a manifest is missing, fails its checksum, or names a ledger that does not exist", _LEDGER_RECOVER),
    "ledger_corrupt": Kind(_E, "a ledger.json fails its checksum, or belongs to another ledger",
                           "restore the file from a copy"),
    "ledger_length": Kind(_E, "the .log of a sealed ledger does not have the length at which it was sealed",
                          "restore the ledger from a copy, or let seglog ledger recover keep what is left"),
    "ledger_damaged": Kind(_E, "bytes in the middle of a ledger are not complete batches, or entries are out of order",
                           _COPY),
    "ledger_differs": Kind(_E, "the manifest and ledger.json disagree about a sealed ledger", _LEDGER_RECOVER),
    "ledger_tail": Kind(_W, "the last write to an unsealed ledger is unfinished", _OPEN),
    "ledger_open": Kind(_N, "a ledger is not sealed: it is being written, or its writer died", _OPEN),
    "ledger_stray": Kind(_N, "a ledger's directory is not in the manifest: it is being created or removed", _OPEN),
    "entry_corrupt": Kind(_E, "an entry is inconsistent or fails its checksum", _COPY),
    "entry_index": Kind(_E, "the message index of an entry does not follow that of the entry before "
    "it", "compare with a copy"),
    "entry_time": Kind(_E, "the broker timestamp of an entry is earlier than that of the entry before "
    "it", "compare with a copy"),
    "cursor_corrupt": Kind(_E, "a cursor's file fails its checksum",
                           "restore it from a copy, or delete it and create the cursor again"),
})

_OF_MANAGED_LEDGERS |= _found_in("compacted_check.py", {
    "compacted_lost": Kind(
        _E, "no cursor points to a compacted ledger any longer, or the ledger does not exist: keys are missing",
        "restore the cursor's file, or the ledger, from a copy"),
    "compacted_damaged": Kind(
        _E, "a compacted ledger is damaged or out of order, or records a wrong last message", _COPY),
    "compacted_stray": Kind(_N, "a compacted ledger is not in use: it is being created or removed", _OPEN),
})

_OF_MANAGED_LEDGERS |= _found_in("relocated_check.py", {
    "relocated_lost": Kind(
        _E, "there is no intact copy of an entry that a cursor has set aside: a delayed message is missing",
        "restore the ledger of relocated entries from a copy"),
    "relocated_damaged": Kind(
        _E, "a ledger of relocated entries is damaged or has another version", _COPY),
    "relocated_stray": Kind(
        _N, "no cursor uses a ledger of relocated entries: it is being created or removed",
        "nothing: the next opening for delayed messages removes it"),
})

KINDS = _OF_PARTITIONS | _OF_MANAGED_LEDGERS


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem found. position: byte in the file; offset: of the record; size_bytes: of the damage; None if unknown.

    last_offset: of a range, included. found, expected: what is there, and what should be. code: see docs/findings.md.
    is_repaired: the next start repairs it by itself, so it is a note, whatever its code. advice: replaces the `fix` of
    its code.
    """

    code: str
    file: str
    position: int | None = None
    offset: int | None = None
    size_bytes: int | None = None
    found: str = ""
    expected: str = ""
    last_offset: int | None = None
    is_repaired: bool = False
    advice: str = ""

    @classmethod
    def _of_damage(cls, code: str, log: Path, damage: Damage) -> Self:
        """A finding for bytes of a ledger's .log that are not whole batches."""
        return cls(
            code, os.fspath(log), damage.start, damage.first_offset, damage.stop - damage.start, found=damage.reason
        )

    @property
    def severity(self) -> Severity:
        """Error, warning or note."""
        return Severity.NOTE if self.is_repaired else KINDS[self.code].severity

    @property
    def meaning(self) -> str:
        """What the code means, in one sentence."""
        meaning = KINDS[self.code].meaning
        return meaning.partition(_IF_TRUSTED)[0] if self.is_repaired else meaning

    @property
    def fix(self) -> str:
        """What to do about it."""
        return _NEXT_START if self.is_repaired else self.advice or KINDS[self.code].fix

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON line of `seglog verify --json`, without unknown fields."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        for name in ("is_repaired", "advice"):      # severity and fix say it
            known.pop(name, None)
        return {"type": "finding", "schema": SCHEMA, "severity": str(self.severity), **known, "fix": self.fix}


@dataclass(slots=True)
class Report:
    """What `verify` checked and what it found.

    path, level                         as they were passed
    segments, size_bytes, batches       how much was checked
    records                             how many; legacy records are counted only at level "deep"
    witnessed                           the number of segments that plain Python read a second time
    log_start_offset, log_end_offset    where the log begins and ends, or None if unknown
    findings                            the problems, in the order of the files
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
        """Count the findings of this severity."""
        return sum(f.severity == severity for f in self.findings)

    @property
    def ok(self) -> bool:
        """Whether there are no errors and no warnings."""
        return all(f.severity == Severity.NOTE for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the `summary` line of `seglog verify --json`."""
        return {
            "type": "summary", "schema": SCHEMA, "path": self.path, "level": self.level, "ok": self.ok,
            "segments": self.segments, "witnessed": self.witnessed, "size_bytes": self.size_bytes,
            "batches": self.batches, "records": self.records, "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "errors": self.count(_E), "warnings": self.count(_W), "notes": self.count(_N),
        }
