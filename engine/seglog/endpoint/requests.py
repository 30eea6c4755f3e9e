"""Decodes a request, hands it to the handler of its API, and encodes the answer.

As in Kafka, the connection is closed after malformed bytes, an unsupported API or version, or a request before
authentication.
"""
import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from seglog.coordinators.refusals import error_of
from seglog.endpoint.authentication import BEFORE, Authentication
from seglog.endpoint.error_answers import error_answer
from seglog.endpoint.faults import Fault, PlannedFaults
from seglog.endpoint.frame_reader import RequestMemory
from seglog.endpoint.peer import Peer
from seglog.endpoint.request_context import AtOnce, Handler, RequestContext
from seglog.endpoint.security_log import SecurityLog
from seglog.endpoint.workload import LIGHT_ROWS, AnswerTooLargeError, HeavyWork, Workload
from seglog.errors import ProtocolError, UnsupportedApiVersionError
from seglog.logger import Logger
from seglog.wire.codec import API_VERSIONS, decode_request, encode_response
from seglog.wire.coders import TooManyElementsError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, ApiVersionsResponse, RequestHeader

_LOG = Logger(__name__)


class DroppedError(Exception):
    """The connection must be closed without an answer, because a planned fault says so."""


class Requests:
    """The dispatch table of a server.

    counts      requests by (API key, version)
    faults      planned by tests of clients
    security    what is deleted, configured and refused is told here
    """

    def __init__(
        self, *handlers: Mapping[ApiKey, Handler], at_once: Mapping[ApiKey, AtOnce], heavy: HeavyWork,
        answers: RequestMemory,
    ) -> None:
        """`at_once`: of APIs that clients use all the time. `answers`: the memory of large answers."""
        self._heavy = heavy
        self.answers = answers
        self._at_once: dict[int, AtOnce] = {int(key): handler for key, handler in at_once.items()}
        self.handlers: dict[int, Handler] = {key: handler for each in handlers for key, handler in each.items()}
        self.counts: dict[tuple[int, int], int] = {}
        self.faults = PlannedFaults()
        self.security = SecurityLog()
        # `answer` handles the APIs in BEFORE itself: they concern the connection, which handlers do not see.
        served = {*self.handlers, *BEFORE}
        self._versions = {key: span for key, span in sorted(API_VERSIONS.items()) if key in served}

    async def answer(
        self, frame: memoryview, authentication: Authentication, client_host: str, host: str, port: int,
        peer: Peer,
    ) -> tuple[list[Any] | None, int]:
        """The segments of the answer, None: there is no answer; and how many bytes of the memory for large answers they
        take, which the caller gives back. After ProtocolError or DroppedError, close the connection."""
        work = Workload(self._heavy)
        try:
            return await self._answer(work, frame, authentication, client_host, host, port, peer)
        finally:
            work.end()

    async def _answer(
        self, work: Workload, frame: memoryview, authentication: Authentication, client_host: str, host: str, port: int,
        peer: Peer,
    ) -> tuple[list[Any] | None, int]:
        try:
            try:
                header, request = decode_request(frame, LIGHT_ROWS)
            except TooManyElementsError:
                await work.become_heavy()
                header, request = await work.in_thread(decode_request, frame)
        except UnsupportedApiVersionError as error:
            if error.header.request_api_key != ApiKey.API_VERSIONS:
                raise
            # This request asks which versions exist, so its own version may be unknown here (KIP-511).
            first, last = API_VERSIONS[ApiKey.API_VERSIONS]
            row = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)
            header = RequestHeader(ApiKey.API_VERSIONS, 0, error.header.correlation_id, None)
            return encode_response(
                header, ApiVersionsResponse(error_code=Errors.UNSUPPORTED_VERSION, api_keys=[row])), 0
        key, version = header.request_api_key, header.request_api_version
        self.counts[key, version] = self.counts.get((key, version), 0) + 1
        if key not in self._versions:
            raise ProtocolError(f"{ApiKey(key).name} is not supported")
        if not authentication.is_done and key not in BEFORE:
            raise ProtocolError(f"{ApiKey(key).name} before authentication")
        fault = self.faults.next(key)
        if fault is not None:
            await _before(fault)
        if fault is not None and fault.error is not None:
            response = _told(key, request, fault.error)
        elif key in BEFORE:
            response = self._of_connection(key, version, request, authentication)
        else:
            context = RequestContext(
                version, header.client_id, client_host, host, port, authentication.principal, peer, self.security,
                work)
            response = await self._handled(key, request, context)
        if fault is not None and fault.drops_after:
            raise DroppedError
        if response is None:
            return None, 0
        if not work.is_heavy:
            return encode_response(header, response), 0
        segments = await work.in_thread(encode_response, header, response)
        size_bytes = sum(len(segment) for segment in segments if isinstance(segment, (bytearray, memoryview)))
        await self.answers.take(size_bytes)        # in its turn, so that only one more waits for memory
        return segments, size_bytes

    def answer_at_once(
        self, frame: memoryview, authentication: Authentication, client_host: str, host: str, port: int,
        give: Callable[[list[Any] | None], None],
    ) -> bool:
        """Handle a request without a task, and call `give`, now or later, with what `answer` returns. False: `answer`
        is to be asked, and nothing was done. Raises what `answer` raises."""
        handler = self._at_once.get(int.from_bytes(frame[:2], "big"))
        if handler is None or self.faults.are_planned or not authentication.is_done:
            return False
        try:
            header, request = decode_request(frame, LIGHT_ROWS)
        except TooManyElementsError:
            return False
        key, version = header.request_api_key, header.request_api_version

        def encode(response: Any) -> None:
            give(None if response is None else encode_response(header, response))

        try:
            is_taken = handler(
                request, RequestContext(version, header.client_id, client_host, host, port, authentication.principal),
                encode)
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            _LOG.exception("%s v%d failed", ApiKey(key).name, version)
            encode(_told(key, request, error_of(error)))
            is_taken = True
        if is_taken:
            self.counts[key, version] = self.counts.get((key, version), 0) + 1
        return is_taken

    async def _handled(self, key: int, request: Any, context: RequestContext) -> Any:
        try:
            return await self.handlers[key](request, context)
        except (ProtocolError, OSError):
            raise
        except AnswerTooLargeError:
            return _told(key, request, Errors.POLICY_VIOLATION)
        except Exception as error:
            _LOG.exception("%s v%d failed", ApiKey(key).name, context.version)
            return _told(key, request, error_of(error))

    def _of_connection(self, key: int, version: int, request: Any, authentication: Authentication) -> Any:
        if key == ApiKey.SASL_HANDSHAKE:
            return authentication.handshake(request.mechanism, version)
        if key == ApiKey.SASL_AUTHENTICATE:
            return authentication.authenticate(request.auth_bytes)
        if version >= 3 and not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
            return ApiVersionsResponse(error_code=Errors.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=served, min_version=first, max_version=last)
            for served, (first, last) in self._versions.items()
        ])


def _told(key: int, request: Any, error: Errors) -> Any:
    """The answer for an error. If the client expects no answer, raises ProtocolError, which closes the connection: the
    client can learn of the error in no other way."""
    response = error_answer(key, request, error)
    if response is None:
        raise ProtocolError(f"{ApiKey(key).name} failed with {error.name}, and the client expects no answer")
    return response


async def _before(fault: Fault) -> None:
    if fault.delay_s:
        await asyncio.sleep(fault.delay_s)
    if fault.drops_before:
        raise DroppedError


def _is_name(text: str) -> bool:
    """Whether a client's name or version is valid (ApiVersionsRequest.isValid)."""
    return bool(text) and text.isascii() and text[0].isalnum() and text[-1].isalnum() and all(
        character.isalnum() or character in "-." for character in text)
