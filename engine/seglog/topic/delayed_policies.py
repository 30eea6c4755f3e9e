"""Policies of a topic: keys of delayed messages, stored in the properties of its managed ledger.

A policy overrides the configuration of `DelayedDelivery`, as Pulsar's topic policies override the broker's. Each policy
is a property, named PREFIX and the key, with the value as text.
"""
from collections.abc import Mapping

from seglog.delayed.config import DelayedDeliveryConfig
from seglog.errors import CorruptManifestError, InvalidArgumentError, InvalidConfigError

PREFIX = "#seglog.delayed.policy."
# The kind of tracker is chosen when opening: a policy may change while others read.
_KINDS = ("enableBucketDelayedDeliveryTracker", "enableShareDelayedMessageIndex")


def stored_policies(properties: Mapping[str, str]) -> dict[str, str]:
    """The policies among the properties of a managed ledger: key and value."""
    return {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}


def policy_properties(changes: Mapping[str, object]) -> dict[str, str | None]:
    """The properties that set these policies, and remove those that are None.

    Raises InvalidConfigError for an unknown key or a bad value, InvalidArgumentError for a kind of tracker.
    """
    if not isinstance(changes, Mapping):
        raise InvalidConfigError(f"policies must be a mapping of keys to values, not {repr(changes)[:80]}")
    given = {key: value for key, value in changes.items() if value is not None}
    parsed = dict(DelayedDeliveryConfig.of(given).items())
    found: dict[str, str | None] = {}
    for key, value in changes.items():
        name = DelayedDeliveryConfig.other_spellings.get(key, key)
        if name not in parsed:
            raise InvalidConfigError(f"no such key: {key}")
        if name in _KINDS:
            raise InvalidArgumentError(
                f"{name} cannot be a policy: it selects the kind of tracker", hint="pass it to DelayedDelivery instead"
            )
        found[PREFIX + name] = None if value is None else _text(parsed[name])
    return found


def under_policies(config: DelayedDeliveryConfig, properties: Mapping[str, str]) -> DelayedDeliveryConfig:
    """The configuration, overridden by the policies among the properties of a managed ledger. Raises
    CorruptManifestError if these are invalid."""
    policies = stored_policies(properties)
    if not policies:
        return config
    try:
        return DelayedDeliveryConfig.of({**dict(config.items()), **policies})
    except InvalidConfigError as error:
        raise CorruptManifestError(f"invalid policy of delayed messages: {error.what}") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
