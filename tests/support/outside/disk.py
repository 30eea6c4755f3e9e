"""A disk that loses its power: what may stand on it, given what a process asked the kernel for (recording.py).

It knows nothing of the code that wrote. Its assumptions are those of docs/durability.md, by their numbers there:

1, 2. A sync that ended well makes durable what was written before it began. One that failed drops what it was to
      cover: those bytes stay in memory, where everybody reads them, and no later sync of the file need bring them to
      the disk, though it may. Bytes that are written again are as new. A failed sync of a directory drops nothing.
3.    A change of names is durable when every directory that it concerns was synced after it.
4.    A rename or exchange is one step, also where a later change of the name that it made is there.
5.    Of what is not durable anything may be there, in any order: bytes, lengths, names, each without the others.
6.    Bytes that did not arrive are zeros, or what stood there.
7.    A file changes by sectors of 512 or 4096 bytes. A sector is as memory held it at some moment since the last sync:
      a later write of a sector brings the earlier ones of that sector with it.

`Disk` replays events; `state(seed)` is one disk that a power cut may leave now.
"""
import hashlib
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

_RENAME_EXCHANGE = 2        # linux/fs.h
SECTORS = (512, 4096)
# In a mixture each file is in some state of its own.
_OF_ONE_FILE = ("all", "none", "length", "random", "random", "one missing")


