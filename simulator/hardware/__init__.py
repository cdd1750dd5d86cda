"""On what: GPUs, links, nodes and clusters, read from the data files under `hardware_specs`."""
