"""The tests of librdkafka over our server, unchanged: those that ask a broker, and for which one plain broker will do.

Its sources come from Debian, by apt-get and without being root, and are built once (conftest.py says where);
SEGLOG_LIBRDKAFKA_SOURCE names an unpacked copy of the same version instead, which is built in place. Its tests run as
its authors' CI does, quick, but each in a process of its own: several in one process break each other's sockets where
they play with the network.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import seglog
from support import kafka_oracle

pytestmark = pytest.mark.clients

VERSION, RELEASE = "2.8.0", "trixie"
BROKER = "3.9.1"
AT_ONCE = 4
TIMEOUT_S = 400
# Its tests call bin/kafka-topics.sh in there.
KAFKA = Path(__file__).parent / "doubles/kafka"
# As a broker of 3.9.1 has it, which stores no older format; and as the scripts of librdkafka set up theirs.
CONFIG = {"num.partitions": 4, "group.initial.rebalance.delay.ms": 3000, "message.format.version": "3.0"}

NO_ACLS = "it needs a server with an authorizer"
THREE_BROKERS = "makes topics of three replicas: needs three brokers"
SERVERS_OWN = "asks for other settings of the broker, too: the server's own are given when it is started"
# The parts of 0081_admin, each asked for by itself: as a whole it ends at the first ACL.
ADMIN_PARTS = (
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs",
    "CreateAcls", "DescribeAcls", "DeleteAcls", "unclean_destroy", "DeleteRecords", "DeleteGroups",
    "ListConsumerGroups", "DescribeConsumerGroups", "DescribeTopics", "DescribeCluster",
    "DeleteConsumerGroupOffsets", "AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "UserScramCredentials",
    "ListOffsets",
)
FAILURES = {
    "0081_admin AlterConfigs": SERVERS_OWN,
    "0081_admin IncrementalAlterConfigs": SERVERS_OWN,
    "0081_admin CreateAcls": NO_ACLS,
    "0081_admin DescribeAcls": NO_ACLS,
    "0081_admin DeleteAcls": NO_ACLS,
    "0092_mixed_msgver":
        "librdkafka 2.5.0 to 2.15.0 give messages of v0 and v1 without key and value (its issue 5549), and 0.10.0.0 is "
        "a setting that a broker of 3.9.1 has, too, but does not heed",
    "0103_transactions": THREE_BROKERS,
    "0107_topic_recreate": THREE_BROKERS,
    "0109_auto_create_topics": NO_ACLS,
    "0111_delay_create_topics": THREE_BROKERS,
    "0115_producer_auth": NO_ACLS,
    "0119_consumer_auth": NO_ACLS,
}
SASL = "asks for SASL, for which its scripts set up brokers of their own"
RAPIDJSON = "needs RapidJSON"
KNOWN_ISSUE = "its authors leave it out, for it fails with them"
SKIPPED = {
    "0028_long_topicnames": KNOWN_ISSUE,
    "0047_partial_buf_tmout": KNOWN_ISSUE,
    "0053_stats": RAPIDJSON,
    "0082_fetch_max_bytes": "not in quick runs",
    "0097_ssl_verify": "asks for TLS, for which its scripts set up brokers of their own",
    "0098_consumer_txn": RAPIDJSON,
    "0101_fetch_from_follower": RAPIDJSON,
    "0110_batch_size": RAPIDJSON,
    "0126_oauthbearer_oidc": SASL,
    "0135_sasl_credentials": SASL,
    "0142_reauthentication": SASL,
}
EXPECTED = {**dict.fromkeys(SKIPPED, "SKIPPED"), **dict.fromkeys(FAILURES, "FAILED")}
# Some of their own limits are short for a busy machine (1.5 s for an answer to an admin client): so many tests may need
# a second run, by themselves.
AGAIN_MAX = 8
MANUAL = {"8000_idle", "8001_fetch_from_follower_mock_manual"}
WITHOUT_NEW_TOPICS = "noautocreate"
# They call Kafka's own tool.
WITH_JAVA = {
    "0045_subscribe_update_non_exist_and_partchange", "0045_subscribe_update_topic_remove", "0052_msg_timestamps",
    "0077_compaction",
}


def run(*command, cwd, **environment):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, check=False, capture_output=True, text=True,
        env={**os.environ, **environment})
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def fetch(work, target):
    """The sources, by a list of packages of our own: nothing of this machine's is changed."""
    for part in ("state/lists/partial", "cache/archives/partial"):
        (work / part).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb-src http://deb.debian.org/debian {RELEASE} main\n")
    options = [
        "-o", f"Dir::Etc::sourcelist={work / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-",
        "-o", f"Dir::State={work / 'state'}", "-o", f"Dir::Cache={work / 'cache'}",
    ]
    run("apt-get", *options, "update", cwd=work)
    run("apt-get", *options, "source", "--download-only", "librdkafka", cwd=work)
    archive = work / f"librdkafka_{VERSION}.orig.tar.gz"
    run("tar", "xf", archive, cwd=work)
    (work / f"librdkafka-{VERSION}").replace(target)