class File:
    """Bytes and length: `base` is durable and in order; `pieces` came after, durable (sure) or not."""

    def __init__(self, data=b""):
        self.base = bytearray(data)
        self.size = len(data)           # in memory
        self.sure_size = len(data)      # the durable length
        self.pieces = []

    def write(self, seq, position, data):
        self.pieces.append(Piece(seq, position, data))
        self.size = max(self.size, position + len(data))

    def set_size(self, seq, size):
        if size != self.size:
            self.pieces.append(Piece(seq, size, None, self.size))
            self.size = size

    def sync_begins(self, seq):
        return seq, self.size

    def sync_ends(self, begun, failed):
        before, size = begun
        for piece in self.pieces:
            if piece.seq < before and not piece.sure and not piece.dropped:
                if failed:
                    piece.dropped = True
                else:
                    piece.sure = True
        if failed:
            return
        self.sure_size = size
        while self.pieces and self.pieces[0].sure:
            piece = self.pieces.pop(0)
            piece.put(self.base, piece.position, piece.data)
        # A piece that was dropped goes when all of it was written again, durably.
        self.pieces = [p for n, p in enumerate(self.pieces) if not (p.dropped and self._is_covered(n))]

    def _is_covered(self, number):
        piece = self.pieces[number]
        if piece.data is None:
            return True     # a length: the sync that came later made it durable
        missing = [(piece.position, piece.end)]
        for later in self.pieces[number + 1 :]:
            if later.sure and later.data is not None:
                missing = [
                    part for a, b in missing
                    for part in ((a, min(b, later.position)), (max(a, later.end), b)) if part[0] < part[1]
                ]
        return not missing

    @property
    def in_doubt(self):
        return any(not piece.sure for piece in self.pieces)

    def in_memory(self):
        data = bytearray(self.base)
        for piece in self.pieces:
            piece.put(data, piece.position, piece.data)
        return _sized(data, self.size)

    def after_power_cut(self, how, chance):
        """The bytes that the disk holds. `how`: see Disk.state."""
        if not self.in_doubt:
            return self.in_memory()
        choose = _Chooser(self, how, chance)
        data = bytearray(self.base)
        for number, piece in enumerate(self.pieces):
            if piece.data is None:
                if piece.sure or (piece.position < len(data) and choose.length_is_there()):
                    piece.put(data, piece.position, None)
                continue
            for begin, end in piece.sectors(choose.grain):
                if piece.sure or choose.is_there(begin // choose.grain, number, piece):
                    piece.put(data, begin, piece.data[begin - piece.position : end - piece.position])
        return _sized(data, choose.length(max(len(data), min(self.sure_size, self.size))))


@dataclass
class Piece:
    """A write, or with `data` None a length that was set (`before`: the one it had)."""

    seq: int
    position: int
    data: bytes | None
    before: int = 0
    sure: bool = False
    dropped: bool = False

    @property
    def end(self):
        return self.position + len(self.data)

    def put(self, target, position, data):
        if data is None:
            if position < self.before:
                del target[position:]
            return
        if len(target) < position:
            target.extend(bytes(position - len(target)))
        target[position : position + len(data)] = data

    def sectors(self, grain):
        at = self.position
        while at < self.end:
            end = min((at // grain + 1) * grain, self.end)
            yield at, end
            at = end


class _Chooser:
    """Which sectors of a file are there, and what its length is."""

    def __init__(self, file, how, chance):
        self.file, self.how, self.chance = file, how, chance
        self.grain = chance.choice(SECTORS)
        self.dropped_too = {"all": True, "none": False}.get(how, chance.random() < 0.3)
        self.share = chance.choice([0.1, 0.5, 0.9])
        self.one = None
        if how in ("one missing", "one alone", "prefix"):
            sectors = sorted({
                (begin // self.grain, n) for n, piece in enumerate(file.pieces)
                if piece.data is not None and not piece.sure for begin, _ in piece.sectors(self.grain)
            })
            self.one = chance.choice(sectors) if sectors else None
        self.versions = {}

    def is_there(self, sector, number, piece):
        """Of each sector a version: the pieces up to some number."""
        if piece.dropped and not self.dropped_too:
            return False
        match self.how:
            case "all":
                return True
            case "none" | "length":
                return False
            case "one missing":
                return self.one is None or sector != self.one[0] or number < self.one[1]
            case "one alone":
                return self.one is not None and sector == self.one[0] and number <= self.one[1]
            case "prefix":
                return self.one is not None and (number, sector) <= (self.one[1], self.one[0])
        if sector not in self.versions:
            # Of a sector that was written often: how far it came.
            written = len(self.file.pieces)
            kept = self.chance.random() < self.share
            last = written if self.chance.random() < 0.5 else self.chance.randrange(written)
            self.versions[sector] = last if kept else -1
        return number <= self.versions[sector]

    def length_is_there(self):
        return self.how in ("all", "length") or (self.how == "random" and self.chance.random() < 0.5)

    def length(self, least):
        """At least `least`; zeros are behind what arrived."""
        size = self.file.size
        if least >= size or self.how == "none":
            return least
        if self.how in ("all", "length", "one missing"):
            return size
        ends = {least, size} | {min(max(p.end, least), size) for p in self.file.pieces if p.data is not None}
        ends.add(min((least // 512 + 1) * 512, size))
        return self.chance.choice(sorted(ends))


class Directory:
    pass


@dataclass(eq=False)
class NameChange:
    """`node` comes to stand at `to`, and goes from `away`. Places are (Directory, name).

    waits_for: directories whose sync is still missing. needs: the change that made the name which this one moves.
    other: in an exchange, the node that stood at `to`.
    """

    seq: int
    node: object
    to: tuple | None
    away: tuple | None
    other: object = None
    waits_for: set = field(default_factory=set)
    needs: object = None

    @property
    def sure(self):
        return not self.waits_for

    def put(self, names):
        if self.away is not None and names.get(self.away) is self.node:
            del names[self.away]
        if self.to is not None:
            names[self.to] = self.node
        if self.other is not None and self.away is not None:
            names[self.away] = self.other


class Disk:
    """Replays events. `start` is the tree that the disk held at first, durably; `inodes` its inodes by path.

    A tree is {path: bytes, or None for a directory, or a Path: another name of the file there}.
    """

    def __init__(self, start, inodes):
        self.root = Directory()
        self.nodes = {inodes[""]: self.root}        # inode -> node that has it now
        self.sure_names = {}    # (directory, name) -> node
        self.names = {}         # the same in memory
        self.changes = []       # of names, in order; the first one is not durable
        self.makers = {}        # (directory, name) -> the change that put a node there by a rename
        self.begun = {}         # number of a sync -> what it covers
        self.seq = 0
        for path, content in _in_order(start):
            if isinstance(content, Path):
                node = self.nodes[inodes[path]]
            else:
                node = self.nodes[inodes[path]] = Directory() if content is None else File(content)
            place = self._place(path)
            self.sure_names[place] = self.names[place] = node

    # --- replaying -------------------------------------------------------------------------

    def replay(self, event):
        self.seq += 1
        match event.op:
            case "W":
                self._file(event).write(self.seq, event.position, event.data)
            case "T":
                self._file(event).set_size(self.seq, event.position)
            case "S":
                self.begun[event.position] = self._sync_begins(event)
            case "E":
                self._sync_ends(event)
            case "C" | "M":
                node = File() if event.op == "C" else Directory()
                self.nodes[event.inode] = node
                self._change(node, to=self._place(event.path))
            case "R":
                self._rename(event)
            case "L":
                self._change(self.names[self._place(event.path)], to=self._place(event.other))
            case "U" if event.path.endswith(".sock"):
                pass        # bind made it, which is not recorded: a power cut leaves it, or it does not
            case "U":
                place = self._place(event.path)
                self._change(self.names[place], away=place)
            case "P":
                self.begun.clear()      # syncs of a process that is dead never end
            case "F" | "N":
                pass
            case _:
                raise AssertionError(f"the model does not know {event}")

    def _file(self, event):
        node = self.nodes.get(event.inode)
        assert isinstance(node, File), f"no such file: {event}"
        return node

    def _sync_begins(self, event):
        node = self.nodes[event.inode]
        return node, (node.sync_begins(self.seq) if isinstance(node, File) else self.seq)

    def _sync_ends(self, event):
        node, covers = self.begun.pop(event.position)
        if isinstance(node, File):
            node.sync_ends(covers, failed=event.result != 0)
        elif event.result == 0:
            for change in self.changes:
                if change.seq < covers:
                    change.waits_for.discard(node)
            while self.changes and self.changes[0].sure:
                self.changes.pop(0).put(self.sure_names)

    def _place(self, path):
        *above, name = path.split(os.sep)
        directory = self.root
        for part in above:
            directory = self.names[directory, part]
        return directory, name

    def _rename(self, event):
        away, to = self._place(event.path), self._place(event.other)
        other = self.names[to] if event.position & _RENAME_EXCHANGE else None
        self._change(self.names[away], to=to, away=away, other=other)

    def _change(self, node, *, to=None, away=None, other=None):
        change = NameChange(self.seq, node, to, away, other)
        change.waits_for = {place[0] for place in (to, away) if place is not None}
        if away is not None:
            change.needs = self.makers.pop(away, None)
            if to is not None:
                self.makers[to] = change
                if other is not None:
                    self.makers[away] = change
        change.put(self.names)
        self.changes.append(change)

    # --- the power goes ----------------------------------------------------------------------

    CORNERS = ("none", "all", "names alone", "data alone", "one missing", "one alone", "prefix")

    def state(self, seed):
        """The tree that is there after a power cut.

        Seeds from 0 on are first the corners: nothing that is not durable, everything, names without bytes (zeros of
        the whole length), bytes without names, everything but one sector, only one, and writes in their order up to
        some point; then mixtures by chance.
        """
        chance = random.Random(seed)
        is_corner = seed < len(self.CORNERS)
        corner = self.CORNERS[seed] if is_corner else chance.choice(["mixed", "mixed", *self.CORNERS[4:]])
        data_how = {"names alone": "length", "data alone": "all"}.get(corner, corner)
        names_share = {"none": 0, "data alone": 0, "all": 1, "names alone": 1}.get(
            corner, 1 if is_corner else chance.choice([0, 0.2, 0.5, 0.8, 1, 1])
        )
        names = self._names_after(names_share, chance)
        return self._tree(names, data_how, chance)

    def in_memory(self):
        """What the page cache holds: everything."""
        return self._tree(self.names, None, None)

    def _names_after(self, share, chance):
        there = {change for change in self.changes if change.sure or chance.random() < share}
        for change in reversed(self.changes):
            if change in there and change.needs is not None:
                there.add(change.needs)
        names = dict(self.sure_names)
        for change in self.changes:
            if change in there:
                change.put(names)
        return names

    def _tree(self, names, how, chance):
        inside = {}
        for (directory, name), node in names.items():
            inside.setdefault(directory, []).append((name, node))
        tree, first = {}, {}

        def walk(directory, above):
            for name, node in sorted(inside.get(directory, ()), key=lambda pair: pair[0]):
                path = os.path.join(above, name)
                if isinstance(node, Directory):
                    assert node not in first, "a directory has two names"
                    first[node], tree[path] = path, None
                    walk(node, path)
                elif node in first:
                    tree[path] = Path(first[node])
                else:
                    first[node] = path
                    if how is None:
                        tree[path] = bytes(node.in_memory())
                    else:
                        mine = chance.choice(_OF_ONE_FILE) if how == "mixed" else how
                        tree[path] = bytes(node.after_power_cut(mine, chance))

        walk(self.root, "")
        return tree


def digest(tree):
    """The same for trees with the same content."""
    state = hashlib.blake2b(digest_size=16)
    for path, content in sorted(tree.items()):
        text = b"d" if content is None else b"l" + os.fsencode(content) if isinstance(content, Path) else b"f" + content
        state.update(b"%d %s %d " % (len(path), os.fsencode(path), len(text)) + text)
    return state.hexdigest()


def write_tree(tree, target):
    """Make `target`, a new directory, hold a state."""
    os.mkdir(target)
    for path, content in _in_order(tree):
        whole = os.path.join(target, path)
        if content is None:
            os.mkdir(whole)
        elif isinstance(content, Path):
            os.link(os.path.join(target, content), whole)
        else:
            with open(whole, "wb", buffering=0) as file:
                file.write(content)


def _in_order(tree):
    """What each needs before it: directories before what is in them, files before their other names."""
    return sorted(tree.items(), key=lambda item: (isinstance(item[1], Path), item[0]))


def read_tree(directory):
    """The tree of a real directory, as `in_memory` gives it."""
    tree, first = {}, {}
    for path in sorted(p.relative_to(directory) for p in Path(directory).rglob("*")):
        whole = Path(directory) / path
        if whole.is_dir():
            tree[str(path)] = None
        else:
            inode = os.lstat(whole).st_ino
            tree[str(path)] = Path(first[inode]) if inode in first else whole.read_bytes()
            first.setdefault(inode, str(path))
    return tree


def _sized(data, size):
    data = data[:size]
    return data + bytes(size - len(data))
