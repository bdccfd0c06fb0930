// Package debian runs the commands of docs/operations.md, word for word, on a Debian that boots
// with systemd in a container. It installs the package that .goreleaser.yaml describes.
//
//	docker_test.go      finds Docker
//	machine_test.go     boots a Debian; image.sh makes its image
//	page_test.go        finds the commands of a page
//	operations_test.go  follows docs/operations.md
//	package_test.go     checks a release: package, tarball, bill of materials
//	units_test.go       checks the sandboxes of the units
//	runbook_test.go     compares the alerts with their entries in the page
//
// The first run makes the image, which requires root and debootstrap. Later runs find it by the
// content of image.sh. Without these, or without Docker, the tests that need them are skipped,
// unless BCTL_REQUIRE_DOCKER is 1. Packages come from BCTL_DEBIAN_MIRROR or, by default, from the
// mirror of this machine's apt. Containers have the label bctl.e2e=debian, and are removed when the
// tests end.
package debian
