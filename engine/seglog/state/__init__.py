"""The state of a partition and its log dir besides records: checkpoints, producers, epochs, marks, locks."""
