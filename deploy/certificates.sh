#!/bin/sh
# Make an authority for the control addresses of a cluster, and a certificate for each node, with openssl:
#
#   sh deploy/certificates.sh FOLDER NAME[,NAME...] ...
#
# A node's names are those at which `sluice failover` reaches it. Its files are tls.crt, tls.key and ca.crt in
# FOLDER/NAME, by its first name. An authority that is in FOLDER already (ca.crt, ca.key) goes on, so nodes can be added
# and certificates renewed. Every certificate of it may take nodes out of service: use it for nothing else, and keep
# ca.key away from the nodes.
set -eu

folder=${1:?usage: certificates.sh FOLDER NAME[,NAME...] ...}
shift
umask 077
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without the settings of this machine: they may add the same extensions once more.
configuration() {
    printf '[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = %s\n[extensions]\n' "$1"
    printf '%s\n' "$2"
}

if [ ! -e "$folder/ca.key" ]; then
    configuration "sluice nodes" "basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash" >"$work/ca.cnf"
    openssl req -x509 -config "$work/ca.cnf" -extensions extensions -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -nodes -days 3650 -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
fi

for names; do
    first=${names%%,*}
    alternatives=$(printf '%s' "$names" | tr ',' '\n' | sed -E 's/^([0-9.]+|.*:.*)$/IP:\1/; /^IP:/!s/^/DNS:/' | paste -sd, -)
    mkdir -p "$folder/$first"
    configuration "$first" "subjectAltName = $alternatives
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid" >"$work/node.cnf"
    {
        openssl req -new -config "$work/node.cnf" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -keyout "$folder/$first/tls.key" -out "$work/node.csr"
        openssl x509 -req -in "$work/node.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -days 825 -sha256 \
            -set_serial "0x0$(openssl rand -hex 15)" -extfile "$work/node.cnf" -extensions extensions \
            -out "$folder/$first/tls.crt"
    } 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
    cp "$folder/ca.crt" "$folder/$first/ca.crt"
done
