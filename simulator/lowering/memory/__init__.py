"""What stands on a GPU and on its host, and from which row to which."""
