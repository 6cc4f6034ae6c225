#!/bin/sh
# Make an authority, a certificate for the server, and one for a Filebeat, in this directory:
#
#     certificates.sh logs.example.com web-1
#
# Give authority.pem and the two files of the Filebeat to its machine. Keep authority.key secret.
set -eu
server=$1 client=$2

if [ ! -f authority.key ]; then
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=Fyrehose authority" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout authority.key -out authority.pem 2>/dev/null
fi

# A certificate NAME.pem with the key NAME.key, for the usage serverAuth or clientAuth.
issue() {
    name=$1 subject=$2 alternative=$3 usage=$4
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$subject" -keyout "$name.key" -out "$name.csr" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=%s\nbasicConstraints=CA:FALSE\n' "$alternative" "$usage" > "$name.ext"
    openssl x509 -req -in "$name.csr" -CA authority.pem -CAkey authority.key -CAcreateserial -days 825 \
        -extfile "$name.ext" -out "$name.pem" 2>/dev/null
    rm "$name.csr" "$name.ext"
    chmod 600 "$name.key"
}

issue server "$server" "DNS:$server,DNS:localhost,IP:127.0.0.1" serverAuth
issue "$client" "$client" "DNS:$client" clientAuth
