"""Authentication of one connection: SASL PLAIN if the server has users, otherwise none.

Passwords are sent in clear: only TLS hides them.
"""
import hmac
from collections.abc import Mapping

from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, SaslAuthenticateResponse, SaslHandshakeResponse

ANONYMOUS = "User:ANONYMOUS"
_MECHANISM = "PLAIN"
# Requests that are allowed before authentication.
BEFORE = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


def takes_password(users: Mapping[str, str], name: str, password: bytes) -> bool:
    """Whether this is the user's password."""
    expected = users.get(name)
    # Compared even for an unknown name, so that the time it takes does not reveal which names exist.
    return hmac.compare_digest((expected or "").encode(), password) and bool(expected)


class Authentication:
    """The state of a connection's authentication.

    principal       who the client is
    is_done         every request is allowed
    takes_tokens    the next frame is a token without a header, as after SaslHandshake v0
    has_failed      the connection must be closed after the answer is sent
    tried           the name that was given with a wrong password, or what else was wrong
    software        name and version of the client's software, if it has told them (ApiVersions v3); not verified
    """

    def __init__(self, users: Mapping[str, str] | None, principal: str = ANONYMOUS) -> None:
        """`users`: passwords by name; None: no authentication. `principal`: who the client is without a password."""
        self._users = users
        self._has_shaken_hands = False
        self.principal = principal
        self.is_done = users is None
        self.takes_tokens = False
        self.has_failed = False
        self.tried = ""
        self.software = ""

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        if self.is_done:
            return SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE)
        if mechanism != _MECHANISM:
            self.has_failed = True
            self.tried = f"mechanism {mechanism}"
            return SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM, mechanisms=[_MECHANISM])
        self._has_shaken_hands = True
        self.takes_tokens = version == 0
        return SaslHandshakeResponse(mechanisms=[_MECHANISM])

    def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        if self.is_done or not self._has_shaken_hands:
            self.has_failed = not self.is_done
            self.tried = "no handshake"
            return SaslAuthenticateResponse(
                error_code=Errors.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received without, or after, authentication")
        if not self.takes(token):
            return SaslAuthenticateResponse(
                error_code=Errors.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed: Invalid username or password")
        return SaslAuthenticateResponse()

    def takes(self, token: bytes) -> bool:
        """Check a PLAIN token (RFC 4616: authorization id, name, password). Returns whether it authenticates."""
        self.takes_tokens = False
        parts = bytes(token).split(b"\0")
        known = False
        if len(parts) == 3 and parts[2] and self._users is not None:
            authorization_id, name, password = parts
            self.tried = name.decode("utf-8", "replace")
            known = takes_password(self._users, name.decode("utf-8", "replace"), password)
            known = known and authorization_id in (b"", name)
            if known:
                self.principal = f"User:{name.decode()}"
        self.is_done = known
        self.has_failed = not known
        return known
