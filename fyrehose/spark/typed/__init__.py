"""Typed tables: Delta tables whose columns are fields of JSON events, as one configuration file declares them."""
