#!/bin/bash
# What lies in bin/ of a Kafka that was unpacked: its own tool, of the version that the tests were told.
exec "$(dirname "$0")/../../../../oracle/kafka/tool.sh" 3.9.1 org.apache.kafka.tools.TopicCommand "$@"
