"""Where the files of a topic lie: on mounted paths, in HDFS, in an object store."""
