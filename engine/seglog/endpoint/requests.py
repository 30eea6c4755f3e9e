"""Decodes a request, hands it to the handler of its API, and encodes the answer.

As in Kafka, the connection is closed after malformed bytes, an unsupported API or version, or a request before
authentication.
"""
import asyncio
from collections.abc import Mapping
from typing import Any

from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.refusals import error_of
from seglog.coordinators.transaction import WITH_EPOCHS
from seglog.endpoint.authentication import BEFORE, Authentication
from seglog.endpoint.error_answers import error_answer, with_error_in_topics
from seglog.endpoint.faults import Fault, PlannedFaults
from seglog.endpoint.frame_reader import RequestMemory
from seglog.endpoint.peer import Peer
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.security_log import SecurityLog
from seglog.endpoint.workload import LIGHT_ROWS, AnswerTooLargeError, HeavyWork, Workload
from seglog.errors import ProtocolError, UnsupportedApiVersionError
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.codec import API_VERSIONS, decode_request, encode_response
from seglog.wire.coders import TooManyElementsError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, ApiVersionsResponse, RequestHeader

_LOG = Logger(__name__)

# So many different ones are counted, so that a client that sends nonsense cannot fill the memory.
_LACKING_MAX = 100
# What a cluster has agreed on, which clients look up before they use it: name, level, and the epoch of all of them.
# group.version 1: groups of the consumer protocol (KIP-848). transaction.version 2: each EndTxn gives the producer an
# epoch (KIP-890).
_FEATURES = {"group.version": 1, "transaction.version": WITH_EPOCHS}
_FEATURES_EPOCH = 0
# Clients of earlier versions cannot read a feature that begins with level 0 (KIP-584).
_WITH_LEVEL_0 = 4
# The first version of ApiVersions with the cluster and the node to which a client means to speak; no node.
_WITH_IDENTITY, _NO_NODE = 5, -1


class DroppedError(Exception):
    """The connection must be closed without an answer, because a planned fault says so."""


# The segments of an answer, or None for no answer, and how much they take of the memory for large answers.
Answer = tuple[list[Any] | None, int]


class PendingResponse(NamedTuple):
    """A response that is given later, which is then encoded."""

    header: RequestHeader
    response: PendingAnswer[Any]

    def encoded(self, response: Any) -> Answer:
        return encode_response(self.header, response), 0


