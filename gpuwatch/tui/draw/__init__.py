"""Pure functions from view rows to styled lines of a given width. Nothing here knows Textual."""