@pytest.fixture(scope="module")
def tests(kept):
    """The folder with its tests, and the program that runs them."""
    given = os.environ.get("SEGLOG_LIBRDKAFKA_SOURCE")
    for program in ("make", "g++", *(() if given else ("apt-get",))):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: it fetches or builds librdkafka")
    sources = Path(given) if given else kept / f"librdkafka-{VERSION}"
    if not sources.exists():
        with tempfile.TemporaryDirectory(dir=kept) as work:
            fetch(Path(work), sources)
    if not (sources / "tests/test-runner").exists():
        run("./configure", "--disable-gssapi", "--disable-curl", "--disable-syslog", "--disable-optimization",
            cwd=sources)
        run("make", "-j2", "libs", cwd=sources)
        run("make", "-j2", "test-runner", cwd=sources / "tests")
    return sources / "tests"


def of_brokers(tests):
    """{name of each test that asks a broker: its scenario}."""
    table = (tests / "test.c").read_text().partition("struct test tests[] = {")[2].partition("{NULL}")[0]
    found = {}
    for name, rest in re.findall(r"^    _TEST\((\w+),(.*?)\),?\n(?=\n|    _TEST|    /\*|#|\Z)", table, re.M | re.S):
        if "TEST_F_LOCAL" not in rest and name not in MANUAL:
            scenario = re.search(r'\.scenario = "(\w+)', rest)
            found[name] = scenario[1] if scenario else "default"
    return found


def outcome(tests, asked, scenario, server, work):
    """PASSED, FAILED, SKIPPED or what else became of a test, or of a part of one."""
    name, _, part = asked.partition(" ")
    config, out = work / f"{asked}.conf", work / f"{asked}.out"
    number = zlib.crc32(f"{work.name} {asked}".encode()) >> 1
    report = work / f"{number}.json"        # of a path it takes 127 bytes
    config.write_text(
        f"metadata.broker.list={server.bootstrap_servers}\ntest.timeout.multiplier=3\ntest.topic.random=true\n")
    environment = {
        "LD_LIBRARY_PATH": "../src:../src-cpp", "TEST_KAFKA_VERSION": BROKER, "RDKAFKA_TEST_CONF": str(config),
        "TESTS": name, "TEST_REPORT": str(report), "KAFKA_PATH": str(KAFKA), "BROKERS": server.bootstrap_servers,
        # By itself the clock: tests that began at once had the same seed, and so the same names of topics and groups.
        "TEST_SEED": str(number), **({"SUBTESTS": f"do_test_{part}:"} if part else {}),
    }
    with out.open("w") as told:
        try:
            subprocess.run(
                ["./test-runner", "-L", "-Q", "-p1", "-s", scenario], cwd=tests, env={**os.environ, **environment},
                stdout=told, stderr=told, check=False, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"did not end within {TIMEOUT_S} s"
    if not report.exists():
        return "FAILED"
    if part and f"[ do_test_{part}:" not in out.read_text(errors="replace"):
        return "there is no such part"
    return json.loads(report.read_text())["tests"][name]["state"]


def test_librdkafka_is_content(tests, tmp_path):
    names = of_brokers(tests)
    assert len(names) > 90
    scenario = names.pop("0081_admin")
    names |= {f"0081_admin {part}": scenario for part in ADMIN_PARTS}
    lacking = kafka_oracle.lacking()
    if lacking is None:
        kafka_oracle.fetch_tools(BROKER)
    else:
        names = {name: scenario for name, scenario in names.items() if name not in WITH_JAVA}
    ended, again = {}, tmp_path / "again"
    again.mkdir()
    for scenario in sorted(set(names.values())):
        config = {**CONFIG, "auto.create.topics.enable": scenario != WITHOUT_NEW_TOPICS}
        with (
            seglog.serve(tmp_path / scenario, fsync="interval", config=config) as server,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            # Those that start JVMs take the longest.
            asked = {
                name: pool.submit(outcome, tests, name, scenario, server, tmp_path)
                for name in sorted(names, key=lambda name: name not in WITH_JAVA) if names[name] == scenario
            }
            found = {name: future.result() for name, future in asked.items()}
            failed = [name for name, told in found.items() if told != EXPECTED.get(name, "PASSED")]
            if len(failed) <= AGAIN_MAX:
                found |= {name: outcome(tests, name, scenario, server, again) for name in failed}
        ended |= found
    assert {name: told for name, told in ended.items() if told != "PASSED"} == EXPECTED