class Requests:
    """The dispatch table of a server.

    counts      requests by (API key, version)
    turns       how often a connection began to have requests handled
    faults      planned by tests of clients
    security    what is deleted, configured and refused is told here
    """

    def __init__(
        self, *handlers: Mapping[ApiKey, Handler], heavy: HeavyWork, answers: RequestMemory, cluster_id: str,
        node_id: int,
    ) -> None:
        """`answers`: the memory of large answers. `cluster_id`, `node_id`: who we are, which clients may ask."""
        self._heavy = heavy
        self._cluster_id, self._node_id = cluster_id, node_id
        self.answers = answers
        self.handlers: dict[int, Handler] = {key: handler for each in handlers for key, handler in each.items()}
        self.counts: dict[tuple[int, int], int] = {}
        # Requests by (API key, version) that the server does not have.
        self.lacking: dict[tuple[int, int], int] = {}
        self.turns = 0
        self.faults = PlannedFaults()
        self.security = SecurityLog()
        # `answer` handles the APIs in BEFORE itself: they concern the connection, which handlers do not see.
        served = {*self.handlers, *BEFORE}
        self._versions = {key: span for key, span in sorted(API_VERSIONS.items()) if key in served}

    async def answer(
        self, frame: memoryview, authentication: Authentication, client_host: str, host: str, port: int,
        peer: Peer,
    ) -> Answer | PendingResponse:
        """The answer, whose memory the caller gives back. After ProtocolError or DroppedError, close the connection."""
        work = Workload(self._heavy)
        try:
            try:
                header, request = decode_request(frame, LIGHT_ROWS)
            except TooManyElementsError:
                await work.become_heavy()
                header, request = await work.in_thread(decode_request, frame)
            key, version = header.request_api_key, header.request_api_version
            self.counts[key, version] = self.counts.get((key, version), 0) + 1
            if key not in self._versions:
                raise ProtocolError(f"{ApiKey(key).name} is not supported")
            if not authentication.is_done and key not in BEFORE:
                raise ProtocolError(f"{ApiKey(key).name} before authentication")
            fault = self.faults.next(key, header.client_id)
            response = None if fault is None else await _before(fault, key, version, request)
            if response is not None:
                pass
            elif key in BEFORE:
                response = self._of_connection(key, version, request, authentication)
            else:
                # (Each request needs one: `tuple.__new__` takes a third of the time of `RequestContext(...)`.)
                context = tuple.__new__(RequestContext, (
                    version, header.client_id, client_host, host, port, authentication.principal, peer, self.security,
                    work))
                try:
                    response = await self.handlers[key](request, context)
                    if fault is not None and fault.error is not None:
                        response = with_error_in_topics(response, fault.error)
                except (ProtocolError, OSError):
                    raise
                except AnswerTooLargeError:
                    response = _told(key, version, request, Errors.POLICY_VIOLATION)
                except Exception as error:
                    _LOG.exception("%s v%d failed", ApiKey(key).name, version)
                    response = _told(key, version, request, error_of(error))
            if fault is not None and fault.drops_after:
                if isinstance(response, PendingAnswer):
                    await response
                raise DroppedError
            if isinstance(response, PendingAnswer):
                return PendingResponse(header, response)
            if response is None:
                return None, 0
            if not work.is_heavy:
                return encode_response(header, response), 0
            # The thread drops them, too: if this one still held them, its next run of the collector would visit them.
            made, request, response = [response], None, None
            segments = await work.in_thread(lambda: encode_response(header, made.pop()))
            size_bytes = sum(len(segment) for segment in segments if isinstance(segment, (bytearray, memoryview)))
            await self.answers.take(size_bytes)     # in its turn, so that only one more waits for memory
            return segments, size_bytes
        except UnsupportedApiVersionError as error:
            if error.header.request_api_key != ApiKey.API_VERSIONS:
                self._count_lacking(error.header)
                raise
            return _own_versions(error.header), 0
        finally:
            if work.is_heavy:
                work.end()

    def _count_lacking(self, header: RequestHeader) -> None:
        which = header.request_api_key, header.request_api_version
        if which in self.lacking or len(self.lacking) < _LACKING_MAX:
            self.lacking[which] = self.lacking.get(which, 0) + 1

    def _of_connection(self, key: int, version: int, request: Any, authentication: Authentication) -> Any:
        if key == ApiKey.SASL_HANDSHAKE:
            return authentication.handshake(request.mechanism, version)
        if key == ApiKey.SASL_AUTHENTICATE:
            return authentication.authenticate(request.auth_bytes)
        if version >= 3 and not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
            return ApiVersionsResponse(error_code=Errors.INVALID_REQUEST)
        if version >= _WITH_IDENTITY and (request.cluster_id is not None or request.node_id != _NO_NODE):
            if request.cluster_id is None or request.node_id == _NO_NODE:
                return ApiVersionsResponse(error_code=Errors.INVALID_REQUEST)
            if (request.cluster_id, request.node_id) != (self._cluster_id, self._node_id):
                # The client bootstraps again, instead of writing to another cluster (KIP-1242).
                return ApiVersionsResponse(error_code=Errors.REBOOTSTRAP_REQUIRED)
        if version >= 3:
            authentication.software = f"{request.client_software_name} {request.client_software_version}"
        made = ApiVersionsResponse
        return made(
            api_keys=[
                made.ApiVersion(api_key=served, min_version=first, max_version=last)
                for served, (first, last) in self._versions.items()
            ],
            supported_features=[] if version < _WITH_LEVEL_0 else [
                made.SupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in _FEATURES.items()],
            finalized_features_epoch=_FEATURES_EPOCH,
            finalized_features=[
                made.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in _FEATURES.items()],
        )


def _own_versions(header: RequestHeader) -> list[Any]:
    """The answer to an ApiVersions request of an unknown version: it asks which ones are known here (KIP-511)."""
    first, last = API_VERSIONS[ApiKey.API_VERSIONS]
    row = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)
    return encode_response(
        RequestHeader(ApiKey.API_VERSIONS, 0, header.correlation_id, None),
        ApiVersionsResponse(error_code=Errors.UNSUPPORTED_VERSION, api_keys=[row]))


def _told(key: int, version: int, request: Any, error: Errors) -> Any:
    """The answer for an error. If the client expects no answer, raises ProtocolError, which closes the connection: the
    client can learn of the error in no other way."""
    response = error_answer(key, request, error, version)
    if response is None:
        raise ProtocolError(f"{ApiKey(key).name} failed with {error.name}, and the client expects no answer")
    return response


async def _before(fault: Fault, key: int, version: int, request: Any) -> Any:
    """What a fault does before the request is handled: the answer with its error, None if the request is still to be
    handled. Raises DroppedError."""
    if fault.delay_s:
        await asyncio.sleep(fault.delay_s)
    if fault.drops_before:
        raise DroppedError
    if fault.error is None:
        return None
    if key == ApiKey.METADATA:      # without the addresses in the answer, a client would have nobody to ask again
        request.allow_auto_topic_creation = False
        return None
    return _told(key, version, request, fault.error)


def _is_name(text: str) -> bool:
    """Whether a client's name or version is valid (ApiVersionsRequest.isValid)."""
    return bool(text) and text.isascii() and text[0].isalnum() and text[-1].isalnum() and all(
        character.isalnum() or character in "-." for character in text)
