"""Random programs run by the real log, by ours, and by both in turns, leave the same log."""
import json
import os

import pytest

from support.kafka_oracle import VERSIONS
from support.log_programs import BEGINNING_MS, Author, LogRun, header
from support.producer_programs import agree, on_disk

pytestmark = pytest.mark.oracle

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
STEPS = 100


class Written:
    """A program, what ours answered to it, and the directory that ours left."""

    def __init__(self, seed, place):
        author = Author(seed)
        run = LogRun(place / f"ours{seed}" / f"p{seed}-0", author.config)
        self.seed, self.config, self.rolls_by_itself = seed, author.config, author.rolls_by_itself
        self.steps, self.answers = zip(*author.steps(run, STEPS), strict=True)
        run.close()
        self.directory, self.cut = run.directory, run.cut
        (self.directory.parent / "case.json").write_text(json.dumps({"config": self.config}, separators=(",", ":")))

    @property
    def text(self):
        return "\n".join([header(self.config, BEGINNING_MS, 0), *self.steps])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    place = tmp_path_factory.mktemp("programs")
    return [Written(seed, place) for seed in range(PROGRAMS)]


@pytest.fixture(scope="module", params=VERSIONS)
def kafkas(request, kafka_oracle, programs, tmp_path_factory):
    """(oracle, what the real log answers to each program and the directory that it leaves)."""
    place, oracle = tmp_path_factory.mktemp("kafkas"), kafka_oracle(request.param)
    answers = oracle.run({place / f"p{program.seed}-0": program.text for program in programs})
    return oracle, {directory.name: (directory, answers[directory]) for directory in answers}


def assert_agree(program, ours, kafkas, version):
    for number, (step, mine, theirs) in enumerate(zip(program.steps, ours, kafkas, strict=True)):
        if version != "3.9.1" and mine["stable"] == mine["start"]:
            # Where records of an open transaction were deleted, 4.x takes the offset of a batch nearby. (3.9.1's rule.)
            mine = mine | {"stable": theirs["stable"]}
        assert agree(mine, theirs), f"program {program.seed}, step {number}: {step}\n{mine}\n{theirs}"


def meaning(directory, cut):
    """What a log says in its files, but for the indexes of segments that went on after they were opened again.

    Kafka leaves snapshots that lie below its first segment, and makes no index for an empty one. The .time.index
    is ours.
    """
    suffixes = (".log", ".index", ".timeindex")
    files = {
        path.name: path.read_bytes() for path in directory.iterdir()
        if path.suffix in suffixes and not path.name.endswith(".time.index")
    }
    files = {name: raw for name, raw in files.items() if name.endswith(".log") or (raw and int(name[:20]) not in cut)}
    epochs = directory / "leader-epoch-checkpoint"
    first = min(files)[:20]
    disk = on_disk(directory)
    snapshots = {name: producers for name, producers in disk["snapshots"].items() if name >= first}
    return files | {
        "epochs": epochs.read_text() if epochs.exists() and epochs.stat().st_size else "0\n0\n",
        "snapshots": snapshots, "txnindex": disk["indexes"],
    }


def test_answers_segments_and_files_are_those_of_the_real_log(programs, kafkas):
    oracle, left = kafkas
    seen, compared = set(), 0
    for program in programs:
        directory, answers = left[program.directory.name]
        assert_agree(program, program.answers, answers, oracle.version)
        ours, theirs = meaning(program.directory, program.cut), meaning(directory, program.cut)
        assert ours == theirs, (program.seed, [name for name in ours | theirs if ours.get(name) != theirs.get(name)])
        compared += sum(name.endswith("index") for name in ours)
        seen |= {step.split()[0] for step in program.steps} | {answer.get("refused") for answer in program.answers}
    assert seen >= {"append", "follow", "roll", "truncate", "start", "clock", "reopen", "look", None}
    assert len(seen) > 9        # refusals too
    assert compared > 2 * PROGRAMS


def test_indexes_of_segments_that_went_on_are_those_of_a_recovery(programs, kafkas):
    oracle, _ = kafkas
    assert sum(len(program.cut) for program in programs) > PROGRAMS // 2
    for directory, found in oracle.check([program.directory for program in programs]).items():
        for start in ("clean", "unclean"):
            answer = found[start]
            assert "open_failed" not in answer, (directory.name, answer)
            assert not answer["log_truncated_or_changed"], (directory.name, start)
            # (Not of .txnindex: of a transaction whose first records were deleted, only who saw them knows.)
            changed = [file for file in answer["files_changed"] if file["file"].endswith((".index", ".timeindex"))]
            assert not changed, (directory.name, start, changed)


# --- in turns ----------------------------------------------------------------------------------------


class Turns:
    """A program cut where the log is opened again: one part is ours, the next one Kafka's, in one directory.

    `alone`: what the real log answers when all is its own.
    """

    def __init__(self, program, alone, place):
        self.program = program
        self.directory = place / f"turns{program.seed}" / f"p{program.seed}-0"
        self.parts = [(BEGINNING_MS, [], [])]
        for step, answer in zip(program.steps, alone, strict=True):
            if step.startswith("reopen "):
                self.parts.append((int(step.split()[1]), [], []))
            else:
                self.parts[-1][1].append(step)
                self.parts[-1][2].append(answer)
        self.start = 0

    @property
    def is_clean(self):
        """Whether ours opens what Kafka left as after a clean stop; else it recovers it.

        Who recovers forgets what was deleted of producers and transactions, as Kafka does: so only of programs without
        refused sequences.
        """
        return self.program.seed % 3 > 0 or not self.program.rolls_by_itself

    def is_ours(self, number):
        return (number + self.program.seed) % 2 == 0

    def our_turn(self, number):
        now_ms, steps, _ = self.parts[number]
        run = LogRun(self.directory, self.program.config, now_ms, self.start, clean=self.is_clean)
        try:
            self.compare(number, (run.run(step) for step in steps))
        finally:
            run.close()

    def text(self, number):
        now_ms, steps, _ = self.parts[number]
        return "\n".join([header(self.program.config, now_ms, self.start), *steps])

    def compare(self, number, answers):
        _, steps, alone = self.parts[number]
        whose = "ours" if self.is_ours(number) else "Kafka's"
        for step, here, there in zip(steps, answers, alone, strict=True):
            for key in ("first", "last", "start", "end", "segments"):
                assert here.get(key) == there.get(key), (self.program.seed, number, whose, step, here, there)
            self.start = here["start"]


def test_what_one_left_the_other_goes_on_with(programs, kafkas, tmp_path):
    oracle, left = kafkas
    turns = [
        Turns(program, left[program.directory.name][1], tmp_path)
        for program in programs if any(step.startswith("reopen ") for step in program.steps)
    ]
    assert len(turns) > PROGRAMS // 3
    for number in range(max(len(turn.parts) for turn in turns)):
        present = [turn for turn in turns if number < len(turn.parts)]
        theirs = {turn.directory: turn for turn in present if not turn.is_ours(number)}
        for directory, answers in oracle.run({d: turn.text(number) for d, turn in theirs.items()}).items():
            theirs[directory].compare(number, answers)
        for turn in present:
            if turn.is_ours(number):
                turn.our_turn(number)
    for turn in turns:
        program = turn.program
        directory, _ = left[program.directory.name]
        ours, theirs = meaning(turn.directory, program.cut), meaning(directory, program.cut)
        if not turn.is_clean:
            for forgotten in ("snapshots", "txnindex"):
                del ours[forgotten], theirs[forgotten]
        assert ours == theirs, (program.seed, [name for name in ours | theirs if ours.get(name) != theirs.get(name)])
