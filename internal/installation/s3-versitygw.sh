#!/bin/sh
# Made by bctl deploy: makes the bucket in a versitygw, and says who may do what in it. Run it as often as you like: before
# bctl init, after a rotation and after a retirement, each time when the gateway has the new iam/users.json. It
# needs mc (https://github.com/minio/mc), and the gateway's root user in the environment, where no
# other user of the machine sees it:
#
#   MC_HOST_store=https://ACCESS:SECRET@{{.Host}}:{{.Port}} sh apply.sh
set -eu
cd "$(dirname "$0")"
: "${MC_HOST_store:?set it to https://ACCESS:SECRET@{{.Host}}:{{.Port}}}"
export SSL_CERT_FILE="$PWD/ca.pem"

# The gateway's policies cannot forbid to overwrite; object lock does, in a bucket without versions.
mc ls store/{{.Bucket}} >/dev/null 2>&1 || mc mb --with-lock store/{{.Bucket}}
mc retention set --default GOVERNANCE 36500d store/{{.Bucket}}
mc anonymous set-json bucket-policy.json store/{{.Bucket}}
