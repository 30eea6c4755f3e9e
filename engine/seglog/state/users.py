"""The users of a log dir: the keys that a server needs to check their passwords by SCRAM (RFC 5802).
docs/formats/users.md

The file contains no password. But somebody who has a user's keys can try passwords without asking the server, and can
pretend to be the server: so only its owner can read the file.
"""
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError, SeglogError
from seglog.format.checked_json import format_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.named_tuple import NamedTuple
from seglog.state.owners_json import read_owners_json

FILE_NAME = ".seglog.users"
FORMAT = "seglog-users"
VERSION = 1

# Kafka's limits (ScramMechanism, ScramControlManager); its clients send 4 096 unless they are told otherwise.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
SALT_BYTES_MAX = 255
NAME_LENGTH_MAX = 255
USERS_MAX = 10_000      # an entry takes a kilobyte, and the file is written as a whole

_HINT = "restore the file from a backup; or remove it, and add the users again (seglog users add)"


class Mechanism(Enum):
    """A mechanism of SCRAM. The value is Kafka's number for it (ScramMechanism)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def hash_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size

    def mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()


class Credential(NamedTuple):
    """What a server knows of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_salted(cls, mechanism: Mechanism, salt: bytes, salted_password: bytes, iterations: int) -> "Credential":
        """From a password that the client has salted already, as AlterUserScramCredentials sends it."""
        client_key = mechanism.mac(salted_password, b"Client Key")
        return cls(
            salt, mechanism.hash(client_key), mechanism.mac(salted_password, b"Server Key"), iterations)

    @classmethod
    def of_password(
        cls, mechanism: Mechanism, password: bytes, salt: bytes | None = None, iterations: int = ITERATIONS_MIN
    ) -> "Credential":
        """It takes milliseconds, on purpose."""
        salt = secrets.token_bytes(16) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
        return cls.of_salted(mechanism, salt, salted, iterations)

    def fits(self, mechanism: Mechanism, password: bytes) -> bool:
        """Whether this is the password. It takes milliseconds."""
        made = self.of_password(mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


# By user name; each has one mechanism or two.
StoredUsers = Mapping[str, Mapping[Mechanism, Credential]]


def read_users(log_dir: Path) -> StoredUsers:
    """The users of a log dir; none if there is no file. Raises CorruptSettingsError, UnsupportedVersionError,
    StorageError."""
    found = read_owners_json(log_dir / FILE_NAME, "users", FORMAT, VERSION, _users, _HINT)
    return {} if found is None else found


def write_users(fs: FileSystem, log_dir: Path, users: StoredUsers) -> None:
    """Replace the users of a log dir, durably; only the owner can read the file. Raises InvalidArgumentError if there
    are too many, StorageError."""
    if len(users) > USERS_MAX:
        raise InvalidArgumentError(f"a log dir has at most {USERS_MAX} users")
    entries = {
        name: {mechanism.sasl_name: {
            "iterations": one.iterations, "salt": one.salt.hex(), "stored_key": one.stored_key.hex(),
            "server_key": one.server_key.hex(),
        } for mechanism, one in credentials.items()}
        for name, credentials in users.items()
    }
    write_atomically(fs, log_dir / FILE_NAME, format_json(FORMAT, VERSION, users=entries), mode=0o600)


def checked_user_name(name: str) -> str:
    """Raises InvalidArgumentError for one that no user can have."""
    if not isinstance(name, str) or not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidArgumentError(
            f"no user can have the name {name!r:.100}", hint=f"1 to {NAME_LENGTH_MAX} printable characters")
    return name


def _users(body: dict[str, Any]) -> dict[str, dict[Mechanism, Credential]]:
    found = {}
    for name, credentials in body["users"].items():
        try:
            checked_user_name(name)
        except SeglogError as error:
            raise ValueError(error.what) from None
        found[name] = {mechanism: _credential(mechanism, entry) for text, entry in credentials.items()
                       for mechanism in (Mechanism[text.replace("-", "_")],)}
        if not found[name]:
            raise ValueError(f"{name!r} has no credentials")
    if len(found) > USERS_MAX:
        raise ValueError(f"more than {USERS_MAX} users")
    return found


def _credential(mechanism: Mechanism, entry: Mapping[str, Any]) -> Credential:
    made = Credential(
        bytes.fromhex(entry["salt"]), bytes.fromhex(entry["stored_key"]), bytes.fromhex(entry["server_key"]),
        entry["iterations"])
    if type(made.iterations) is not int or not ITERATIONS_MIN <= made.iterations <= ITERATIONS_MAX:
        raise ValueError(f"{made.iterations!r} iterations, expected {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if not 0 < len(made.salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a salt of {len(made.salt)} bytes")
    if {len(made.stored_key), len(made.server_key)} != {mechanism.hash_bytes}:
        raise ValueError(f"keys of {mechanism.sasl_name} have {mechanism.hash_bytes} bytes")
    return made
