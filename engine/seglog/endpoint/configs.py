"""Settings as clients see them: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

A topic's settings are stored with each of its logs (`Log.configure`, docs/formats/log_settings.md), those of a group
beside them (coordinators.group_settings). The server's own settings cannot be changed while it runs.
"""
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from seglog.config import Fsync, LogConfig, Settings
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group_settings import GroupSettings
from seglog.coordinators.refusals import error_of, message_of, unknown_topic
from seglog.endpoint.broker_keys import SYNONYMS
from seglog.endpoint.operator_limits import COSTS, check_lengths
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.settings import ServerConfig
from seglog.endpoint.topics import Topics
from seglog.errors import InvalidConfigError, SeglogError
from seglog.log.log import Log
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import checked_config
from seglog.reading.settings import Setting, checked_changes
from seglog.state.directory_dialect import DIALECT_SETTING
from seglog.state.group_settings import GROUPS_MAX
from seglog.state.group_settings import NAMES as GROUP_NAMES
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ApiKey,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPIC, _BROKER, _BROKER_LOGGER, _GROUP = 2, 4, 8, 32            # ConfigResource.Type
_RESOURCE_TYPES = frozenset((_TOPIC, _BROKER, _BROKER_LOGGER, 16, _GROUP))  # 16: metrics of clients
_WITH_RESOURCE_TYPES = 1    # the first version of ListConfigResources that lists more than metrics of clients
_KEPT, _STATIC, _DEFAULT, _OF_GROUP = 1, 4, 5, 8                # DescribeConfigsResponse.ConfigSource
_SOURCES = {"kept": _KEPT, "cluster": _KEPT, "given": _STATIC, "default": _DEFAULT}
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7       # DescribeConfigsResponse.ConfigType
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)                    # AlterConfigOp.OpType
# How Kafka names the record formats.
_FORMAT_VERSIONS = {0: "0.9.0", 1: "0.10.0", 2: "3.0-IV1"}
# What a broker calls a setting of its logs; any other one has the same name.
_BROKERS_NAMES = {name: synonyms[0][0] for name, synonyms in SYNONYMS.items()}
_KEYS = {key.name: key for key in LogConfig.keys.values()}
# The server's settings that a broker has for each group, too, begin so there, and without it here.
_OF_ALL_GROUPS = "group."

# A setting takes about so many bytes of an answer.
_CONFIG_BYTES = 250

_Row = TypeVar("_Row")
_ChangesOf = Callable[[Log | None, Any], Mapping[str, object]]


class ShownConfig(NamedTuple):
    """A setting as clients see it. `source`, `type`: numbers of DescribeConfigsResponse."""

    name: str
    value: str | None
    source: int
    type: int
    documentation: str | None


def described(settings: Mapping[str, Setting]) -> list[ShownConfig]:
    """The settings of a log, for clients."""
    return [
        ShownConfig(name, _text(name, setting.value), _SOURCES[setting.source], _type(name), _meaning(name))
        for name, setting in settings.items()
    ]


def _text(name: str, value: object) -> str | None:
    if name == "message.format.version" and isinstance(value, int):
        return _FORMAT_VERSIONS[value]
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(name: str) -> int:
    key = _KEYS.get(name)
    if key is None or key.unit == "record format":
        return _STRING
    if name == "cleanup.policy":
        return _LIST
    if key.choices:
        return _STRING
    if key.unit in ("boolean", "ratio"):
        return _BOOLEAN if key.unit == "boolean" else _DOUBLE
    return _LONG if key.high > 2**31 else _INT


def _meaning(name: str) -> str | None:
    return _KEYS[name].meaning if name in _KEYS else None


