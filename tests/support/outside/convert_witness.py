"""Heard how far a conversion in place was (convert_worker.py), and judges what a power cut left of it.

At every moment the partition is the old one or the new one, whole; once a call has returned it is the one that the call
said; a run behind the power cut completes what was begun; and the way back leads to the records and format of before.
"""
from support.outside.notes import noted


class ConvertWitness:
    PROMISES = frozenset({"converted", "restored"})

    def __init__(self, records, magics):
        self.records = records      # of the partition at first, as convert_judge tells them
        self.magics = magics
        self.state = "restored"     # or "converted"; None while a call is under way
        self.violations = []

    def hear(self, event):
        _, word, _ = noted(event)
        if word in ("convert", "rollback"):
            self.state = None
        elif word in ("converted", "restored"):
            self.state = word

    def after_power_cut(self):
        return self

    def task(self, path):
        return {"path": f"{path}"}

    def check(self, facts):
        if "error" in facts:
            return [facts["error"]]
        wrong = list(facts["wrong"])
        for when in ("found", "converted", "restored", "appended"):
            if facts[when]["records"] != self.records:
                wrong.append(f"{when}: other records than before")
        if self.state == "converted" and facts["found"]["magics"] != [2]:
            wrong.append(f"found format {facts['found']['magics']} although it was converted")
        if self.state == "restored" and facts["found"]["magics"] != self.magics:
            wrong.append(f"found format {facts['found']['magics']}, and it was {self.magics}")
        if facts["converted"]["magics"] != [2]:
            wrong.append(f"converting again gave format {facts['converted']['magics']}")
        if facts["restored"]["magics"] != self.magics:
            wrong.append(f"the way back led to format {facts['restored']['magics']}")
        return wrong
