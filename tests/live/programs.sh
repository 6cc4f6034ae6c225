#!/bin/sh
# Programs of others for the live tests, if this machine lets us have them; the tests say which one is missing: Chromium
# opens the page, nginx and HAProxy are proxies in front of servers, Prometheus scrapes one, the shells complete commands,
# and Redis is measured.
have() { command -v "$1" > /dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
missing() {
    have chromium && have chromedriver || echo chromium chromium-driver fonts-dejavu-core
    for each in nginx haproxy prometheus zsh fish redis-server; do have "$each" || echo "$each"; done
}
[ -z "$(missing)" ] && exit 0
if [ "$(id -u)" = 0 ] && have apt-get; then
    echo "installing programs for the live tests:" $(missing)
    export DEBIAN_FRONTEND=noninteractive
    # The tests start servers themselves, on ports of their own: the packages must not start them as services.
    policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT; }
    apt-get update -qq > /dev/null 2>&1
    apt-get install -y -qq --no-install-recommends $(missing) > /dev/null 2>&1
fi
[ -z "$(missing)" ] || echo "tests that need these packages are skipped (apt-get install):" $(missing)
