"""Changed bytes without end through the real doors, a family after another: what ends a process, or breaks a rule.

    python -m support.fuzz MINUTES [FAMILY ...]         each family as long as that; by default all

`make fuzz` runs it on kernels built with AddressSanitizer and UBSan. It begins where chance says, so that no two runs
are the same; a finding names its case, which SEGLOG_HOSTILE=<family>:<number> runs alone. Make it small, and keep it
in tests/hostile/test_found_before.py.
"""
import secrets
import sys
import time

from support.hostile_run import FAMILIES, Outcome, run

CASES = {"segments": 200, "indexes": 300, "snapshots": 300, "ledgers": 2000, "wire": 1000}      # of one process


def fuzz(family: str, minutes: float) -> list[str]:
    end = time.monotonic() + 60 * minutes
    total, began = Outcome(), time.monotonic()
    while time.monotonic() < end:
        first = secrets.randbelow(2**40)
        done = run(family, first, first + CASES[family], processes=1)
        total.cases += done.cases
        total.failures += done.failures
        for failure in done.failures:
            print(f"--- {family}\n{failure}", flush=True)
    spent_minutes = (time.monotonic() - began) / 60
    print(f"{family}: {total.cases} cases in {spent_minutes:.1f} minutes, {len(total.failures)} findings", flush=True)
    return total.failures


def main(minutes: str, *families: str) -> None:
    unknown = set(families) - set(FAMILIES)
    if unknown:
        sys.exit(f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    found = [failure for family in families or FAMILIES for failure in fuzz(family, float(minutes))]
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
