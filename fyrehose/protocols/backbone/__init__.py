"""The fyrehose backbone: publish and subscribe by UDP datagrams, with repair by those who listen."""
