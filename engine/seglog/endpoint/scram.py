"""The server's side of a login by SCRAM (RFC 5802), as Kafka's ScramSaslServer has it.

    client: n,,n=alice,r=NONCE                 server: r=NONCE+OURS,s=SALT,i=ITERATIONS
    client: c=biws,r=NONCE+OURS,p=PROOF        server: v=SIGNATURE

The password does not go over the network, and what goes is good for one login only. There is no channel binding.
"""
import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable

from seglog.state.users import Credential, Mechanism

# Name and authorization id may have any characters but these two, which are escaped, and no NUL.
_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_FIRST = re.compile(rf"(?P<header>[ny],(?:a=(?P<authorization_id>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),"
                    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]{1,512})(?P<extensions>(?:,[A-Za-z]=[^,\0]*)*))")
_FINAL = re.compile(r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
                    r"(?:,[A-Za-z]=[^,\0]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)")


class ScramError(Exception):
    """The login has failed."""


class ScramExchange:
    """One login. Call `first`, then `final`, each once with a token of the client; both return what to answer, and
    raise ScramError.

    name        the user, from the first token on
    """

    def __init__(
        self, mechanism: Mechanism, credential_of: Callable[[Mechanism, str], tuple[Credential, bool]]
    ) -> None:
        """`credential_of`: that of a user, and whether there is such a user. A client learns at the end only that there
        is none, so that it cannot ask for names."""
        self._mechanism = mechanism
        self._credential_of = credential_of
        self.name = ""

    def first(self, token: bytes) -> bytes:
        found = _FIRST.fullmatch(_text(token))
        if found is None:
            raise ScramError("not the first message of SCRAM")
        self.name = _unescaped(found["name"])
        if found["authorization_id"] is not None and _unescaped(found["authorization_id"]) != self.name:
            raise ScramError("another authorization id")
        self._header = found["header"].encode()
        self._credential, self._is_known = self._credential_of(self._mechanism, self.name)
        self._nonce = found["nonce"] + secrets.token_urlsafe(24)
        answer = (f"r={self._nonce},s={base64.b64encode(self._credential.salt).decode()},"
                  f"i={self._credential.iterations}")
        self._said = f"{found['bare']},{answer}"
        return answer.encode()

    def final(self, token: bytes) -> bytes:
        found = _FINAL.fullmatch(_text(token))
        if found is None:
            raise ScramError("not the final message of SCRAM")
        binding, proof = _decoded(found["binding"]), _decoded(found["proof"])
        mechanism, credential = self._mechanism, self._credential
        if binding != self._header or found["nonce"] != self._nonce or len(proof) != mechanism.hash_bytes:
            raise ScramError("not the answer to this server")
        said = f"{self._said},{found['without_proof']}".encode()
        signature = mechanism.mac(credential.stored_key, said)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if not (fits and self._is_known):
            raise ScramError("wrong password")
        return b"v=" + base64.b64encode(mechanism.mac(credential.server_key, said))


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ScramError("not UTF-8") from None


def _decoded(text: str) -> bytes:
    """Decode base64. Each value has one form only: Python would ignore bits that are left over at the end."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("not base64") from None
    if base64.b64encode(decoded).decode() != text:
        raise ScramError("not base64")
    return decoded


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
