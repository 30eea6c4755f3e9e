"""test/service.py of kafka-python, which its sdist lacks, as far as its tests need it where the broker runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    def wait_for(self, pattern, timeout=30):
        pass


class SpawnedService:
    pass
