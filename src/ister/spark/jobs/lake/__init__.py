"""Tables outside the log that jobs write and check: Parquet with a manifest, Delta, Iceberg."""
