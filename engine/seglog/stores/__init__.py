"""Stores for the files of a topic: mounted paths, HDFS, object stores."""
