# Makes the passwords of a new project, each once, in a volume of its own. It runs in an image that may have
# nothing but a shell, so it uses only what the shell itself can do.
set -eu

random() {
	read -r first </proc/sys/kernel/random/uuid
	read -r second </proc/sys/kernel/random/uuid
	echo "$first$second"
}

for secret in postgres/password s3/secret-key nats/password nats/cluster-password; do
	[ -s "/secrets/$secret" ] || random >"/secrets/$secret"
done

# The server reads its passwords from parts of its configuration.
read -r password </secrets/nats/password
echo "user: bctl, password: \"$password\"" >/secrets/nats/user.conf
read -r password </secrets/nats/cluster-password
{
	echo "authorization { user: route, password: \"$password\" }"
	echo "routes: ["
	for node in nats1 nats2 nats3; do
		echo "  \"nats-route://route:$password@$node:6222\""
	done
	echo "]"
} >/secrets/nats/cluster.conf
