"""Heard what a compacted log's worker was told (swap_worker.py), and judges what a power cut left.

The last value of each key whose append had returned is there, or a later one. Whoever only reads sees what the next
writer would leave, or UnfinishedChangeError: never fewer records.
"""
from support.outside.notes import noted


class SwapWitness:
    PROMISES = frozenset({"took", "compacted", "closed"})

    def __init__(self):
        self.taken = {}         # key: the last number
        self.given = set()
        self.violations = []

    def hear(self, event):
        _, word, rest = noted(event)
        match word:
            case "give":
                self.given.add(tuple(rest))
            case "took":
                self.taken[rest[0]] = rest[1]
            case "failed" | "dead":
                self.violations.append(f"a call failed: {rest[0]}")

    def task(self, path):
        return {"path": str(path / "data/orders-0")}

    def check(self, facts):
        if "error" in facts:
            return [facts["error"]]
        wrong = list(facts["wrong"])
        last = {}
        for key, number in facts["completed"]:
            if (key, number) not in self.given:
                wrong.append(f"{number} of key {key} was never given")
            if number <= last.get(key, -1):
                wrong.append(f"{number} of key {key} comes after {last[key]}")
            last[key] = number
        wrong += [
            f"key {key} has {last.get(key)}, and {number} was durable"
            for key, number in self.taken.items() if last.get(key, -1) < number
        ]
        for door, found in facts["doors"].items():
            owed = facts[{"ls": "segments", "stats": "records"}.get(door, "offsets")]
            if found not in (owed, "UnfinishedChangeError"):
                wrong.append(f"{door} shows {found}, and the next writer leaves {owed}")
        return wrong
