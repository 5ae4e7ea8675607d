"""Finding the engines of this machine: processes, sockets, and a few ports."""
