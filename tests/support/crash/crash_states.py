"""What a disk may hold after a crash, given the changes made before it: a model, and an enumeration of it.

The model, the same as docs/durability.md:

* A file's bytes and length are safe up to its last sync. Of a later write there may be all, nothing, or
  a part that ends (or begins) at a multiple of 512 or 4096 bytes of the file; the length may be there
  before the bytes, which are then zeros; a later write may be there without an earlier one.
* A sync that failed may have dropped what it was to write: no later sync of the file makes that safe. Only the
  same bytes, written again and synced, are.
* A name is safe once its directory was synced: syncing the file is not enough. Of the later changes of
  names (created, renamed, exchanged, linked, removed) any may be there without any other.
* One change of names is there as a whole or not at all: a rename never leaves both names or none.

A crash falls after any number of changes; a process that is killed is the case in which everything
survives. Enumeration is deterministic in (limit, seed): for each number of changes first the corners
(nothing survives, everything, names without data, data without names, length without data, each change
alone lost or alone kept, each pending write torn), then random mixtures. States with equal content are
given once. Users: tests.support.faultfs.
"""
import bisect
import contextlib
import functools
import hashlib
import os
import random
import tempfile
from array import array
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from support.surroundings import place_in_memory

GRAINS = (512, 4096)        # a sector, a page or a block
NEVER = float("inf")
DUPLICATES_MAX = 24         # random mixtures of one prefix in a row that show nothing new, before it is left


