"""The admin listener: a page, metrics and JSON about the state of the server.  It never changes anything.

sampling         counters once per second          subscriber_lags  how far subscribers are behind
status           the state of the server as JSON   metrics          the same for Prometheus
tail             the latest records of a stream    server           the listener
page/            HTML, CSS and JavaScript of the page, served as they are
"""
