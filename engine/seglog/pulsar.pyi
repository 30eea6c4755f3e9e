# The public names of `seglog.pulsar`: this list is read at run time, too (_public.py).
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker as BucketDelayedDeliveryTracker
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker as InMemoryDelayedDeliveryTracker
from seglog.format.payload_compression import PayloadCodec as PayloadCodec
from seglog.ledger.entry import build_entry as build_entry
from seglog.ledger.ledger import Ledger as Ledger
from seglog.ledger.managed.cursor import ManagedCursor as ManagedCursor
from seglog.ledger.message_batch import build_batch_entry as build_batch_entry
from seglog.ledger.message_position import MessagePosition as MessagePosition
from seglog.ledger.position import Position as Position
from seglog.managed_ledger import ManagedLedger as ManagedLedger
from seglog.pulsar_pb.entry_pb2 import MessageMetadata as MessageMetadata
from seglog.pulsar_pb.entry_pb2 import SingleMessageMetadata as SingleMessageMetadata
from seglog.topic.compacted_reader import read_compacted as read_compacted
from seglog.topic.compaction_service import TopicCompactionService as TopicCompactionService
from seglog.topic.delayed_delivery import DelayedDelivery as DelayedDelivery
from seglog.topic.dispatcher import Dispatcher as Dispatcher
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService as PulsarTopicCompactionService
