#!/bin/sh
# Written by bctl deploy: creates the bucket, policies and keys of this installation in MinIO. You can run it repeatedly:
# before bctl init, after a rotation, and after a retirement, whose keys it removes. It needs mc
# (https://github.com/minio/mc), and the server's root user in the environment, where other users cannot read it:
#
#   MC_HOST_store=https://USER:PASSWORD@{{.Host}}:{{.Port}} sh apply.sh
set -eu
cd "$(dirname "$0")"
: "${MC_HOST_store:?set it to https://USER:PASSWORD@{{.Host}}:{{.Port}}}"
export SSL_CERT_FILE="$PWD/ca.pem"

# MinIO's policies cannot forbid overwriting. So the bucket keeps every version, and no key of the installation can delete
# one: deleted and overwritten objects are removed after 30 days.
mc mb --ignore-existing --with-versioning{{if .ObjectLock}} --with-lock{{end}} store/{{.Bucket}}
mc version enable store/{{.Bucket}}
mc ilm rule ls store/{{.Bucket}} >/dev/null 2>&1 ||
	mc ilm rule add --noncurrent-expire-days 30 --expire-delete-marker store/{{.Bucket}}
{{range .Roles}}
mc admin policy create store {{$.Name}}-{{.}} {{.}}.json{{end}}

user() { # NAME POLICY; mc reads the key from its standard input
	mc admin user add store <"accounts/$1"
	mc --json admin user info store "$1" | grep -q "\"policyName\": *\"$2\"" || mc admin policy attach store "$2" --user "$1"
}
{{range .Accounts}}user {{.Name}} {{$.Name}}-{{.Policy}}
{{end}}
mc --json admin user ls store | sed -n 's/.*"accessKey": *"\({{.Name}}-[^"]*\)".*/\1/p' | while read -r name; do
	case $name in
	{{range $i, $a := .Accounts}}{{if $i}} | {{end}}{{$a.Name}}{{end}}) ;;
	*) mc admin user rm store "$name" ;;
	esac
done
