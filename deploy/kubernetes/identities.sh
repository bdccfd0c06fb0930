#!/bin/sh
# identities.sh INSTALLATION OVERLAY: put what bctl deploy has made for each identity, and the keys of readers and
# committers, which bctl init has made, and that of the second store, beside the overlay's kustomization of that identity. What opens backups stays where it is.
set -eu
umask 077

installation=$1 overlay=$2
for folder in "$overlay"/*/; do
	name=$(basename "$folder")
	[ -d "$installation/$name" ] || continue
	for file in bctl.yaml ca.pem cert.pem key.pem s3-secret-key s3-credentials mirror-credentials; do
		if [ -f "$installation/$name/$file" ]; then
			cp "$installation/$name/$file" "$folder"
		fi
	done
	case $name in
	reader@*) cp "$installation/admin/worker.key" "$folder" ;;
	committer) cp "$installation/admin/committer.key" "$folder" ;;
	esac
done
