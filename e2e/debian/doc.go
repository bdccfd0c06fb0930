// Package debian tests what an operator does, on a Debian of its own that boots with
// systemd in a container: docs/operations.md, word for word, with the package that
// .goreleaser.yaml describes.
//
//	docker_test.go      is there Docker
//	machine_test.go     a Debian that boots; its image, made by image.sh
//	page_test.go        what a page says to type
//	operations_test.go  docs/operations.md, followed
//	package_test.go     what a release holds: package, tarball, bill of materials
//	units_test.go       the units' sandboxes
//	runbook_test.go     each alert has its entry in the page, and each entry its alert
//
// The image needs root and debootstrap, once; its key is what image.sh says, so that the
// second run finds it. Without these, or without Docker, the tests that need them are skipped, unless
// BCTL_REQUIRE_DOCKER is 1. Packages come from the mirror that this machine's apt has, or from BCTL_DEBIAN_MIRROR. Containers
// have the label bctl.e2e=debian, and go when the tests end.
package debian
