#!/bin/sh
# Written by bctl deploy: creates the bucket in versitygw, and its policy. You can run it repeatedly: before bctl init, after
# a rotation and after a retirement, each time after the gateway has the new iam/users.json. It needs mc
# (https://github.com/minio/mc), and the gateway's root user in the environment, where other users cannot read it:
#
#   MC_HOST_store=https://ACCESS:SECRET@{{.Host}}:{{.Port}} sh apply.sh
set -eu
cd "$(dirname "$0")"
: "${MC_HOST_store:?set it to https://ACCESS:SECRET@{{.Host}}:{{.Port}}}"
export SSL_CERT_FILE="$PWD/ca.pem"

# The gateway's policies cannot forbid overwriting. Object lock does, in a bucket without versioning.
{{if .ObjectLock}}# bctl locks each object itself, for as long as snapshots need it, and extends its locks. The default
# holds for objects that bctl does not lock.
{{end}}mc ls store/{{.Bucket}} >/dev/null 2>&1 || mc mb --with-lock store/{{.Bucket}}
mc retention set --default GOVERNANCE 36500d store/{{.Bucket}}
mc anonymous set-json bucket-policy.json store/{{.Bucket}}
