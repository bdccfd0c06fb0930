#!/bin/sh
# rootfs.sh BINARY DIRECTORY: lay out what the image of bctl holds: DIRECTORY/rootfs, which is root's, and
# DIRECTORY/state, which becomes /var/lib/bctl and belongs to the image's user. Volumes that are mounted there take
# over that owner.
set -eu

binary=$1 directory=$2
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

rm -rf "$directory"
mkdir -p "$directory/rootfs/etc/ssl/certs" "$directory/rootfs/tmp" "$directory/state/keys" "$directory/state/committer-keys" "$directory/state/identity" "$directory/state/restored"
chmod 1777 "$directory/rootfs/tmp"
chmod 700 "$directory"/state/*
cp "$binary" "$directory/rootfs/bctl"
chmod 755 "$directory/rootfs/bctl"
echo 'bctl:x:65532:65532:bctl:/var/lib/bctl:/bctl' >"$directory/rootfs/etc/passwd"
echo 'bctl:x:65532:' >"$directory/rootfs/etc/group"
if [ -r "$certificates" ]; then
	cp "$certificates" "$directory/rootfs/etc/ssl/certs/ca-certificates.crt"
else
	echo "rootfs.sh: no $certificates: the image trusts no public certificate authority" >&2
fi
