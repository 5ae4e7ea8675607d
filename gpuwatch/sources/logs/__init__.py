"""The log of an engine: a file, standard input, a journald unit, a container or a pod."""
