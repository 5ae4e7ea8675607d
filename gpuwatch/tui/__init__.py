"""The screen: a Textual application that looks at frozen snapshots and does no I/O of its own."""
