"""A journal from outside its server: read, verified, copied and served, also while the server writes."""
