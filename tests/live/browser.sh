#!/bin/sh
# A browser for tests/live/test_page.py, if this machine lets us have one; its tests say when there is none.
have() { command -v "$1" > /dev/null 2>&1; }
have chromium && have chromedriver && exit 0
if [ "$(id -u)" = 0 ] && have apt-get; then
    echo "installing Chromium for the tests of the page"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq > /dev/null 2>&1
    apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core > /dev/null 2>&1
fi
have chromium && have chromedriver || echo "no Chromium here: the tests of the page are skipped (apt-get install chromium chromium-driver)"
