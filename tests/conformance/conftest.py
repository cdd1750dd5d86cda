"""Scripts are run by recordings, never by pytest."""

collect_ignore_glob = ["scripts/*"]
