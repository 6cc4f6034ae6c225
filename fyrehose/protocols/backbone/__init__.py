"""The fyrehose backbone: publish and subscribe over UDP, with repair by the clients (fyrehose-backbone.txt)."""
