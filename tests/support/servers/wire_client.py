"""A client of Kafka's protocol: it sends what it is told, whole or in pieces, and reads answers by the codec alone."""
import socket
import struct

from seglog.wire.codec import decode_response, encode_request, new_header


class WireClient:
    """One connection. `ask` sends a request and returns the answer; the parts of that are there by themselves."""

    def __init__(self, server, *, client_id="wire", wrap=None):
        self.client_id = client_id
        self.socket = socket.create_connection((server.host, server.port), timeout=60)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self._correlation_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def frame(self, request, version):
        """The header and the bytes of a request, with their size."""
        self._correlation_id += 1
        header = new_header(request, version, self._correlation_id, self.client_id)
        return header, encode_request(header, request)

    def send(self, request, version):
        header, raw = self.frame(request, version)
        self.socket.sendall(raw)
        return header

    def receive(self, header):
        return decode_response(header, self.receive_frame())

    def receive_frame(self):
        size, = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ask(self, request, version):
        return self.receive(self.send(request, version))

    def is_closed(self):
        """Whether the other side closes the connection, without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)


def produce_request(topic, partition, records, *, acks=-1, transactional_id=None):
    from seglog.wire.messages import ProduceRequest

    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=5000, topic_data=[ProduceRequest.TopicProduceData(
            name=topic,
            partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)])])


def fetch_request(topic, offset, *, partition=0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation=0):
    """For versions that name topics: up to 12."""
    from seglog.wire.messages import FetchRequest

    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=isolation,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)])])
