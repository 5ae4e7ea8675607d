"""Pure functions from a `Snapshot` to the rows that a screen shows. Nothing here knows Textual."""
