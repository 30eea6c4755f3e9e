"""`seglog config`: the configuration keys, their units, defaults and limits, without the docs."""
from collections.abc import Iterator
from typing import Any

import click

from seglog.config import OTHER_TOPIC_SETTINGS, Key, LogConfig, Settings, suggestion
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.endpoint.settings import ServerConfig
from seglog.errors import InvalidConfigError
from seglog.ledger.config import ManagedLedgerConfig
from seglog.upkeep.cleaner_config import CleanerConfig

from . import report
from .cli import Command
from .options import json_option

_SUBJECTS: dict[str, type[Settings]] = {
    "log": LogConfig,
    "log dir": CleanerConfig,
    "managed ledger": ManagedLedgerConfig,
    "delayed delivery": DelayedDeliveryConfig,
    "server": ServerConfig,
    "coordinators": CoordinatorConfig,
}


@click.command(cls=Command, only_reads=True)
@click.argument("names", metavar="[KEY]...", nargs=-1)
@json_option
def command(names: tuple[str, ...], as_json: bool) -> int:
    """List the configuration keys, or describe some of them.

    KEY may be part of a name: `seglog config retention` lists the keys that contain this word.
    """
    settings = [*_settings()]
    exact = bool(names)
    if names:
        chosen = [found for name in names for found in _named(name, settings)]
        exact = {key.name for _, key, _ in chosen} <= set(names)
        settings = chosen
    if as_json:
        for subject, key, default in settings:
            report.print_json(
                "key", name=key.name, subject=subject, unit=key.unit, default=_plain(default), limits=key.limits,
                meaning=key.meaning, source=key.source,
            )
    elif exact:
        print("\n\n".join(_text(*setting) for setting in settings))
    else:
        rows = [[key.name, subject, _shown(default), key.unit] for subject, key, default in settings]
        print(report.table(("key", "of a", "default", "unit"), rows, left=(0, 1, 3)))
    return 0


def _settings() -> Iterator[tuple[str, Key, Any]]:
    """Return subject, key and default of every setting."""
    for subject, config in _SUBJECTS.items():
        for attribute, key in config.keys.items():
            yield subject, key, config.defaults[attribute]


def _named(name: str, settings: list[tuple[str, Key, Any]]) -> list[tuple[str, Key, Any]]:
    """Find the setting of this name, else all whose names contain it. Raises InvalidConfigError if none does."""
    wanted = name.strip().lower()
    found = [setting for setting in settings if setting[1].name.lower() == wanted]
    found = found or [setting for setting in settings if wanted in setting[1].name.lower()]
    if found:
        return found
    if wanted in OTHER_TOPIC_SETTINGS:
        raise InvalidConfigError(
            f"{wanted} is a Kafka topic setting that seglog stores with a log but does not use",
            hint="seglog config lists the keys that are used",
        )
    raise InvalidConfigError(
        f"no such key: {name}{suggestion(wanted, [key.name for _, key, _ in settings])}",
        hint="seglog config lists all keys",
    )


def _text(subject: str, key: Key, default: Any) -> str:
    lines = [
        report.paint(f"{key.name} (of a {subject})", "bold"),
        *report.wrapped(key.meaning, hanging=2),
        f"  unit:    {key.unit}",
        f"  default: {_shown(default)}",
        *report.wrapped(f"limits:  {key.limits}", hanging=2),
        *report.wrapped(f"source:  {key.source}", hanging=2),
    ]
    return "\n".join(lines)


def _plain(default: object) -> object:
    """Make a default fit for JSON: a set of names becomes one string, separated by commas."""
    return ",".join(sorted(default)) if isinstance(default, frozenset) else default


def _shown(default: object) -> str:
    if default is None:
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(_plain(default)) or "none"
