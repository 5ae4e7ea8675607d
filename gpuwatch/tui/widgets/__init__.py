"""The few widgets that the views are made of."""
