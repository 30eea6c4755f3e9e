"""Authentication of one connection: by SASL if its listener asks for that, otherwise none.

PLAIN sends the password in clear, which only TLS hides; SCRAM sends proofs.
"""
from seglog.endpoint.scram import ScramError, ScramExchange
from seglog.endpoint.users import Users
from seglog.state.users import Mechanism
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, SaslAuthenticateResponse, SaslHandshakeResponse

ANONYMOUS = "User:ANONYMOUS"
_SCRAM = {mechanism.sasl_name: mechanism for mechanism in Mechanism}
# Requests that are allowed before authentication.
BEFORE = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class Authentication:
    """The state of a connection's authentication.

    principal       who the client is
    is_done         every request is allowed
    takes_tokens    the next frame is a token without a header, as after SaslHandshake v0
    has_failed      the connection must be closed after the answer is sent
    tried           the name that was given with a wrong password, or what else was wrong
    software        name and version of the client's software, if it has told them (ApiVersions v3); not verified
    """

    def __init__(self, users: Users | None, principal: str = ANONYMOUS) -> None:
        """`users`: if None, nobody has to log in. `principal`: who the client is without a login."""
        self._users = users
        self._mechanism = ""
        self._exchange: ScramExchange | None = None
        self.principal = principal
        self.is_done = users is None
        self.takes_tokens = False
        self.has_failed = False
        self.tried = ""
        self.software = ""

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        if self._users is None or self.is_done or self._mechanism:
            self.has_failed = not self.is_done
            self.tried = "two handshakes"
            return SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE)
        mechanisms = self._users.mechanisms
        if mechanism not in mechanisms:
            self.has_failed = True
            self.tried = f"mechanism {mechanism}"
            return SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
        self._mechanism = mechanism
        self.takes_tokens = version == 0
        return SaslHandshakeResponse(mechanisms=mechanisms)

    def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        if self.is_done or not self._mechanism:
            self.has_failed = not self.is_done
            self.tried = "no handshake"
            return SaslAuthenticateResponse(
                error_code=Errors.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received without, or after, authentication")
        answer = self.take(token)
        if answer is None:
            return SaslAuthenticateResponse(
                error_code=Errors.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed: Invalid username or password" if self._mechanism == "PLAIN" else
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._mechanism)
        return SaslAuthenticateResponse(auth_bytes=answer)

    def take(self, token: bytes) -> bytes | None:
        """Take a token of the mechanism. Returns the answer, or None if the login has failed."""
        token = bytes(token)
        answer = self._plain(token) if self._mechanism == "PLAIN" else self._scram(token)
        self.has_failed = answer is None
        if self.is_done or self.has_failed:
            self.takes_tokens = False
        return answer

    def _plain(self, token: bytes) -> bytes | None:
        """RFC 4616: authorization id, name, password."""
        parts = token.split(b"\0")
        if len(parts) != 3 or not parts[2]:
            return None
        authorization_id, name, password = parts
        assert self._users is not None
        self.tried = name.decode("utf-8", "replace")
        if not self._users.takes_password(self.tried, password) or authorization_id not in (b"", name):
            return None
        self._is_user(name.decode())
        return b""

    def _scram(self, token: bytes) -> bytes | None:
        assert self._users is not None
        exchange = self._exchange
        try:
            if exchange is None:
                self._exchange = exchange = ScramExchange(_SCRAM[self._mechanism], self._users.credential)
                return exchange.first(token)
            answer = exchange.final(token)
        except ScramError as error:
            assert exchange is not None
            self.tried = exchange.name or str(error)
            return None
        self._is_user(exchange.name)
        return answer

    def _is_user(self, name: str) -> None:
        self.principal = f"User:{name}"
        self.is_done = True
