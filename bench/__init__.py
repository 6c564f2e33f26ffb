"""`make bench`: every mode of `ister bench` and the peers, in one run, into one file, table and picture."""
