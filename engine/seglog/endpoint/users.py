"""Who may log in to a server: the operator's users, whose passwords it was given at its start, and those that are
stored with the log dir (seglog.state.users), which clients can change."""
import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from seglog.fs.files import FileSystem
from seglog.state.users import ITERATIONS_MIN, Credential, Mechanism, StoredUsers, read_users, write_users

_PLAIN = "PLAIN"


class Users:
    """Use it in the loop's thread."""

    def __init__(self, passwords: Mapping[str, str] | None, fs: FileSystem, log_dir: Path) -> None:
        """`passwords`: of the operator's users, by name. Raises what `read_users` does."""
        self._passwords = dict(passwords or {})
        self._fs = fs
        self._log_dir = log_dir
        self.stored: StoredUsers = read_users(log_dir)
        self._changing = asyncio.Lock()
        self._trying = asyncio.Lock()
        self._derived: dict[tuple[Mechanism, str], Credential] = {}
        # What unknown users are told is the same each time, as for known ones.
        self._secret = secrets.token_bytes(32)

    def __bool__(self) -> bool:
        return bool(self._passwords or self.stored)

    @property
    def mechanisms(self) -> list[str]:
        """By which one can log in. PLAIN needs a password that is known here: no stored one is."""
        return [*([_PLAIN] if self._passwords else []), *(one.sasl_name for one in Mechanism)]

    def is_operators(self, name: str) -> bool:
        return name in self._passwords

    def takes_password(self, name: str, password: bytes) -> bool:
        """Whether this is the password of one of the operator's users."""
        expected = self._passwords.get(name)
        # Compared even for an unknown name, so that the time it takes does not reveal which names exist.
        return hmac.compare_digest((expected or "").encode(), password) and bool(expected)

    async def knows(self, name: str, password: bytes) -> bool:
        """The same of any user. For stored ones it takes milliseconds, in a thread, and as long for unknown ones: the
        time does not reveal which names exist. One at a time: whoever guesses takes one core at most."""
        if self.takes_password(name, password):
            return True
        if not name or not self.stored:
            return False
        unknown = Credential.of_salted(Mechanism.SCRAM_SHA_512, b"salt", self._secret, ITERATIONS_MIN)
        known = {} if self.is_operators(name) else self.stored.get(name, {})
        loop = asyncio.get_running_loop()
        async with self._trying:
            for mechanism, credential in known.items() or [(Mechanism.SCRAM_SHA_512, unknown)]:
                if await loop.run_in_executor(None, credential.fits, mechanism, password) and known:
                    return True
        return False

    def credential(self, mechanism: Mechanism, name: str) -> tuple[Credential, bool]:
        """A user's, and whether there is such a user with this mechanism: otherwise one that no password fits."""
        password = self._passwords.get(name)
        stored = None if password else self.stored.get(name, {}).get(mechanism)
        if stored is not None:
            return stored, True
        salt = hmac.digest(self._secret, f"{mechanism.sasl_name} {name}".encode(), "sha256")[:16]
        if password is None:
            return Credential.of_salted(mechanism, salt, self._secret, ITERATIONS_MIN), False
        if (found := self._derived.get((mechanism, name))) is None:
            found = self._derived[mechanism, name] = Credential.of_password(mechanism, password.encode(), salt)
        return found, True

    async def change(self, change: Callable[[dict[str, dict[Mechanism, Credential]]], object]) -> None:
        """Let `change` change a copy of the stored users, and store that, durably, unless it is the same. Raises what
        `write_users` does, and then nothing has changed."""
        async with self._changing:
            changed = {name: dict(credentials) for name, credentials in self.stored.items()}
            change(changed)
            changed = {name: credentials for name, credentials in changed.items() if credentials}
            if changed == self.stored:
                return
            await asyncio.shield(
                asyncio.get_running_loop().run_in_executor(None, write_users, self._fs, self._log_dir, changed))
            self.stored = changed
