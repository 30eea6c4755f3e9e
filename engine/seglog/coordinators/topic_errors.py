"""Errors of topics that coordinators meet, too."""
from seglog.errors import InvalidArgumentError


class TopicExistsError(InvalidArgumentError):
    """A topic with this name already exists."""


class ProhibitedTopicError(InvalidArgumentError):
    """No client may create a topic with this name."""
