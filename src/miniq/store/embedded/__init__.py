"""The embedded store: ordered keys over RocksDB or LevelDB, for one process."""
