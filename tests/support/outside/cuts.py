"""Power cuts of a recording: chooses states, has them opened by a judge process, and hears the witness about each.

A state has a name, `<events>:<seed>`: the disk after so many events of the record, and the seed of disk.Disk.state.
"""
import json
import pickle
import queue
import random
import shutil
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.outside.disk import Disk, digest, read_tree, write_tree
from support.outside.recording import Recording
from support.outside.silence import next_line

CHANGES = frozenset("WTECMRLU")     # events after which the disk may hold something else than before
BATCH = 100                         # states that one judge process opens


@dataclass
class Verdicts:
    """What came of many states."""

    states: int = 0
    recordings: int = 0
    violations: list = field(default_factory=list)      # (name of the state, [what is wrong])

    def __str__(self):
        wrong = len(self.violations)
        lines = [f"{wrong} of {self.states} states of {self.recordings} recordings violate durability.md"]
        for name, wrong in self.violations[:8]:
            lines += [f"  {name}"] + [f"    {what[:400]}" for what in wrong[:4]]
        return "\n".join(lines)


@dataclass
class Case:
    """A recording and the means to judge it: `witness()` makes a new witness, `judge` is a judging process's module."""

    name: str
    start: dict
    inodes: dict
    events: list
    witness: object
    judge: str
    while_there: str = ""       # the power is only cut while there is a file with this ending

    def disk(self):
        return Disk(self.start, self.inodes)

    def save(self, directory, cut, seed, wrong):
        """Keep all that is needed to look at one state again: python -m support.outside.reproduce DIRECTORY."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "case.pickle", "wb") as file:
            pickle.dump((self, cut, seed), file)
        text = [f"{self.name}, after {cut} events, seed {seed}", *wrong, ""]
        text += [f"{number} {event}" for number, event in enumerate(self.events[:cut])]
        (directory / "story.txt").write_text("\n".join(text) + "\n")


def case_of(name, recording, witness, judge):
    """A recording as a case; holds that the model saw every change that the process made."""
    case = Case(name, recording.start, recording.inodes, recording.events, witness, judge)
    disk = case.disk()
    for event in recording.events:
        disk.replay(event)
    assert disk.in_memory() == read_tree(recording.disk), f"{name}: the record is not all that was done"
    return case


@dataclass
class Cut:
    """One state: what stands on the disk, and the witness as of then."""

    case: Case
    events: int
    seed: int
    tree: dict
    witness: object

    def __str__(self):
        return f"{self.case.name}, state {self.events}:{self.seed}"


def choose(case, count, seed):
    """Up to `count` different states of a recording, spread over all of it.

    Half of the cuts come right behind a promise, where most is owed, the others after any change; if a call failed, all
    come after that. A third of the states
    are corners, the others chosen by chance.
    """
    chance = random.Random(seed)
    changes = [n + 1 for n, event in enumerate(case.events) if event.op in CHANGES]
    if case.while_there:
        changes = [n for n in changes if n in _while_there(case)]
    promises = {"end": [len(case.events)]}
    for n, event in enumerate(case.events):
        if event.op == "N" and (word := json.loads(event.data)[0]) in case.witness.promises:
            promises.setdefault(word, []).append(n + 1)
    changes = changes or promises["end"]        # a call that failed before the first change
    failed = next((n for n, event in enumerate(case.events) if event.result), None)
    if failed is not None:
        # What came before is another recording's matter.
        changes = [n for n in changes if n > failed] or changes
        promises = {word: [n for n in found if n > failed] for word, found in promises.items()}
        promises = {word: found for word, found in promises.items() if found}
    wanted = {}
    for number in range(count):
        state_seed = chance.randrange(len(Disk.CORNERS)) if number % 3 == 0 else chance.randrange(10, 10**9)
        # Rare promises (a close) as often as frequent ones (an append).
        behind_a_promise = not case.while_there and chance.random() < 0.5
        some = promises[chance.choice(sorted(promises))] if behind_a_promise else changes
        wanted.setdefault(chance.choice(some), set()).add(state_seed)
    disk, witness, seen, told = case.disk(), case.witness(), set(), 0
    for number, event in enumerate(case.events):
        disk.replay(event)
        if event.op == "N":
            witness.hear(event)
            told = number
        for state_seed in sorted(wanted.get(number + 1, ())):
            tree = disk.state(state_seed)
            key = digest(tree), told
            if key not in seen:
                seen.add(key)
                yield Cut(case, number + 1, state_seed, tree, pickle.loads(pickle.dumps(witness)))


def _while_there(case):
    """After how many events there is a file with such an ending, to whoever looks without a power cut."""
    there, found = set(), set()
    for number, event in enumerate(case.events, 1):
        if event.op in "RU" and not event.result:
            there.discard(event.path)
        if event.op in "RC" and not event.result and (path := event.other or event.path).endswith(case.while_there):
            there.add(path)
        if there:
            found.add(number)
    return found


def choose_behind(case, word, seeds):
    """States right behind each note `word`: those of the given seeds."""
    disk, witness, seen = case.disk(), case.witness(), set()
    for number, event in enumerate(case.events):
        disk.replay(event)
        if event.op != "N":
            continue
        witness.hear(event)
        for seed in seeds if json.loads(event.data)[0] == word else ():
            tree = disk.state(seed)
            if (key := (digest(tree), number)) not in seen:
                seen.add(key)
                yield Cut(case, number + 1, seed, tree, pickle.loads(pickle.dumps(witness)))


class PowerCuts:
    """Judges states of many recordings. Those with one judge are opened by one process, `BATCH` at a time.

    scratch: a directory to work in, best in memory. keep: where what violates is saved.
    """

    def __init__(self, scratch, server, keep=None):
        self.scratch, self.server, self.keep = Path(scratch), server, keep
        self.verdicts = Verdicts()

    def judge(self, case, count, seed, *, again=0):
        """`count` states of `case`; in every fifth of them the power is cut `again` times while it is opened."""
        self.judge_all([(case, count, seed)], again=again)

    def judge_all(self, wanted, *, again=0):
        """`wanted`: (case, count, seed) each."""
        cuts = []
        for case, count, seed in wanted:
            self.verdicts.recordings += 1
            self._judge_process(case)
            cuts += choose(case, count, seed)
        inner = self._judge_cuts(cuts, again)
        if inner:
            self.judge_all(inner)

    def judge_behind(self, case, word, seeds):
        """The states of these seeds right behind each promise `word`."""
        self.verdicts.recordings += 1
        self._judge_process(case)
        self._judge_cuts(list(choose_behind(case, word, seeds)), 0)

    def _judge_cuts(self, cuts, again):
        inner = []
        for judge in sorted({cut.case.judge for cut in cuts}):
            mine = [cut for cut in cuts if cut.case.judge == judge]
            for at in range(0, len(mine), BATCH):
                inner += self._judge_states(mine[at : at + BATCH], again)
        return inner

    def _judge_process(self, case):
        """What was wrong without any power cut."""
        witness = case.witness()
        for event in case.events:
            if event.op == "N":
                witness.hear(event)
        if witness.violations:
            self._violated(case, len(case.events), 1, f"{case.name} without a power cut", witness.violations)

    def _judge_states(self, cuts, again):
        names = [f"s{number}" for number in range(len(cuts))]
        start = {}
        for name, cut in zip(names, cuts, strict=True):
            start[name] = None
            start |= {f"{name}/{p}": Path(name) / c if isinstance(c, Path) else c for p, c in cut.tree.items()}
        directory = self.scratch / "judged"
        recording = Recording.begin(directory, self.server, start)
        tasks = [
            cut.witness.task(recording.disk / name) | {"name": name} for name, cut in zip(names, cuts, strict=True)
        ]
        answers = ask(cuts[0].case.judge, tasks, recording)
        self.verdicts.states += len(cuts)
        for cut, facts in zip(cuts, answers, strict=True):
            if wrong := list(cut.witness.check(facts)):
                self._violated(cut.case, cut.events, cut.seed, str(cut), wrong)
        inner = []
        if again:
            recording.read()
            spans = _spans(recording.events)
            for number in range(0, len(cuts), 5):
                if "error" not in answers[number] and names[number] in spans:
                    case = _inner(cuts[number], recording, names[number], spans[names[number]])
                    inner.append((case, again, cuts[number].seed))
        shutil.rmtree(directory)
        return inner

    def _violated(self, case, events, seed, name, wrong):
        self.verdicts.violations.append((name, wrong))
        if self.keep is not None:
            case.save(Path(self.keep) / str(len(self.verdicts.violations)), events, seed, wrong)


def _spans(events):
    """Name of a state -> the events from its note to the next state's."""
    begins = [
        (n, json.loads(event.data)[1]) for n, event in enumerate(events)
        if event.op == "N" and event.data.startswith(b'["state"')
    ]
    ends = [n for n, _ in begins[1:]] + [len(events)]
    return {name: events[begin + 1 : end] for (begin, name), end in zip(begins, ends, strict=True)}


