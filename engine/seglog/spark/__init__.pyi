# The public names of `seglog.spark`: this list is read at run time, too (_public.py).
from seglog.spark.fetch import Fetched as Fetched
from seglog.spark.fetch import fetch_topics as fetch_topics
from seglog.spark.job import convert_topics as convert_topics
from seglog.spark.ledger_job import ConvertedLedger as ConvertedLedger
from seglog.spark.ledger_job import convert_compacted_ledgers as convert_compacted_ledgers
from seglog.spark.path_rows import ROW_SCHEMA as ROW_SCHEMA
from seglog.spark.path_rows import read_paths as read_paths
from seglog.spark.publication import Finalized as Finalized
from seglog.spark.publication import finalize_topics as finalize_topics
from seglog.spark.publication import rollback_topics as rollback_topics
from seglog.spark.registration import register as register
from seglog.spark.report import TopicsReport as TopicsReport
from seglog.spark.sink_commit import UnfinishedCommit as UnfinishedCommit
from seglog.spark.sink_commit import complete_commit as complete_commit
from seglog.spark.sink_commit import drop_commit as drop_commit
from seglog.spark.sink_commit import unfinished_commit as unfinished_commit
