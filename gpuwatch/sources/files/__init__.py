"""Files of an incident that somebody kept: opened, recognised by content, read into facts, events and samples."""