def _inner(cut, recording, name, events):
    """What the judge did in one state, as a recording of its own."""
    def inner(path):
        return "" if path == name else path.removeprefix(name + "/")

    def is_inside(path):
        return path == name or path.startswith(name + "/")

    inside = [
        replace(event, path=inner(event.path), other=inner(event.other)) for event in events
        if event.op == "N" or is_inside(event.path)
    ]
    inodes = {inner(path): inode for path, inode in recording.inodes.items() if is_inside(path)}
    witness = Thaw(pickle.dumps(cut.witness.after_power_cut()), cut.case.witness.promises)
    return Case(f"{cut}, opened again", cut.tree, inodes, inside, witness, cut.case.judge)


@dataclass
class Witnesses:
    """Makes witnesses of a kind, each new. `promises`: the notes that say that a call returned."""

    kind: type
    arguments: tuple = ()

    @property
    def promises(self):
        return self.kind.PROMISES

    def __call__(self):
        return self.kind(*self.arguments)


@dataclass
class Thaw:
    """Makes witnesses that know what another one knew."""

    frozen: bytes
    promises: frozenset

    def __call__(self):
        return pickle.loads(self.frozen)


def ask(judge, tasks, recording):
    """The facts of each task, by processes under the recorder. One that dies or hangs is the fact of its state."""
    answers = []
    while len(answers) < len(tasks):
        with recording.process(judge, pipes=True) as process:
            lines = queue.SimpleQueue()
            threading.Thread(target=_take_lines, args=(process.stdout, lines), daemon=True).start()
            try:
                for task in tasks[len(answers) :]:
                    process.stdin.write(json.dumps(task) + "\n")
                    process.stdin.flush()
                    answer = next_line(lines, process.pid)
                    if not answer:
                        raise BrokenPipeError
                    answers.append(json.loads(answer))
                process.stdin.close()
                process.wait()
            except queue.Empty:
                answers.append({"error": "no answer: the judge hangs"})
            except BrokenPipeError:
                answers.append({"error": f"the judge ended with {process.wait()}: {process.errors()[-1500:]}"})
    return answers


def _take_lines(stream, lines):
    """`stream` line by line into a queue; an empty one at its end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def show(case, cut, seed, directory):
    """Write a state to `directory`; returns the witness as of then."""
    disk, witness = case.disk(), case.witness()
    for event in case.events[:cut]:
        disk.replay(event)
        if event.op == "N":
            witness.hear(event)
    write_tree(disk.state(seed), directory)
    return witness
