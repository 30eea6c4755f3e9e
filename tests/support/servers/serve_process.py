"""`seglog serve` as a process, which can be killed and started again."""
import json
import subprocess
import sys
import tempfile

from support.waiting import line_of


class ServeProcess:
    """Runs when it is made. `host` and `port` are what it tells."""

    def __init__(self, directory, *arguments, stderr=None):
        """`stderr`: a descriptor; else what it writes there is in `err` when it has ended."""
        self._command = [sys.executable, "-m", "seglog.tools", "serve", str(directory), "--json", *arguments]
        self._given_stderr = stderr
        self._stderr = None
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._stderr.close()

    def start(self):
        # A file, since nobody would empty a pipe meanwhile; a new one for each start.
        if self._stderr is not None:
            self._stderr.close()
        self._stderr = tempfile.TemporaryFile()    # noqa: SIM115
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._given_stderr or self._stderr, text=True)
        self.told = json.loads(line_of(self.process))
        self.bootstrap_servers = self.told["bootstrap_servers"]
        self.host, _, port = self.bootstrap_servers.rpartition(":")
        self.port = int(port)

    def end(self, number):
        """Send it a signal and wait. What it ended with; `out` and `err` are what it wrote since it listened."""
        self.process.send_signal(number)
        self.out, _ = self.process.communicate(timeout=60)
        return self.process.returncode

    @property
    def err(self):
        self._stderr.seek(0)
        return self._stderr.read().decode()
