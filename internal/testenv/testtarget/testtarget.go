// Package testtarget marks tests that "make test" leaves to a longer target of the Makefile,
// because they need more than Go, a C compiler and Postgres, or take more than a few seconds.
//
//	func TestBothServers(t *testing.T) {
//		testtarget.Need(t, testtarget.S3)
//
// A target sets BCTL_TEST_TARGETS to its name, or to several.
package testtarget

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

// Setting is the environment variable that lists the targets whose tests run, separated by commas.
const Setting = "BCTL_TEST_TARGETS"

// All is the value of Setting that runs every test.
const All = "all"

// A Target is a target of the Makefile without its "test-" prefix.
type Target string

// The targets.
const (
	S3        Target = "s3"        // needs versitygw, minio or mc, which take minutes to build
	Upgrade   Target = "upgrade"   // needs bctl of the previous release
	Manifests Target = "manifests" // needs promtool
	Long      Target = "long"      // takes long
	// Often repeats random tests more often. .ci/run does without: it runs after every change.
	Often Target = "often"
	// Exhaustive tests try all cases of a table or a set of histories; other targets try a part of
	// them.
	Exhaustive Target = "exhaustive"
)

// Runs reports whether the tests of a target run.
func Runs(target Target) bool {
	named := strings.Split(os.Getenv(Setting), ",")
	return slices.Contains(named, string(target)) || slices.Contains(named, All)
}

// Need skips the test unless the tests of its target run.
func Need(t testing.TB, target Target) {
	t.Helper()
	if !Runs(target) {
		t.Skipf("make test-%s runs this test; %s=%s does, too", target, Setting, target)
	}
}

// FewerChecks is Checks, except that it does nothing if random tests are repeated often.
func FewerChecks(t testing.TB, number string) {
	t.Helper()
	if !Runs(Often) {
		Checks(t, number)
	}
}

// Checks sets the number of checks of rapid.Check until the test ends. The test must not run in
// parallel with others. An explicit -rapid.checks flag takes precedence.
func Checks(t testing.TB, number string) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	checks := flag.Lookup("rapid.checks").Value
	before := checks.String()
	if err := checks.Set(number); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Set(before) }) // the previous value is valid
}
