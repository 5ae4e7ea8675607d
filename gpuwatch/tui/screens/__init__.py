"""One module per view; each is imported when it is first opened."""
