"""A leader of a log of messages with tags, who writes all that the format allows."""
import random

from support.models import plain_tagged

NOW = 1_700_000_000_000
COMMIT = 10


class Author:
    """Messages of a leader, in every shape that the format allows."""

    def __init__(self, seed, keys=25, *, has_zstd=True):
        self.rng = random.Random(seed)
        self.keys = keys
        self.codecs = [1, 2, 3, 4] if has_zstd else [1, 2, 3]
        self.end = 0

    def tags(self):
        """Known ones or not, or no list at all."""
        rng = self.rng
        found = [(0, NOW + self.end)] if rng.random() < 0.7 else []
        return found + rng.sample([(7, 77), (40, 4), (90, 9), (100, b"unknown"), (127, b"")], rng.randrange(3))

    def message(self, offset):
        key, value = b"key %d" % self.rng.randrange(self.keys), self.rng.randbytes(self.rng.randrange(30))
        value = None if self.rng.random() < 0.1 else value
        return plain_tagged.message(offset, key, value, seconds=1_700_000_000, tags=self.tags())

    def next(self):
        rng = self.rng
        first = self.end + rng.choice([0, 0, 0, 3])
        kind = rng.random()
        if kind < 0.1:
            self.end = first + 1
            return plain_tagged.message(first, b"marker", b"", attributes=COMMIT, tags=self.tags())
        if kind < 0.5:
            self.end = first + 1
            return self.message(first)
        codec, count = rng.choice(self.codecs), rng.randrange(1, 8)
        honours = rng.random() < 0.7
        deltas = sorted(rng.sample(range(12), count)) if honours else list(range(count))
        deltas = [delta - deltas[0] for delta in deltas]
        reach = deltas[-1] + (rng.choice([0, 0, 2]) if honours else 0)
        messages = [self.message(delta if honours else 5) for delta in deltas]
        tags = [tag for tag in self.tags() if tag[0]]
        known = [(0, NOW + first), (1, NOW + self.end), (32, count), (65, 0), (66, 0)]
        if honours and rng.random() < 0.8:
            known.append((33, reach))
        else:
            reach = deltas[-1]
        tags += rng.sample(known, rng.randrange(len(known) + 1))
        if not any(tag == 33 for tag, _ in tags):
            reach = deltas[-1]
        tags += [] if honours else [(64, 0)]
        self.end = first + reach + 1
        return plain_tagged.wrapper(first, codec, messages, tags=tags, seconds=1_700_000_001)
