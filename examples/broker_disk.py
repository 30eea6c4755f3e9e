"""Look over the disk of a broker that died, repair a copy of it, and say what that cost.

    python broker_disk.py LOG_DIR COPY

LOG_DIR is not changed. COPY gets the repaired partitions; start a broker on it once you have read what is lost.
"""
import json
import shutil
import subprocess
import sys


def seglog(*arguments):
    """The JSON lines of a command. Status 1 is an answer: there are findings, or something to do."""
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(log_dir, copy):
    # What is wrong, and what each way out would lose.
    *partitions, summary = seglog("verify", log_dir, "--summary")
    print(f"{summary['partitions']} partitions, {summary['errors']} errors, {summary['warnings']} warnings")
    for one in partitions:
        if "broker_loses" in one:
            broker, ours = one["broker_loses"]["records"], one["quarantine_loses"]["records"]
            print(f"{one['partition']}: a broker would lose {broker} records, a quarantine {ours}")

    # What the cluster says about the topics, and where its consumers are.
    for topic in seglog("topics", log_dir):
        if topic["type"] == "topic" and topic["settings"]:
            policy = topic["settings"].get("cleanup.policy", {"value": "unknown"})["value"]
            print(f"topic {topic['topic']}: {topic['partitions']} partitions, {policy}")
    for line in seglog("groups", log_dir):
        if line["type"] == "committed_offset":
            print(f"group {line['group']}: {line['topic']}-{line['partition']} at {line['offset']}, lag {line['lag']}")

    # Repair a copy.
    shutil.copytree(log_dir, copy)
    done = seglog("recover", copy, "--mode", "quarantine", "--apply")[-1]
    print(f"recovered {done['partitions']} partitions: {done['lost_bytes']} bytes in quarantine")
    left = seglog("verify", copy, "--summary")[-1]
    print(f"left: {left['errors']} errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
