"""Errors of topics that coordinators meet, too."""
from seglog.errors import InvalidArgumentError


class TopicExistsError(InvalidArgumentError):
    """A topic with this name already exists."""


class InvalidTopicError(InvalidArgumentError):
    """No topic can have this name, or not beside those that there are."""


class TooManyPartitionsError(InvalidArgumentError):
    """All topics together may not have so many partitions."""


class ProhibitedTopicError(InvalidArgumentError):
    """No client may create a topic with this name."""
