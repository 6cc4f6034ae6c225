#!/bin/sh
# Programs of others for the live tests, if this machine lets us have them; the tests say which one is missing: Chromium
# opens the page, nginx and HAProxy are proxies in front of servers, Prometheus scrapes one, the shells complete commands,
# rsyslog, logger and syslog-ng send messages, and Redis is measured.
have() { command -v "$1" > /dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
missing() {
    have chromium && have chromedriver || echo chromium chromium-driver fonts-dejavu-core
    for each in nginx haproxy prometheus zsh fish redis-server; do have "$each" || echo "$each"; done
    have logger || echo bsdutils
    [ -e /usr/lib/*/rsyslog/omrelp.so ] && [ -e /usr/lib/*/rsyslog/lmnsd_ossl.so ] || echo rsyslog rsyslog-relp rsyslog-openssl
    have syslog-ng || echo libivykis0 libnet1 libjson-c5 libwrap0 libpcre3
}
# Debian's packages of syslog-ng and rsyslog exclude each other, so the files of syslog-ng get a directory of their own.
beside() {
    into=/opt/syslog-ng
    (cd "$(mktemp -d)" && apt-get download -qq syslog-ng-core && dpkg -x syslog-ng-core_*.deb $into) > /dev/null 2>&1 || return
    printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%s\nexec %s --module-path=%s "$@"\n' $into/usr/lib/syslog-ng \
        $into/usr/sbin/syslog-ng "$(echo $into/usr/lib/syslog-ng/*.*/)" > /usr/local/sbin/syslog-ng
    chmod +x /usr/local/sbin/syslog-ng
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
    have syslog-ng || beside
fi
[ -z "$(missing)" ] || echo "tests that need these packages are skipped (apt-get install):" $(missing)