# --- what happened -----------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """Entries that come to stand under a name in one step: (directory, name, entry), or go: (directory, name, None).

    An entry is made by create, mkdir or link and leads to one node for ever; a rename moves it. So a rename
    that is there without an earlier one still takes the entry from where it stands, and leaves no second name.
    """

    places: tuple[tuple[int, str, int | None], ...]
    text: str

    @property
    def directories(self):
        """Those that must be synced before it is safe."""
        return {directory for directory, _, _ in self.places}


@dataclass(frozen=True)
class Time:
    """A modification time that was set. Safe once the file was synced (not by fdatasync)."""

    node: int
    mtime_ns: int
    text: str


@dataclass(frozen=True)
class Write:
    """Bytes at a position; or, with no bytes, a length that the file grows to, or is cut to (`cuts`)."""

    node: int
    position: int
    data: bytes
    text: str
    cuts: bool = False

    @property
    def end(self):
        return self.position + len(self.data)


@dataclass(frozen=True)
class Sync:
    """A sync of a file or directory, covering what was recorded before number `covers`; `failed`: it said so."""

    node: int
    covers: int
    data_only: bool
    text: str
    failed: bool = False


@dataclass(frozen=True)
class Mark:
    """A word of the workload about what it has been promised so far. No change."""

    value: object


@dataclass(frozen=True)
class Variant:
    """What is there of a file's pending writes: the first `whole`, and of the next one what `cut` says.

    kept    nothing of the next one
    torn    its bytes before the position `cut`
    ahead   its bytes before `cut`, and the length as if all writes were there: zeros
    tail    all writes are there, except this one's bytes before `cut`
    """

    kind: str
    whole: int
    cut: int = 0

    def __str__(self):
        return f"{self.kind} after {self.whole} writes" + (f" at byte {self.cut}" if self.kind != "kept" else "")


# --- the recorded history ----------------------------------------------------------------


class History:
    """A tree as it was, durably, and what was done to it. Node 0 is the root directory."""

    def __init__(self):
        self.directories = {}       # node -> {name: entry}, as it was at first
        self.files = {}             # node -> bytes, as it was at first
        self.nodes = []             # entry -> node
        self.steps = []             # Names, Time, Write, Sync, Mark, in order
        self._sealed_at = -1

    # The steps of one node or kind by index, and when each became safe: made anew when steps have come.

    def _seal(self):
        if self._sealed_at == len(self.steps):
            return
        self._sealed_at = len(self.steps)
        syncs = defaultdict(list)
        self._meta, self._writes, self._marks = [], defaultdict(list), []
        for index, step in enumerate(self.steps):
            match step:
                case Sync():
                    syncs[step.node].append((index, step))
                case Write():
                    self._writes[step.node].append(index)
                case Mark():
                    self._marks.append(index)
                case _:
                    self._meta.append(index)

        def synced(node, index, *, data_counts):
            counting = ((at, s) for at, s in syncs[node] if s.covers > index and (data_counts or not s.data_only))
            return next((at for at, s in counting if not s.failed), NEVER)

        def written(node, index):
            """When a write became safe: by the first sync that covers it, unless that one failed and dropped it."""
            at, sync = next(((at, s) for at, s in syncs[node] if s.covers > index), (NEVER, None))
            return NEVER if sync is None or sync.failed else at

        self._safe_at = {}          # index of a step -> index of the sync that made it safe
        for index in self._meta:
            step = self.steps[index]
            if isinstance(step, Time):
                self._safe_at[index] = synced(step.node, index, data_counts=False)
            else:
                self._safe_at[index] = max(synced(d, index, data_counts=True) for d in step.directories)
        for node, indexes in self._writes.items():
            for index in indexes:
                self._safe_at[index] = written(node, index)
        self.content.cache_clear()
        self.writes_at.cache_clear()
        self._digests = {}

    def meta_at(self, prefix):
        """The numbers of the changes of names and times before a crash."""
        return self._meta[: bisect.bisect_left(self._meta, prefix)]

    def is_safe(self, index, prefix):
        return self._safe_at[index] < prefix

    @functools.lru_cache(maxsize=64)  # noqa: B019 - one history lives as long as its test
    def writes_at(self, prefix):
        """node -> (which of its writes are not safe, number of writes) before a crash, for the files written to."""
        counts = {}
        for node, indexes in self._writes.items():
            done = bisect.bisect_left(indexes, prefix)
            counts[node] = (tuple(n for n in range(done) if self._safe_at[indexes[n]] >= prefix), done)
        return counts

    # --- contents

    @functools.lru_cache(maxsize=256)  # noqa: B019 - one history lives as long as its test
    def content(self, node, pending, done, variant):
        """The bytes of a file after `done` writes, of which those that are `pending` are there as `variant` says."""
        here = bytearray(self.files[node])
        steps = [self.steps[i] for i in self._writes[node][:done]]
        order = {n: number for number, n in enumerate(pending)} if variant is not None else {}
        for n, step in enumerate(steps):
            number = order.get(n)
            if number is None or number < variant.whole or (variant.kind == "tail" and number > variant.whole):
                _apply(here, step)
            elif number == variant.whole and variant.kind in ("torn", "ahead") and step.data:
                _apply(here, step, end=variant.cut)
            elif number == variant.whole and variant.kind == "tail" and step.data:
                _apply(here, step, begin=variant.cut)
        if order and variant.kind in ("ahead", "tail"):
            here.extend(bytes(max(0, max(steps[n].end for n in pending) - len(here))))
        return bytes(here)

    def digest(self, node, pending, done, variant):
        key = (node, pending, done, variant)
        if key not in self._digests:
            self._digests[key] = hashlib.blake2b(self.content(*key), digest_size=16).digest()
        return self._digests[key]

    # --- enumeration

    def crash_states(self, limit, seed, grains, shuffled, after=0):
        self._seal()
        prefixes = [0, *(i + 1 for i, step in enumerate(self.steps) if not isinstance(step, Mark))]
        prefixes = [prefix for prefix in prefixes if prefix >= after]
        # A mark stands for what came before it: a crash right after it is the one that may break the promise.
        prefixes = [self._with_marks(prefix) for prefix in prefixes]
        chooser = random.Random(seed)
        if limit < 2 * len(prefixes):
            prefixes = sorted(chooser.sample(prefixes, max(1, limit // 2)))
        streams = deque((prefix, self._choices(prefix, chooser, grains, shuffled)) for prefix in prefixes)
        seen, identities, number = set(), {}, 0
        while streams and number < limit:
            prefix, stream = streams.popleft()
            duplicates = 0
            for survivors, is_random in stream:
                state = CrashState(self, number, prefix, survivors)
                key = state.identity(identities)
                if key not in seen:
                    seen.add(key)
                    number += 1
                    yield state
                    streams.append((prefix, stream))
                    break
                duplicates += is_random
                if duplicates > DUPLICATES_MAX:
                    break

    def _with_marks(self, prefix):
        while prefix < len(self.steps) and isinstance(self.steps[prefix], Mark):
            prefix += 1
        return prefix

    def marks(self, prefix):
        return [self.steps[i].value for i in self._marks if i < prefix]

    def _choices(self, prefix, chooser, grains, shuffled):
        """(what survives, whether it was drawn at random) for a crash after `prefix` steps, the corners first."""
        meta = [index for index in self.meta_at(prefix) if not self.is_safe(index, prefix)]
        writes = {node: pending for node, (pending, _) in self.writes_at(prefix).items() if pending}
        corners = self._corners(meta, writes, grains)
        if shuffled:
            corners = list(corners)
            chooser.shuffle(corners)
        for survivors in corners:
            yield survivors, False
        while meta or writes:
            if chooser.random() < 0.5:
                names = frozenset(meta[: chooser.randint(0, len(meta))])
            else:
                names = frozenset(i for i in meta if chooser.random() < 0.5)
            data = {
                node: self._random_variant(node, pending, chooser, grains) for node, pending in writes.items()
            }
            yield Survivors(names, data), True

    def _corners(self, meta, writes, grains):
        """What survives in the cases that are told by themselves, the plain ones first."""
        every, none = frozenset(meta), frozenset()
        all_data = {node: Variant("kept", len(pending)) for node, pending in writes.items()}
        no_data = {node: Variant("kept", 0) for node in writes}
        long_zeros = {node: Variant("ahead", 0) for node in writes}

        yield Survivors(none, no_data)
        yield Survivors(every, all_data)         # a killed process
        yield Survivors(every, no_data)
        yield Survivors(none, all_data)
        yield Survivors(every, long_zeros)
        for number, one in enumerate(meta):
            yield Survivors(every - {one}, all_data)
            yield Survivors(frozenset({one}), all_data)
            yield Survivors(frozenset({one}), no_data)
            yield Survivors(frozenset(meta[:number]), all_data)
            yield Survivors(frozenset(meta[:number]), no_data)
        for node, variant in _in_turn([self._variants(node, writes[node], grains) for node in writes]):
            yield Survivors(every, all_data | {node: variant})
            yield Survivors(every, no_data | {node: variant})
            yield Survivors(none, no_data | {node: variant})

    def _variants(self, node, pending, grains):
        pending = [self.steps[self._writes[node][n]] for n in pending]
        for whole in reversed(range(len(pending))):     # the last writes first: there most workloads are tender
            step = pending[whole]
            yield node, Variant("kept", whole)
            yield node, Variant("ahead", whole, step.position)
            yield node, Variant("tail", whole, step.end)
            for cut in _cuts(step, grains):
                for kind in ("torn", "ahead", "tail"):
                    yield node, Variant(kind, whole, cut)

    def _random_variant(self, node, pending, chooser, grains):
        pending = [self.steps[self._writes[node][n]] for n in pending]
        whole = chooser.randint(0, len(pending))
        if whole == len(pending) or chooser.random() < 0.25:
            return Variant("kept", whole)
        step, grain = pending[whole], chooser.choice(grains)
        first = step.position // grain + 1
        last = -(-step.end // grain) - 1
        cut = grain * chooser.randint(first, last) if first <= last else chooser.choice((step.position, step.end))
        return Variant(chooser.choice(("torn", "ahead", "tail")), whole, cut)


def _in_turn(streams):
    """One item of each stream, then the next of each, until all have ended."""
    streams = deque(streams)
    while streams:
        stream = streams.popleft()
        with contextlib.suppress(StopIteration):
            yield next(stream)
            streams.append(stream)


def _cuts(step, grains):
    """Where a write may tear: the first, a middle and the last multiple of each grain inside it."""
    cuts = set()
    for grain in grains:
        first, last = step.position // grain + 1, -(-step.end // grain) - 1
        if first <= last:
            cuts |= {first * grain, (first + last) // 2 * grain, last * grain}
    return sorted(cuts)


def _put(directories, places, directory, name, entry):
    """Let a name lead to an entry, which leaves the name it had; or, with None, to nothing."""
    places.pop(directories[directory].pop(name, None), None)
    if entry is not None:
        if entry in places:
            before, its_name = places[entry]
            del directories[before][its_name]
        directories[directory][name] = entry
        places[entry] = (directory, name)


def _apply(content, step, begin=None, end=None):
    """Do a write, or its part between two positions of the file."""
    if step.cuts:
        del content[step.position :]
        return
    begin = step.position if begin is None else max(begin, step.position)
    end = step.end if end is None else min(end, step.end)
    if begin > len(content):
        content.extend(bytes(begin - len(content)))
    if begin < end:
        content[begin:end] = step.data[begin - step.position : end - step.position]


# --- one state ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Survivors:
    """Of the pending changes: the numbers of those of names and times that are there, and a variant for each file."""

    meta: frozenset
    data: dict


class CrashState:
    """One thing that the disk may hold.

    number    counts the states of one enumeration
    prefix    how many steps had been made
    marks     the values of RecordingFs.mark() up to then: what had been promised
    files     path -> bytes; directories   paths; both relative to the recorded root
    """

    def __init__(self, history, number, prefix, survivors):
        self.number = number
        self.prefix = prefix
        self.marks = history.marks(prefix)
        self._history = history
        self._survivors = survivors
        self._entries = self._walk()

    def _is_there(self, index):
        return index in self._survivors.meta or self._history.is_safe(index, self.prefix)

    def _walk(self):
        """[(path, node)] of everything that has a name, directories before what is in them."""
        history = self._history
        directories = {node: dict(entries) for node, entries in history.directories.items()}
        places = {entry: (node, name) for node, entries in directories.items() for name, entry in entries.items()}
        for index in history.meta_at(self.prefix):
            step = history.steps[index]
            if isinstance(step, Names) and self._is_there(index):
                for directory, name, entry in step.places:
                    _put(directories, places, directory, name, entry)
        found, to_do, visited = [], [("", 0)], set()
        while to_do:
            path, directory = to_do.pop()
            visited.add(directory)
            for name, entry in sorted(directories[directory].items()):
                inner, node = os.path.join(path, name), history.nodes[entry]
                found.append((inner, node))
                if node in directories and node not in visited:
                    to_do.append((inner, node))
        return found

    def _content_key(self, node):
        return (node, *self._history.writes_at(self.prefix).get(node, ((), 0)), self._survivors.data.get(node))

    def identity(self, identities):
        """Equal for states that no test can tell apart. `identities` numbers what is in them."""
        parts = array("q")
        for path, node in self._entries:
            digest = b"" if node in self._history.directories else self._history.digest(*self._content_key(node))
            parts.append(identities.setdefault((path, digest), len(identities)))
        times = tuple(sorted(self._times().items()))
        return (len(self.marks), bytes(parts), times)

    def _times(self):
        """node -> the modification time that is there, for files whose time was set."""
        history, times = self._history, {}
        for index in history.meta_at(self.prefix):
            step = history.steps[index]
            if isinstance(step, Time) and self._is_there(index):
                times[step.node] = step.mtime_ns
        return times

    @property
    def files(self):
        history = self._history
        return {p: history.content(*self._content_key(n)) for p, n in self._entries if n not in history.directories}

    @property
    def directories(self):
        return [path for path, node in self._entries if node in self._history.directories]

    @contextlib.contextmanager
    def materialise(self, tmp=None):
        """A fresh directory that holds what the recorded root would; removed afterwards.

        In memory where the system has a place for that (ten times as fast), or under `tmp`.
        """
        root = tempfile.mkdtemp(prefix=f"crash-state-{self.number}-", dir=tmp or place_in_memory())
        try:
            self._write_to(root)
            yield Path(root)
        finally:
            _remove(root)

    def _write_to(self, root):
        history, written, times = self._history, {}, self._times()
        for path, node in self._entries:
            path = os.path.join(root, path)
            if node in history.directories:
                os.mkdir(path)
            elif node in written:
                os.link(written[node], path)
            else:
                written[node] = path
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                content = memoryview(history.content(*self._content_key(node)))
                while content:
                    content = content[os.write(fd, content) :]
                os.close(fd)
                if node in times:
                    os.utime(path, ns=(times[node], times[node]))

    def story(self):
        """Every step up to the crash and what became of it: for the message of a failing test."""
        history, lines = self._history, []
        for index, step in enumerate(history.steps[: self.prefix]):
            match step:
                case Mark():
                    lines.append(f"      mark {step.value!r}")
                    continue
                case Sync():
                    fate = ""
                case _ if history.is_safe(index, self.prefix):
                    fate = "safe"
                case Write():
                    fate = str(self._survivors.data[step.node])
                case _:
                    fate = "kept" if index in self._survivors.meta else "LOST"
            lines.append(f"{index:5} {step.text}" + (f"   [{fate}]" if fate else ""))
        return "\n".join([*lines, f"crash after {self.prefix} of {len(history.steps)} steps, state {self.number}"])

    def __repr__(self):
        return f"<CrashState {self.number} after {self.prefix} steps>"


def _remove(path):
    # shutil.rmtree takes longer than everything else that is done to a state.
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(path)
