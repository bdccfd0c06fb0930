#!/bin/sh
# Written by bctl deploy: creates the bucket, its policy, and a user with a key for each identity. It needs the AWS command
# line, with an administrator's credentials. You can run it repeatedly; it keeps existing keys.
#
#   sh apply.sh                     does all of this
#   sh apply.sh rotate USER         creates a second key for a user, in its folder
#   sh apply.sh retire USER KEY-ID  deletes an old key
set -eu
cd "$(dirname "$0")"

key() { # USER FOLDER
	(
		umask 077
		aws iam create-access-key --user-name "$1" --query 'AccessKey.[AccessKeyId,SecretAccessKey]' --output text | {
			read -r id secret
			printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$id" "$secret"
		} >"../$2/s3-credentials.new"
		grep -q 'key_id = .' "../$2/s3-credentials.new"
		mv "../$2/s3-credentials.new" "../$2/s3-credentials"
	)
}

folder() { # USER
	case $1 in
	{{range .Accounts}}{{.Name}}) echo '{{.Folder}}' ;;
	{{end}}*) echo "no user $1" >&2 && return 1 ;;
	esac
}

case ${1-} in
rotate) key "$2" "$(folder "$2")" && exit ;;
retire) aws iam delete-access-key --user-name "$2" --access-key-id "$3" && exit ;;
esac

if ! aws s3api head-bucket --bucket {{.Bucket}} 2>/dev/null; then
	aws s3 mb s3://{{.Bucket}}{{with .Region}} --region {{.}}{{end}}
fi
aws s3api put-public-access-block --bucket {{.Bucket}} --public-access-block-configuration \
	BlockPublicAcls=true,IgnorePublicAcls=true,BlockPublicPolicy=true,RestrictPublicBuckets=true
aws s3api put-bucket-versioning --bucket {{.Bucket}} --versioning-configuration Status=Enabled
{{if .ObjectLock}}# bctl locks each object itself, for as long as snapshots need it.
aws s3api put-object-lock-configuration --bucket {{.Bucket}} --object-lock-configuration ObjectLockEnabled=Enabled
{{end}}# Objects that the pruner deleted, and remains of multipart uploads, are removed after 30 days.
aws s3api get-bucket-lifecycle-configuration --bucket {{.Bucket}} >/dev/null 2>&1 ||
	aws s3api put-bucket-lifecycle-configuration --bucket {{.Bucket}} --lifecycle-configuration file://lifecycle.json
aws s3api put-bucket-policy --bucket {{.Bucket}} --policy file://bucket-policy.json

user() { # NAME POLICY FOLDER
	aws iam get-user --user-name "$1" >/dev/null 2>&1 || aws iam create-user --user-name "$1" >/dev/null
	aws iam put-user-policy --user-name "$1" --policy-name bctl --policy-document "file://$2.json"
	grep -q 'key_id = .' "../$3/s3-credentials" 2>/dev/null || key "$1" "$3"
}
{{range .Accounts}}user {{.Name}} {{.Policy}} '{{.Folder}}'
{{end}}
