#!/bin/sh
# image.sh DIRECTORY MIRROR: install an empty Debian in DIRECTORY: what boots, and what every server has beside it.
# The packages that docs/operations.md installs are in apt's cache, so that they need not be fetched in each test.
set -eu

directory=$1 mirror=$2
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,iproute2,less bookworm "$directory" "$mirror"
echo force-unsafe-io >"$directory/etc/dpkg/dpkg.cfg.d/unsafe-io" # it need not survive a power failure
cp /etc/resolv.conf "$directory/etc/resolv.conf"
chroot "$directory" apt-get update --quiet
chroot "$directory" apt-get install --quiet --yes --no-install-recommends --download-only curl jq openssl postgresql prometheus
# What belongs to a machine is made when it boots. Nobody waits for devices or terminals that a container lacks.
: >"$directory/etc/machine-id"
chroot "$directory" systemctl mask --quiet systemd-udevd.service systemd-udev-trigger.service getty.target console-getty.service
chroot "$directory" systemctl set-default --quiet multi-user.target
