"""The functional tests of sarama, IBM's client for Go, over our server, behind the toxiproxy that they play with.

    make clients TESTS=tests/clients/test_sarama.py

Needs Go and its module proxy. They are made for five brokers behind five proxies: here all five lead to one server. In
their set-up, and in no test, topics of three replicas become topics of one.
"""
import json
import re
import shutil
import socket
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest

import seglog
from support.waiting import wait_for

pytestmark = pytest.mark.clients

VERSION, PROXY_VERSION = "v1.61.1", "v2.5.0"
AS_KAFKA = "4.1.1"
# Where their proxies are, which clients are told, and where one asks for them.
BROKERS, API = range(29091, 29096), 8474
AGAIN_MAX = 2

OTHER_BROKERS = "needs a second broker"
NOT_RUN = {
    "TestConsumerFetchFollowerFailover": OTHER_BROKERS,
    "TestFuncAdminAlterPartitionReassignments": OTHER_BROKERS,
    "TestFuncAdminDescribeLogDirs": OTHER_BROKERS,
    "TestFuncAdminListConsumerGroupOffsets": OTHER_BROKERS,
    "TestFuncTxnProduceWithBrokerFailure": OTHER_BROKERS,
    "TestFuncAdminQuotas": "there are no quotas",
    "TestFuncAdminIncrementalAlterConfigs":
        "changes a setting of the broker: the server's own are given when it is started",
    "TestFuncIdempotentBufferedSequence": "reads what a broker in Docker logged",
}
# It skips them by itself.
SKIPPED = {
    "TestReadOnlyAndAllCommittedMessages": "its authors leave it out",
    **dict.fromkeys(
        ("TestJavaConsumerCompressionRoundTrip", "TestJavaMurmur2PartitionerInterop",
         "TestJavaProducerCompressionRoundTrip", "TestFuncJavaInteropCooperativeRebalance"),
        "runs Java in the broker's container"),
}
COUNT_MIN = 60


@pytest.fixture(scope="module")
def programs(kept):
    """The directory of its sources, the program with its tests, and toxiproxy."""
    if shutil.which("go") is None:
        pytest.skip("there is no go, which compiles sarama and its tests")
    work = kept / f"sarama-{VERSION}"
    work.mkdir(exist_ok=True)
    sources, tests, proxy = work / "sources", work / "sarama.test", work / "toxiproxy"

    def go(*arguments, cwd=work):
        return subprocess.run(["go", *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout

    if not sources.exists():
        module = json.loads(go("mod", "download", "-json", f"github.com/IBM/sarama@{VERSION}"))
        shutil.copytree(module["Dir"], work / "sources.new", copy_function=shutil.copyfile)
        for path in (work / "sources.new").rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        set_up = work / "sources.new/functional_test.go"
        text = set_up.read_text()
        changed = re.sub(r"(ReplicationFactor: |len\(partition\.Isr\) != )3\b", r"\g<1>1", text)
        assert changed != text
        set_up.write_text(changed)
        (work / "sources.new").replace(sources)
    if not tests.exists():
        go("test", "-tags", "functional", "-c", "-o", work / "sarama.test.new", ".", cwd=sources)
        (work / "sarama.test.new").replace(tests)
    if not proxy.exists():
        (work / "proxy").mkdir(exist_ok=True)
        if not (work / "proxy/go.mod").exists():
            (work / "proxy/go.mod").write_text("module seglog.test/proxy\n\ngo 1.22\n")
            go("get", f"github.com/Shopify/toxiproxy/v2/cmd/server@{PROXY_VERSION}", cwd=work / "proxy")
        go("build", "-o", work / "toxiproxy.new", "github.com/Shopify/toxiproxy/v2/cmd/server", cwd=work / "proxy")
        (work / "toxiproxy.new").replace(proxy)
    return sources, tests, proxy


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def proxied(program, server, out):
    """Their five proxies, all before one server."""
    with (
        out.open("w") as told,
        subprocess.Popen([program, "-host", "127.0.0.1", "-port", str(API)], stdout=told, stderr=told) as proxy,
    ):
        try:
            wait_for(lambda: listens(API))
            for number, port in enumerate(BROKERS, 1):
                body = {
                    "name": f"kafka{number}", "listen": f"127.0.0.1:{port}", "upstream": server.bootstrap_servers,
                    "enabled": True,
                }
                request = urllib.request.Request(
                    f"http://127.0.0.1:{API}/proxies", json.dumps(body).encode(), {"User-Agent": "tests"})
                urllib.request.urlopen(request).close()
            yield
        finally:
            proxy.terminate()


def outcomes(sources, program, out, names="."):
    """{test: PASS, FAIL or SKIP}, of whole tests."""
    skip = f"^({'|'.join(sorted(NOT_RUN))})$"
    with out.open("w") as told:
        subprocess.run(
            [program, "-test.v", "-test.timeout", "20m", "-test.run", names, "-test.skip", skip], cwd=sources,
            stdout=told, stderr=told, check=False,
            env={"TOXIPROXY_ADDR": f"http://127.0.0.1:{API}", "KAFKA_VERSION": AS_KAFKA})
    told = re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", out.read_text(errors="replace"), re.MULTILINE)
    return {name: result for result, name in told}


def test_sarama_is_content(programs, tmp_path):
    sources, tests, proxy = programs
    functional = {
        name for path in sources.glob("functional_*_test.go")
        for name in re.findall(r"^func (Test\w+)\(t ", path.read_text(), re.MULTILINE)
    }
    names = functional - set(NOT_RUN)
    assert len(names) >= COUNT_MIN
    # As its authors set up their brokers.
    config = {"auto.create.topics.enable": False, "node.id": 1}
    with (
        seglog.serve(
            tmp_path / "data", fsync="interval", config=config, advertise=f"127.0.0.1:{BROKERS[0]}") as server,
        proxied(proxy, server, tmp_path / "proxy.out"),
    ):
        ended = outcomes(sources, tests, tmp_path / "out", f"^({'|'.join(sorted(names))})$")
        # On a busy machine limits of the tests themselves pass: such tests run again, by themselves.
        failed = sorted(name for name in names if ended.get(name) == "FAIL")
        if 0 < len(failed) <= AGAIN_MAX:
            ended |= outcomes(sources, tests, tmp_path / "again", f"^({'|'.join(failed)})$")
    assert ended == {name: "SKIP" if name in SKIPPED else "PASS" for name in names}
