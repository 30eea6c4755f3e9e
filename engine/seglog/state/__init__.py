"""What a partition and its log dir know beside records: checkpoints, producers, epochs, marks, locks."""
