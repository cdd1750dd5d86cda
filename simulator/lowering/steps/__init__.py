"""The rows of a whole step: who runs which chunk when, gathers, reductions, transfers and the update."""
