"""Policies of a topic: keys of delayed messages that are kept with it, in the properties of its managed ledger.

A policy goes before what `DelayedDelivery` is given, as Pulsar's topic policies go before the broker's configuration.
Each is a property of its own, the key's name behind PREFIX, with the value as text.
"""
from collections.abc import Mapping

from seglog.delayed.config import DelayedDeliveryConfig
from seglog.errors import CorruptManifestError, InvalidArgumentError, InvalidConfigError

PREFIX = "#seglog.delayed.policy."
# Another kind of tracker is for opening, not for a policy that changes while others read.
_KINDS = ("enableBucketDelayedDeliveryTracker", "enableShareDelayedMessageIndex")


def stored_policies(properties: Mapping[str, str]) -> dict[str, str]:
    """Key and value of each policy among the properties of a managed ledger."""
    return {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}


def policy_properties(changes: Mapping[str, object]) -> dict[str, str | None]:
    """The properties that set these policies, and remove those that are None.

    Raises InvalidConfigError for an unknown key or a bad value, InvalidArgumentError for a kind of tracker.
    """
    if not isinstance(changes, Mapping):
        raise InvalidConfigError(f"policies are a mapping of keys to values, not {repr(changes)[:80]}")
    given = {key: value for key, value in changes.items() if value is not None}
    parsed = dict(DelayedDeliveryConfig.of(given).items())
    found: dict[str, str | None] = {}
    for key, value in changes.items():
        name = DelayedDeliveryConfig.other_spellings.get(key, key)
        if name not in parsed:
            raise InvalidConfigError(f"no such key: {key}")
        if name in _KINDS:
            raise InvalidArgumentError(
                f"{name} is no policy: it says which tracker there is", hint="pass it to DelayedDelivery when opening"
            )
        found[PREFIX + name] = None if value is None else _text(parsed[name])
    return found


def under_policies(config: DelayedDeliveryConfig, properties: Mapping[str, str]) -> DelayedDeliveryConfig:
    """The configuration with the policies among the properties of a managed ledger in its place. Raises
    CorruptManifestError where they cannot be policies."""
    policies = stored_policies(properties)
    if not policies:
        return config
    try:
        return DelayedDeliveryConfig.of({**dict(config.items()), **policies})
    except InvalidConfigError as error:
        raise CorruptManifestError(f"a policy of delayed messages: {error.what}") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
