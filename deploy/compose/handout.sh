# Gives each container the folder of the installation that is its own: in a volume of its own, readable by its
# user alone. It runs again with each `up`, and after bctl deploy rotate, retire and refresh. Each file is replaced at
# once, so that a server that reads its folder meanwhile has the old one or the new one.
set -eu
umask 022

give() { # FOLDER VOLUME OWNER
	cd "/installation/fleet/$1"
	to=/etc-of/$2
	for file in * */*; do
		[ -f "$file" ] || continue
		case $file in */*) mkdir -p "$to/${file%/*}" ;; esac
		rm -f "$to/.new"
		cp -p "$file" "$to/.new" # a secret is 0600 in the installation, too
		chown "$3" "$to/.new"
		mv -f "$to/.new" "$to/$file"
	done
}

# The servers run as the users of their images.
give nats/nats1 nats1 0:0
give nats/nats2 nats2 0:0
give nats/nats3 nats3 0:0
give postgres postgres postgres:postgres
give s3 store 0:0
give admin admin 65532:65532
give committer committer 65532:65532
give walker@default walker "$WORKER_USER"
give reader@default reader "$WORKER_USER"
give pruner pruner 65532:65532
give scrubber scrubber 65532:65532
# An installation from before there were restorers has no folder for them: bctl deploy refresh adds it.
if [ -d /installation/fleet/restorer ]; then
	give restorer restorer "$RESTORE_USER"
fi
give operator operator "$RESTORE_USER"

# The store's root user makes the bucket, and says who may do what in it. Nobody else knows its key. The image
# may have nothing that makes random text, so this uses what the shell itself can do.
key=/etc-of/store/root-secret-key
if ! [ -s "$key" ]; then
	read -r first </proc/sys/kernel/random/uuid
	read -r second </proc/sys/kernel/random/uuid
	umask 077
	echo "$first$second" >"$key"
fi
