"""What planners solve, one kind of problem per file."""