class Configs:
    """The handlers of these APIs."""

    def __init__(
        self, topics: Topics, config: ServerConfig, coordinators: CoordinatorConfig, cleaner: CleanerConfig,
        log_config: Mapping[str, object], fsync: Fsync, groups: GroupSettings,
    ) -> None:
        """`log_config`: the operator's settings for every log, which topics may override."""
        self._groups = groups
        self._topics = topics
        self._config = config
        self._broker = [
            *(shown for settings in (config, coordinators, cleaner) for shown in _shown_settings(settings)),
            *_shown_log_settings(log_config, fsync),
        ]
        of_all = {shown.name: shown for shown in _shown_settings(coordinators)}
        self._group = [of_all[_OF_ALL_GROUPS + name]._replace(name=name) for name in GROUP_NAMES]
        self._group_defaults = {
            shown.name: shown for shown in _shown_settings(CoordinatorConfig())
            if shown.name.removeprefix(_OF_ALL_GROUPS) in GROUP_NAMES}
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    # --- DescribeConfigs -------------------------------------------------------------------------

    async def describe_configs(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        results = []
        # Each one once, whatever a client sends: an answer is a thousand times as large as its question.
        for resource in (await context.work.made(_by_name, request.resources)).values():
            await context.work.pause()
            row = DescribeConfigsResponse.DescribeConfigsResult(
                error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name)
            results.append(row)
            try:
                shown = await self._shown(resource.resource_type, resource.resource_name)
            except SeglogError as error:
                row.error_code, row.error_message = error_of(error), message_of(error)
                continue
            if isinstance(shown, Errors):
                row.error_code, row.error_message = shown, _WORDS[shown]
                continue
            wanted = set(resource.configuration_keys or ())
            await context.work.step(len(shown), size_bytes=_CONFIG_BYTES * len(shown))
            row.configs = [
                _config_row(config, resource.resource_type, request, self._synonyms(resource.resource_type, config))
                for config in shown if not wanted or config.name in wanted
            ]
        return DescribeConfigsResponse(results=results)

    async def _shown(self, kind: int, name: str) -> list[ShownConfig] | Errors:
        if kind == _TOPIC:
            settings = await self._topics.settings(name)
            return unknown_topic(name) if settings is None else described(settings)
        if kind == _BROKER and name in ("", str(self._config.node_id)):
            return self._broker if name else []
        if kind == _GROUP and name:
            own = self._groups.own(name)
            return [shown if (value := own.get(shown.name)) is None
                    else shown._replace(value=str(value), source=_OF_GROUP) for shown in self._group]
        return Errors.INVALID_REQUEST

    def _synonyms(self, kind: int, config: ShownConfig) -> list[ShownConfig]:
        """What the setting has in each place, the first that counts first."""
        if kind != _GROUP:
            return [config]
        of_all = next(shown for shown in self._group if shown.name == config.name)
        name = _OF_ALL_GROUPS + config.name
        return [
            *([config] if config.source == _OF_GROUP else ()),
            *([of_all._replace(name=name)] if of_all.source == _STATIC else ()), self._group_defaults[name]]

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """The node, its topics, and the groups with settings of their own. (KafkaApis.handleListConfigResources)"""
        if context.version < _WITH_RESOURCE_TYPES:
            return ListConfigResourcesResponse()
        wanted = frozenset(request.resource_types) or _RESOURCE_TYPES
        if not wanted <= _RESOURCE_TYPES:
            return ListConfigResourcesResponse(error_code=Errors.UNSUPPORTED_VERSION)
        row = ListConfigResourcesResponse.ConfigResource
        rows = [row(str(self._config.node_id), _BROKER)] if _BROKER in wanted else []
        if _TOPIC in wanted:
            for name in self._topics.names():
                await context.work.step()
                rows.append(row(name, _TOPIC))
        if _GROUP in wanted:
            for name in self._groups.names():
                await context.work.step()
                rows.append(row(name, _GROUP))
        return ListConfigResourcesResponse(config_resources=rows)

    # --- AlterConfigs ----------------------------------------------------------------------------

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        return AlterConfigsResponse(responses=await self._altered(
            request, context, AlterConfigsResponse.AlterConfigsResourceResponse, _replacing))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(responses=await self._altered(
            request, context, IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, _incremental))

    async def _altered(
        self, request: Any, context: RequestContext, row_of: Callable[..., _Row], changes_of: _ChangesOf
    ) -> list[_Row]:
        rows = []
        groups: list[tuple[Any, Any]] = []
        times = await context.work.made(
            lambda: Counter((one.resource_type, one.resource_name) for one in request.resources))
        for resource in (await context.work.made(_by_name, request.resources)).values():
            await context.work.step()
            if times[resource.resource_type, resource.resource_name] > 1:
                error: Errors = Errors.INVALID_REQUEST
                message: str | None = "Duplicate resource."
            elif resource.resource_type == _GROUP:
                error, message = Errors.NONE, None      # so far
            else:
                error, message = await self._change(resource, changes_of, request.validate_only, context)
            row: Any = row_of(
                error_code=error, error_message=message, resource_type=resource.resource_type,
                resource_name=resource.resource_name)
            rows.append(row)
            if resource.resource_type == _GROUP and not error:
                groups.append((resource, row))
        if groups:
            # One request after another, from what a group has to what it gets: two would undo each other's changes.
            async with self._groups.changing:
                await self._alter_groups(groups, changes_of is _replacing, request.validate_only, context)
        return rows

    async def _alter_groups(
        self, groups: list[tuple[Any, Any]], replaces: bool, validate_only: bool, context: RequestContext
    ) -> None:
        changes: dict[str, tuple[Any, dict[str, int]]] = {}
        for resource, row in groups:
            if context.work.is_heavy:
                await context.work.pause()
            row.error_code, row.error_message, own = self._checked_group(resource, replaces)
            if not row.error_code:
                changes[resource.resource_name] = row, own
        if changes and not validate_only:
            await self._change_groups(changes, context)

    def _checked_group(self, resource: Any, replaces: bool) -> tuple[Errors, str | None, dict[str, int]]:
        """The settings that a group is to have."""
        name: str = resource.resource_name
        fault = _fault_of(resource) if name else "Default group resources are not allowed."
        if fault is not None:
            return Errors.INVALID_REQUEST, fault, {}
        texts = {} if replaces else {key: str(value) for key, value in self._groups.own(name).items()}
        try:
            check_lengths({config.name: config.value for config in resource.configs})
            for config in resource.configs:
                operation = getattr(config, "config_operation", _SET)
                if operation == _DELETE:
                    texts.pop(config.name, None)
                elif operation == _SET:
                    texts[config.name] = config.value
                else:
                    raise InvalidConfigError(f"Can't append or subtract: {config.name:.200} is not a list.")
            return Errors.NONE, None, self._groups.checked(name, texts)
        except SeglogError as error:
            return error_of(error), message_of(error), {}

    async def _change_groups(self, groups: "dict[str, tuple[Any, dict[str, int]]]", context: RequestContext) -> None:
        """All of a request at once, since they are in one file."""
        changes = {name: own for name, (_, own) in groups.items()}
        error, message = Errors.NONE, ""
        if not self._groups.has_room_for(changes):
            error, message = Errors.POLICY_VIOLATION, f"At most {GROUPS_MAX} groups have settings of their own."
        else:
            try:
                await self._groups.change(changes)
            except SeglogError as refused:
                error, message = error_of(refused), message_of(refused)
        if error:
            for row, _ in groups.values():
                row.error_code, row.error_message = error, message
            return
        for name, own in changes.items():
            if context.work.is_heavy:
                await context.work.pause()
            context.log_configured("group", name, own)

    async def _change(
        self, resource: Any, changes_of: _ChangesOf, validate_only: bool, context: RequestContext
    ) -> tuple[Errors, str | None]:
        kind, name = resource.resource_type, resource.resource_name
        try:
            fault = await context.work.made(_fault_of, resource)
            if fault is not None:
                return Errors.INVALID_REQUEST, fault
            log = await self._topics.opened(name, 0) if kind == _TOPIC else None
            await context.work.made(
                lambda: check_lengths({config.name: config.value for config in resource.configs}))
            changes = await context.work.made(changes_of, log, resource)
            check_lengths(changes)      # something may have been appended
            if kind != _TOPIC:
                return Errors.INVALID_REQUEST, _FIXED.get(kind, _WORDS[Errors.INVALID_REQUEST])
            if self._topics.topic(name) is None:
                return Errors.UNKNOWN_TOPIC_OR_PARTITION, _WORDS[Errors.UNKNOWN_TOPIC_OR_PARTITION]
            checked = checked_changes(changes, units=False)
            self._topics.limits.check(
                checked, {} if log is None else {name: log.settings[name].value for name in COSTS})
            if not validate_only:
                await self._topics.configure(name, changes)
                context.log_configured("topic", name, changes)
        except SeglogError as error:
            return error_of(error), message_of(error)
        return Errors.NONE, None


_FIXED = {
    **dict.fromkeys((_BROKER, _BROKER_LOGGER), "The broker's settings can only be set when the server starts."),
}
_WORDS = {
    Errors.INVALID_TOPIC_EXCEPTION: "No topic can have this name.",
    Errors.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    Errors.INVALID_REQUEST:
        "Only topics, groups and the only broker have settings here: the metrics of clients have none.",
}


def _by_name(resources: Iterable[Any]) -> dict[tuple[int, str], Any]:
    """The last resource of each name."""
    return {(one.resource_type, one.resource_name): one for one in resources}


def _fault_of(resource: Any) -> str | None:
    """Why these changes of a resource are invalid, whatever the settings are."""
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        return "Error due to duplicate config keys"
    without = [config.name for config in resource.configs if config.value is None
               and getattr(config, "config_operation", _SET) != _DELETE]
    return f"Null value not supported for : {','.join(without)}" if without else None


def _replacing(log: Log | None, resource: AlterConfigsRequest.AlterConfigsResource) -> dict[str, object]:
    """Changes of AlterConfigs: every setting that it does not name returns to its default, except the dialect, which
    clients cannot change."""
    kept = () if log is None else (
        name for name, setting in log.settings.items() if setting.source == "kept" and name != DIALECT_SETTING)
    return {**dict.fromkeys(kept), **{config.name: config.value for config in resource.configs}}


def _incremental(
    log: Log | None, resource: IncrementalAlterConfigsRequest.AlterConfigsResource
) -> dict[str, object]:
    return {
        config.name: _changed(log, config.name, config.config_operation, config.value) for config in resource.configs
    }


def _changed(log: Log | None, name: str, operation: int, value: str | None) -> str | None:
    """The new value of a setting, or None for the default. Raises InvalidConfigError."""
    if operation == _SET:
        return value
    if operation == _DELETE:
        return None
    if operation not in (_APPEND, _SUBTRACT) or _type(name) != _LIST:
        raise InvalidConfigError(f"Can't append or subtract: {name} is not a list.")
    have = [] if log is None else [part.strip() for part in str(log.settings[name].value).split(",")]
    given = [part.strip() for part in (value or "").split(",")]
    if operation == _APPEND:
        return ",".join(dict.fromkeys([*have, *given]))
    return ",".join(part for part in have if part not in given)


def _shown_settings(settings: Settings) -> list[ShownConfig]:
    """The settings of the server itself."""
    default = type(settings)()
    return [
        ShownConfig(
            key.name, _text(key.name, value := getattr(settings, attribute)),
            _DEFAULT if value == getattr(default, attribute) else _STATIC, _server_type(key.unit, key.high),
            key.meaning)
        for attribute, key in settings.keys.items()
    ]


def _shown_log_settings(given: Mapping[str, object], fsync: Fsync) -> list[ShownConfig]:
    """What a log has unless its topic has another setting, by the names that a broker has for it."""
    config = dict(checked_config(given, fsync, 0).items())
    return [
        ShownConfig(
            _BROKERS_NAMES.get(name, name), _text(name, value), _STATIC if name in given else _DEFAULT, _type(name),
            _meaning(name))
        for name, value in config.items()
    ]


def _server_type(unit: str, high: int) -> int:
    if unit in ("boolean", "text", "ratio"):
        return {"boolean": _BOOLEAN, "text": _STRING, "ratio": _DOUBLE}[unit]
    return _LONG if high > 2**31 else _INT


def _config_row(
    config: ShownConfig, kind: int, request: DescribeConfigsRequest, known_as: list[ShownConfig]
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = []
    if request.include_synonyms:
        synonyms = [DescribeConfigsResponse.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
                    for one in known_as]
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=config.name, value=config.value, read_only=kind == _BROKER or config.name == DIALECT_SETTING,
        is_default=config.source == _DEFAULT, config_source=config.source, synonyms=synonyms, config_type=config.type,
        documentation=config.documentation if request.include_documentation else None,
    )
