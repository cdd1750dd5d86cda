"""From a layer's operators to their rows on one GPU: divided, with collectives, recompute and what is kept."""
