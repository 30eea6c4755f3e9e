#!/bin/bash
# What lies in bin/ of a Kafka 4.1.1 that was unpacked.
exec "$(dirname "$0")/../../tool.sh" 4.1.1 org.apache.kafka.tools.consumer.ConsoleConsumer "$@"
