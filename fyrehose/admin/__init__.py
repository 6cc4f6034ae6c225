"""For those who look after a server: metrics, a page, and its state as JSON.  It reads, and changes nothing.

sampling  what happened each second       status   all of it as one object
metrics   the same for Prometheus         tail     what comes into a stream, as much as somebody can read
server    the listener to them                page/    HTML, CSS and a script, as they are
"""
